"""Starts the processes of a training on this machine, one rank each, and waits for them.

They are the ranks that torchrun would start, with two differences: they meet in a file and talk over the loopback
interface alone, and Ctrl-C or SIGTERM has the time that an iteration takes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.processes import cores, end_with_parent, environment
from trainer.training.distributed import MEETING_POINT

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_GRACE = 60.0
"""Seconds for the other ranks to end by themselves after one has failed: they tell of it and write the report."""
_POLL = 0.05


@dataclass(frozen=True)
class Ended:
    """How the ranks ended."""

    code: int
    """0 if every rank returned 0; after a signal 128 + its number; else that of the first rank that has one, or 1."""
    first_is_lost: bool
    """Whether the rank that speaks for all was killed."""


def launch(arguments: Sequence[str], processes: int, prog: str) -> Ended:
    """Runs `p3 train ARGUMENTS` on `processes` ranks, and waits for them.

    A signal is passed on to all of them. When one fails the others are given a minute to end, then they are ended.
    """
    with tempfile.TemporaryDirectory(prefix="p3-ranks-") as directory, _Ranks(arguments, processes, directory) as ranks:
        codes = ranks.wait()
    killed = {rank: _name(-code) for rank, code in codes.items() if code < 0 and rank not in ranks.ended_by_us}
    for rank, name in killed.items():
        print(f"{prog}: rank {rank} of {processes} was killed by {name}", file=sys.stderr)
    if not any(codes.values()):
        return Ended(0, first_is_lost=False)
    failed = next((code for code in codes.values() if code > 0), 1)
    return Ended(failed if ranks.passed_on is None else 128 + ranks.passed_on, first_is_lost=0 in killed)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _Ranks:
    """The running ranks. They are in sessions of their own, so that a terminal's Ctrl-C reaches them once, from here.

    Args:
        arguments: What comes after `p3 train`.
        processes: How many.
        directory: Where they meet.
    """

    def __init__(self, arguments: Sequence[str], processes: int, directory: str) -> None:
        self.passed_on: int | None = None
        """The first signal that was passed on."""
        self.ended_by_us: set[int] = set()
        """Ranks that did not end by themselves."""
        self._command = [sys.executable, "-m", "trainer.training.worker", *arguments]
        self._processes = processes
        self._common = {
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            MEETING_POINT: (Path(directory) / "ranks").as_uri(),
            "GLOO_SOCKET_IFNAME": _LOOPBACK,
        }
        if "OMP_NUM_THREADS" not in os.environ:
            self._common["OMP_NUM_THREADS"] = str(max(1, cores() // processes))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Ranks:
        with _held_back():  # until a rank can take them, and until all are here
            self._before = {number: signal.signal(number, self._pass_on) for number in SIGNALS}
            for rank in range(self._processes):
                self._running[rank] = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **self._common),
                    start_new_session=True,
                    preexec_fn=end_with_parent(),  # noqa: PLW1509  no thread of ours holds a lock here
                )
        return self

    def __exit__(self, *_: object) -> None:
        for rank, process in self._running.items():
            if process.poll() is None:
                self.ended_by_us.add(rank)
                process.kill()
            process.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _: object) -> None:
        self.passed_on = self.passed_on or number
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def wait(self) -> dict[int, int]:
        """Exit codes by rank, in the order of ranks; negative after a signal."""
        codes: dict[int, int] = {}
        deadline, gentle = float("inf"), True
        while len(codes) < len(self._running):
            time.sleep(_POLL)
            for rank, process in self._running.items():
                code = process.poll()
                if code is not None and rank not in codes:
                    codes[rank] = code
                    if code != 0:
                        deadline = min(deadline, time.monotonic() + _GRACE)
            if time.monotonic() > deadline:
                for rank, process in self._running.items():
                    if rank not in codes:
                        self.ended_by_us.add(rank)
                        process.terminate() if gentle else process.kill()
                deadline, gentle = time.monotonic() + _GRACE, False
        return dict(sorted(codes.items()))


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Signals wait; processes that are started meanwhile hold them back too, until `take_signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        take_signals()


def take_signals() -> None:
    """Lets the signals come that were held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
