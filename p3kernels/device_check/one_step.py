"""One step in this process: its cases one after the other, each kept as soon as it is done."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path

from p3kernels.device_check.device import Device
from p3kernels.device_check.journal import Journal
from p3kernels.device_check.step import SKIPPED, Finding, Skip, Step, Task

DONE, OUT_OF_TIME = 0, 3
"""Exit codes of a step's process; any other means that it crashed."""


def run_step(
    step: Step,
    device: Device,
    folder: Path,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = print,
) -> int:
    """Runs what is left of a step.

    Args:
        step: Which.
        device: On what.
        folder: The check's own.
        seconds: A case that would begin after so many is left for another time.
        clock: Seconds.
        say: Told of every case that did not pass, and now and then how far it is.

    Returns:
        `DONE`, or `OUT_OF_TIME` where cases are left.
    """
    journal, begin = Journal(folder, step.name), clock()
    if journal.ended:
        return DONE
    try:
        cases = list(step.cases(Task(device, folder, seconds)))
    except Skip as reason:
        journal.skip(str(reason))
        return DONE
    done, told = journal.cases, begin
    for number, case in enumerate(cases):
        if case.name in done:
            continue
        if clock() - begin > seconds:
            return OUT_OF_TIME
        if clock() - told > 10:
            told = clock()
            say(f"    {number} of {len(cases)}: {case.name}")
        journal.begin(case.name)
        started = clock()
        try:
            finding = case.run()
        except Skip as reason:
            journal.add(case.name, SKIPPED, str(reason), seconds=clock() - started)
            continue
        except Exception as error:  # a failed case is a finding; the next one may well run
            finding = Finding(False, describe(error), {"traceback": traceback.format_exc()[-4000:]})
        journal.found(case.name, finding, clock() - started)
        if not finding.passed:
            say(f"    FAILED {case.name}: {finding.detail}")
    journal.end()
    return DONE


def describe(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"
