"""Processes side by side, as many as there are cores, each on one thread."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from trainer.processes import end_with_parent, environment

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
Key = TypeVar("Key", bound=Hashable)


def python_command(module: str, arguments: Sequence[str]) -> list[str]:
    """A module of this package, run by this interpreter."""
    return [sys.executable, "-m", module, *arguments]


class Pool(Generic[Key]):
    """Running processes by what they work on.

    They are in sessions of their own, so that a terminal's Ctrl-C reaches them through `pass_on` alone: twice would
    make a training leave without saving. If this process dies, they are told to end (SIGTERM), on Linux.

    Args:
        size: How many at a time.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"--jobs: expected at least 1, got {size}")
        self.size = size
        self._running: dict[Key, subprocess.Popen[bytes]] = {}

    @property
    def running(self) -> list[Key]:
        """What is being worked on."""
        return list(self._running)

    @property
    def free(self) -> int:
        """How many more can be started."""
        return self.size - len(self._running)

    def start(self, key: Key, command: Sequence[str], log: Path) -> None:
        """Starts a process whose output goes to the end of `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._running[key] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(**_ONE_THREAD),
                start_new_session=True,
                preexec_fn=end_with_parent(),  # noqa: PLW1509  there are no other threads here
            )

    def ended(self) -> list[tuple[Key, int]]:
        """What has ended since the last call, and the exit codes; negative after a signal."""
        codes = [(key, process.poll()) for key, process in self._running.items()]
        done = [(key, code) for key, code in codes if code is not None]
        for key, _ in done:
            del self._running[key]
        return done

    def pass_on(self, number: int) -> None:
        """Sends a signal to all of them."""
        for process in self._running.values():
            process.send_signal(number)


def last_lines(log: Path, count: int = 8) -> list[str]:
    """The end of a log, without what was overwritten in place."""
    try:
        text = log.read_bytes().decode(errors="replace")
    except OSError as error:
        return [f"no log: {error}"]
    return [line.rpartition("\r")[2] for line in text.splitlines() if line.strip()][-count:]
