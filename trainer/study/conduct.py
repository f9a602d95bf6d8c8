"""Brings every run of a study to its end: trains what is missing, resumes what was begun, evaluates what is trained."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from trainer.runs.files import replace_file
from trainer.study.campaign import Campaign
from trainer.study.plan import Run
from trainer.study.pool import Pool, last_lines, python_command
from trainer.study.state import SESSIONS, OtherSettings, check_settings, in_use, progress_of, state_of, why_diverged
from trainer.study.versions import versions
from trainer.training.interrupt import Interrupt, Interrupted
from trainer.training.progress import format_duration

_POLL_SECONDS = 0.2
_DRAW_SECONDS = 1.0
"""Between looks at how far the runs are, on a terminal."""
_LINE_SECONDS = 60.0
"""Between progress lines where there is no terminal; every event has one."""


@dataclass(frozen=True)
class Failure:
    """A run that did not come to its end."""

    run: Run
    reason: str


def log_of(run: Run) -> Path:
    """What the run's processes print."""
    return run.path.with_name(run.path.name + ".log")


def complete(campaign: Campaign, jobs: int, report: Callable[[str], None]) -> list[Failure]:
    """Works until every run is trained and evaluated, or has failed. A failure does not stop the others.

    Runs that another process is training are left to it and looked at again when it is done.

    Args:
        campaign: The runs.
        jobs: Processes at a time.
        report: Called with a line about every event.

    Returns:
        The failures.

    Raises:
        OtherSettings: A directory holds a run with other settings; nothing was started.
        Interrupted: By a signal; every training has saved.
    """
    for run in campaign.runs():
        try:
            if not campaign.is_recorded(run):
                check_settings(run)
        except OtherSettings:
            raise
        except (ValueError, OSError):
            continue  # damaged: told of when its turn comes
    return _Conductor(campaign, jobs, report).work()


class _Conductor:
    def __init__(self, campaign: Campaign, jobs: int, report: Callable[[str], None]) -> None:
        self.campaign = campaign
        self.pool: Pool[int] = Pool(jobs)
        self.line = ProgressLine(report)
        self.runs = list(campaign.runs())
        self.waiting = list(range(len(self.runs)))  # by number: a run's settings are no key
        self.steps: dict[int, str] = {}
        self.done: list[int] = []
        self.failures: list[Failure] = []
        self._told: set[int] = set()

    def work(self) -> list[Failure]:
        passed_on = 0
        with Interrupt(self.line.note) as interrupt:
            try:
                while self.waiting or self.pool.running:
                    if interrupt.number is None:
                        self._start_some()
                    elif not passed_on:
                        self.pool.pass_on(interrupt.number)
                        passed_on = interrupt.number
                    if passed_on and not self.pool.running:
                        break
                    time.sleep(_POLL_SECONDS)
                    ended = self.pool.ended()
                    for number, code in ended:
                        self._ended(number, code, interrupted=bool(passed_on))
                    if ended or self.line.due():
                        self.line.show(self._summary())
            except KeyboardInterrupt:  # a second signal: they leave at once, with their last checkpoints as they were
                self.pool.pass_on(interrupt.number or 2)
                raise
            finally:
                self.line.close(self._summary())
        if passed_on:
            raise Interrupted(passed_on)
        return self.failures

    def _start_some(self) -> None:
        for number in list(self.waiting):
            if not self.pool.free:
                return
            run = self.runs[number]
            owner = in_use(run.path)
            if owner is not None:
                if number not in self._told:
                    self.line.note(f"{run.path.name}: in use by process {owner}; looked at again when it is free")
                    self._told.add(number)
                continue
            try:
                if not self._is_ready(run):
                    continue
                self.waiting.remove(number)
                self._start(number)
            except (ValueError, OSError) as error:
                if number in self.waiting:
                    self.waiting.remove(number)
                self._fail(run, str(error))

    def _is_ready(self, run: Run) -> bool:
        """Whether it can begin now.

        Raises:
            ValueError: It waits for something that nothing will bring any more.
        """
        missing = None if self.campaign.is_recorded(run) else self.campaign.waits_for(run)
        others = [self.runs[number] for number in {*self.waiting, *self.pool.running}]
        if missing is not None and all(other is run or self.campaign.waits_for(other) for other in others):
            raise ValueError(f"it needs {missing}")
        return missing is None

    def _start(self, number: int) -> None:
        """Starts the run's next step, or counts it as done."""
        run = self.runs[number]
        if self.campaign.is_recorded(run):
            self.done.append(number)
            return
        state = state_of(run)
        if state in ("trained", "diverged"):
            judging = self.campaign.evaluation(run)
            if judging is None:
                self._finish(number)
                return
            command, step = python_command(judging[0], judging[1:]), "evaluating"
        else:
            begun = run.arguments(resume=state == "unfinished")
            command, step = python_command("trainer.cli", begun), "training"
            _remember_session(run, begun)
        self.steps[number] = step
        self.pool.start(number, command, log_of(run))

    def _finish(self, number: int) -> None:
        """Counts the run as done, and keeps its record where the study has a place for it."""
        self.campaign.keep(self.runs[number])
        self.done.append(number)

    def _ended(self, number: int, code: int, *, interrupted: bool) -> None:
        run, step = self.runs[number], self.steps.pop(number)
        if interrupted:
            return
        if step == "training" and code != 0 and state_of(run) == "diverged":
            self.line.note(f"{run.path.name}: diverged: {why_diverged(run)}")
            self.waiting.insert(0, number)  # it stays in: what it left is evaluated
            return
        if code != 0:
            lines = "\n".join(f"    {line}" for line in last_lines(log_of(run)))
            self._fail(run, f"{step} ended with exit code {code}; the end of {log_of(run)}:\n{lines}")
            return
        try:
            if step == "training" and state_of(run) != "trained":
                raise ValueError(f"{step} ended before iteration {run.target}")
            if step == "evaluating" and self.campaign.evaluation(run) is not None:
                raise ValueError(f"{step} left no numbers")
            if step == "evaluating":
                self._finish(number)
        except (ValueError, OSError) as error:
            self._fail(run, str(error))
            return
        if step == "training":
            self.waiting.insert(0, number)  # to be evaluated
        else:
            self.line.note(f"{run.path.name}: done, {format_duration(progress_of(run)[1])} of training")

    def _fail(self, run: Run, reason: str) -> None:
        self.failures.append(Failure(run, reason))
        self.line.note(f"{run.path.name}: failed: {reason}")

    def _summary(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        left = len(self.runs) - len(self.done) - len(self.failures) - len(self.pool.running)
        unfinished = [self.runs[number] for number in {*self.waiting, *self.pool.running}]
        remaining = remaining_seconds(self.runs, unfinished, self.pool.size)
        return (
            f"{len(self.done)} of {len(self.runs)} runs done{failed}, {len(self.pool.running)} running, {left} left"
            f"  eta {'-' if remaining is None else format_duration(remaining)}"
        )


def remaining_seconds(runs: Sequence[Run], unfinished: Collection[Run], jobs: int) -> float | None:
    """By the seconds an iteration of the same method took, or of any method where there is none yet; None before any.

    Args:
        runs: All of the study.
        unfinished: Those that wait or are at work.
        jobs: Processes at a time.
    """
    progress = {run.name: _own_progress(run) for run in runs}
    pace: dict[str, list[float]] = {}
    for run in runs:
        iterations, seconds = progress[run.name]
        if iterations:
            pace.setdefault(run.config.method, []).append(seconds / iterations)
    if not pace:
        return None
    means = {method: sum(values) / len(values) for method, values in pace.items()}
    anyone = sum(means.values()) / len(means)
    left = [
        (run.target - run.first + 1 - progress[run.name][0]) * means.get(run.config.method, anyone)
        for run in unfinished
    ]
    return max([sum(left) / jobs, *left]) if left else 0.0


def _own_progress(run: Run) -> tuple[int, float]:
    """Iterations of the run itself and the seconds they took: a branch counts on from its trunk's."""
    iterations, seconds = progress_of(run)
    if run.trunk is None or not iterations:
        return iterations, seconds
    return iterations - run.first + 1, max(0.0, seconds - progress_of(run.trunk)[1])


def _remember_session(run: Run, arguments: list[str]) -> None:
    run.path.mkdir(parents=True, exist_ok=True)
    path, sessions = run.path / SESSIONS, []
    with contextlib.suppress(OSError, ValueError):
        sessions = json.loads(path.read_text(encoding="utf-8"))
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sessions.append({"begun": begun, "command": shlex.join(["p3", *arguments]), "versions": versions()})
    replace_file(path, (json.dumps(sessions, indent=2) + "\n").encode())


class ProgressLine:
    """A line in place on a terminal; in a log, lines at events and every minute.

    Args:
        report: Takes the lines that stay.
        stream: Whose terminal; standard error if None.
    """

    def __init__(self, report: Callable[[str], None], stream: TextIO | None = None) -> None:
        self._report, self._stream = report, stream or sys.stderr
        self._tty = self._stream.isatty()
        self._shown, self._at = "", float("-inf")

    def due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() - self._at >= (_DRAW_SECONDS if self._tty else _LINE_SECONDS)

    def show(self, text: str) -> None:
        """Shows how far the study is."""
        due = self.due()
        if due:
            self._at = time.monotonic()
        if self._tty:
            self._erase()
            self._shown = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write(self._shown)
            self._stream.flush()
        elif due:
            self._report(text)

    def note(self, text: str) -> None:
        """Prints a line that stays."""
        self._erase()
        self._report(text)

    def close(self, text: str) -> None:
        """Leaves the last state behind."""
        self.note(text)

    def _erase(self) -> None:
        if self._shown:
            self._stream.write(f"\r{' ' * len(self._shown)}\r")
            self._stream.flush()
            self._shown = ""
