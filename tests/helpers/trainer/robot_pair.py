"""`p3 robot-sim` and `p3 deploy` as processes of their own, on the loopback interface, in a DDS domain of their own."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HAS_DDS = importlib.util.find_spec("cyclonedds") is not None
needs_dds = pytest.mark.skipif(not HAS_DDS, reason="needs cyclonedds: pip install 'p3kernels[deploy]'")
STAND, POLICY = "0.5:L2+up", "5.8:R1+X"
"""Presses of the remote: the robot stands 3 s after the first and is set down by then."""
SLOW = ("--speed", "0.2"), ("--time-scale", "5")
"""For what depends on the wall clock: a fifth of real time, so that a busy machine still keeps up."""


_TAKEN: list[int] = []


def free_domain() -> int:
    """A DDS domain that no other test of this machine has: this process keeps a lock on it to its end.

    Not given back earlier, because an orphaned guardian goes on for some seconds. Ports of the domains from 102 on are
    among those that the system gives to any socket, so these come last.
    """
    first = os.getpid() * 37
    for domain in (*(2 + (first + number) % 100 for number in range(100)), *range(102, 222)):
        lock = os.open(Path(tempfile.gettempdir()) / f"p3-test-domain-{domain}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        _TAKEN.append(lock)
        return domain
    raise AssertionError("every DDS domain is taken")


@dataclass
class Process:
    """A started command, whose output is a file."""

    name: str
    output: Path
    process: subprocess.Popen[bytes]
    waited: float = field(default=0.0)

    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str, seconds: float = 60.0) -> None:
        """Until its output has the words.

        Raises:
            AssertionError: It ended, or the time is over.
        """
        end = time.monotonic() + seconds
        while words not in self.text():
            ended = self.process.poll() is not None
            assert not ended or words in self.text(), f"{self.name} ended without {words!r}:\n{self.text()}"
            assert time.monotonic() < end, f"{self.name} did not say {words!r} in {seconds} s:\n{self.text()}"
            time.sleep(0.02)

    def finish(self, seconds: float = 90.0) -> int:
        """Waits for its end; its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end:\n{self.text()}") from None

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Pair:
    """Starts processes in one domain and ends them all at its own end."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.domain = directory, free_domain()
        self.report_path = directory / "report.json"
        self.log_path = directory / "deploy.p3log"
        self._started: list[Process] = []

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.stop()

    def start(self, command: str, *arguments: object) -> Process:
        output = self.directory / f"{command}-{len(self._started)}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "trainer", command, *map(str, arguments), "--domain", str(self.domain)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._started.append(Process(command, output, process))
        return self._started[-1]

    def robot(self, *arguments: object) -> Process:
        return self.start("robot-sim", "--report", self.report_path, *arguments)

    def deploy(self, policy: Path, *arguments: object) -> Process:
        return self.start("deploy", policy, "--interface", "lo", "--log", self.log_path, *arguments)

    def report(self) -> dict:
        return json.loads(self.report_path.read_text())
