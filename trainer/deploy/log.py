"""The log of a deployment: everything received and sent, in one file that survives the controller's death.

A file is a line of JSON (policy, contract, settings) and then records: kind, time, length, payload. What is cut off at
its end is left out when it is read. `read_log` needs numpy alone; `trainer.deploy.replay` runs a log again.
"""

from __future__ import annotations

import json
import queue
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "p3-robot-log 1"
_HEAD = struct.Struct("<BxxxIQ")  # kind, bytes of payload, monotonic time in ns


class Kind(IntEnum):
    """What a record is."""

    STATE = 1
    """A `LowState_` as it came, in CDR."""
    COMMAND = 2
    """A `LowCmd_` as it was sent, in CDR."""
    STEP = 3
    """A control step begins: what the policy is given beside the newest state (`Given`)."""
    WISH = 4
    """JSON: an operator's wish and what spoke against it."""
    FAULT = 5
    """Text: why the controller damped, beyond what states tell: their absence, an exception."""
    EVENT = 6
    """Text: what the operator was told."""
    POSE = 7
    """[7] float64: position and orientation of the pelvis by odometry."""
    RESULT = 8
    """A control step ends: what the policy wanted (`Result`)."""


@dataclass(frozen=True)
class Record:
    """One entry of a log."""

    kind: Kind
    time: float
    """s, of a clock that only goes forward."""
    data: bytes


@dataclass(frozen=True)
class Given:
    """What a control step is given beside the state."""

    command: tuple[float, ...]
    """Forward m/s, left m/s, yaw rate rad/s."""
    scan: np.ndarray
    """[S]"""

    def pack(self) -> bytes:
        """The record's payload."""
        return struct.pack("<3d", *self.command) + np.asarray(self.scan, "<f4").tobytes()

    @staticmethod
    def unpack(data: bytes) -> Given:
        """What `pack` has packed."""
        return Given(struct.unpack_from("<3d", data), np.frombuffer(data, "<f4", offset=24))


@dataclass(frozen=True)
class Result:
    """What a control step ended in."""

    mode: int
    targets: np.ndarray
    """[29] rad, before limits; NaN in damping."""
    std: np.ndarray
    """[29] rad; NaN where the policy has none."""

    def pack(self) -> bytes:
        """The record's payload."""
        arrays = (np.asarray(array, "<f4").tobytes() for array in (self.targets, self.std))
        return b"".join((struct.pack("<B3x", self.mode), *arrays))

    @staticmethod
    def unpack(data: bytes) -> Result:
        """What `pack` has packed."""
        values = np.frombuffer(data, "<f4", offset=4).reshape(2, -1)
        return Result(data[0], values[0], values[1])


class Recorder:
    """Writes a log from a thread of its own: a slow disk is not the control loop's problem.

    Args:
        path: Must not exist yet.
        head: What the reader should know first.

    Raises:
        FileExistsError: It does.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb", buffering=1 << 16)
        self._file.write(json.dumps({"format": FORMAT, **head}).encode() + b"\n")
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def add(self, kind: Kind, time: float, data: bytes) -> None:
        """One record; returns at once."""
        self._queue.put(_HEAD.pack(kind, len(data), int(time * 1e9)) + data)

    def close(self) -> None:
        """Writes what is left."""
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        while (data := self._queue.get()) is not None:
            self._file.write(data)
            if self._queue.empty():
                self._file.flush()


def read_log(path: Path) -> tuple[dict[str, Any], Iterator[Record]]:
    """The head of a log and its records.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is something else.
    """
    data = path.read_bytes()
    end = data.find(b"\n")
    try:
        head = json.loads(data[:end]) if end >= 0 else {}
    except ValueError:
        head = {}
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError(f"{path}: not a log of p3 deploy ({FORMAT})")
    return head, _records(data, end + 1)


def _records(data: bytes, at: int) -> Iterator[Record]:
    while at + _HEAD.size <= len(data):
        kind, size, nanoseconds = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if at + size > len(data):
            return  # cut off: the controller was killed while this was written
        yield Record(Kind(kind), nanoseconds * 1e-9, data[at : at + size])
        at += size
