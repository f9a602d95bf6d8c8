"""The whole check: steps in their order within the time, each in a process of its own, and what to send back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from p3kernels.device_check.journal import Journal
from p3kernels.device_check.one_step import DONE, OUT_OF_TIME
from p3kernels.device_check.outline import DEFAULT_MINUTES
from p3kernels.device_check.step import CRASHED, FAILED, PASSED, SKIPPED, Step

GRACE = 60.0
"""Seconds that a case may run beyond its step's time before the process is killed: it may be compiling."""
MOST_CRASHES = 5
"""After so many broken processes the rest of a step is left out."""
LEAST_SECONDS = 5.0
"""With less time left no step is begun."""

Start = Callable[[Step, float], int | None]
"""Runs a step in a process for at most so many seconds; its exit code, or None where it had to be killed."""


def started_by(command: Callable[[Step, float], Sequence[str]], folder: Path) -> Start:
    """Starts a step's process; what it says is shown and kept in the folder's logs."""

    def start(step: Step, seconds: float) -> int | None:
        log = folder / "logs" / f"{step.name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            process = subprocess.Popen(list(command(step, seconds)), stderr=errors, start_new_session=True)
            try:
                return process.wait(seconds + GRACE)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:  # a hang, or the user's Ctrl-C
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    return start


@dataclass(frozen=True)
class Result:
    """What came of a step."""

    step: Step
    status: str
    """"passed", "failed", "skipped", "not finished" or "not begun"."""
    detail: str

    @property
    def fine(self) -> bool:
        """Whether nothing has to be looked at."""
        return self.status in (PASSED, SKIPPED)


class Session:
    """Runs what is left of the steps.

    Args:
        steps: In their order.
        folder: Where everything is kept; a second session in the same folder goes on where the first one ended.
        minutes: For all of them.
        start: Runs one.
        clock: Seconds.
        say: Told what happens.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        folder: Path,
        minutes: float,
        start: Start,
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = print,
    ) -> None:
        self.steps, self.folder, self.minutes = list(steps), folder, minutes
        self._start, self._clock, self._say = start, clock, say

    def run(self) -> list[Result]:
        """Every step that is not done yet: each within its share of the time, then the unfinished with what is left."""
        deadline = self._clock() + 60 * self.minutes
        scale = self.minutes / DEFAULT_MINUTES
        for everything in (False, True):
            for number, step in enumerate(self.steps, 1):
                if Journal(self.folder, step.name).ended:
                    if not everything:
                        self._say(f"[{number}/{len(self.steps)}] {step.name}: done before")
                    continue
                left = deadline - self._clock()
                if left < LEAST_SECONDS:
                    break
                self._say(f"[{number}/{len(self.steps)}] {step.name}: {step.says}")
                self._one(step, left if everything else min(left, scale * step.seconds))
                result = self.result(step)
                self._say(f"    {result.status}: {result.detail}")
        return self.results()

    def _one(self, step: Step, seconds: float) -> None:
        """A step, in as many processes as it breaks."""
        end = self._clock() + seconds
        for _ in range(MOST_CRASHES):
            code = self._start(step, max(end - self._clock(), 0.0))
            if code in (DONE, OUT_OF_TIME):
                return
            journal = Journal(self.folder, step.name)
            how = (
                f"did not end within {seconds + GRACE:.0f} s"
                if code is None
                else f"ended its process ({_ending(code)})"
            )
            broken = journal.begun
            journal.add(broken or "start", FAILED if code is None else CRASHED, f"{how}; see logs/{step.name}.txt")
            if broken is None:  # not even its first case: nothing else will
                journal.end()
                return
            if end - self._clock() < LEAST_SECONDS:
                return
        journal = Journal(self.folder, step.name)
        journal.add("the rest", FAILED, f"left out after {MOST_CRASHES} broken processes")
        journal.end()

    def result(self, step: Step) -> Result:
        """What is known of a step."""
        journal = Journal(self.folder, step.name)
        cases, wrong = journal.cases, journal.wrong
        if journal.skipped is not None:
            return Result(step, SKIPPED, journal.skipped)
        if not cases and not journal.ended:
            return Result(step, "not begun", "the time was up before it")
        counts = Counter(line["status"] for line in cases.values())
        detail = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        if wrong:
            return Result(step, FAILED, f"{detail}; first: {wrong[0]['case']}: {wrong[0]['detail']}")
        if not journal.ended:
            return Result(step, "not finished", f"{detail}; the time was up")
        if set(counts) == {SKIPPED}:
            return Result(step, SKIPPED, next(iter(cases.values()))["detail"])
        return Result(step, PASSED, detail)

    def results(self) -> list[Result]:
        """The result of every step, in their order."""
        return [self.result(step) for step in self.steps]


def _ending(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
    return f"exit code {code}"
