"""The work of `p3 gpu-check`: the steps, a process each, and what to send back."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p3kernels.device_check.archive import write_archive, write_report
from p3kernels.device_check.device import DEVICES, Device
from p3kernels.device_check.journal import Journal
from p3kernels.device_check.one_step import run_step
from p3kernels.device_check.registry import STEPS as KERNEL_STEPS
from p3kernels.device_check.session import Session, Start, started_by
from p3kernels.device_check.step import Step
from p3kernels.device_check.steps.environment import facts
from trainer.commands.gpu_check import (
    ALL_PASSED,
    CANNOT_RUN,
    SOMETHING_FAILED,
    TRAINING,
    TRAINING_OUTLINE,
    outline,
)
from trainer.training import device_check as training


def steps() -> list[Step]:
    """The steps of the outline, in its order."""
    by_name = {step.name: step for step in KERNEL_STEPS}
    by_name[TRAINING] = Step(TRAINING, *TRAINING_OUTLINE, training.cases)
    return [by_name[name] for name in outline()]


def run(options: argparse.Namespace, prog: str) -> int:
    """Runs the check, or one step of it; returns the exit code."""
    by_name = {step.name: step for step in steps()}
    device = DEVICES[options.device]()
    if options.one_step is not None:
        return run_step(by_name[options.one_step], device, options.out, options.seconds, say=_say)
    chosen = [step for step in by_name.values() if options.only is None or step.name in options.only]
    return check(chosen, device, options.out, options.minutes, _start(options), options.redo, prog)


def _start(options: argparse.Namespace) -> Start:
    def command(step: Step, seconds: float) -> list[str]:
        where = ["--out", str(options.out), "--device", options.device]
        return [
            sys.executable,
            "-m",
            "trainer",
            "gpu-check",
            "--one-step",
            step.name,
            "--seconds",
            f"{seconds:.0f}",
            *where,
        ]

    return started_by(command, options.out)


def check(
    chosen: Sequence[Step],
    device: Device,
    folder: Path,
    minutes: float,
    start: Start,
    redo: Sequence[str] = (),
    prog: str = "p3 gpu-check",
    **session: Any,
) -> int:
    """The check itself; arguments as for `Session`, and `redo`: steps to do again."""
    reason = device.unavailable()
    if reason is not None:
        print(f"{prog}: no GPU to check: {reason}\n\nOn a machine with one it would, in {minutes:g} minutes:")
        for number, step in enumerate(chosen, 1):
            print(f"  {number}. {step.name}: {step.says}")
        print(f"\nand write {folder / 'report.md'} and one archive to send back.")
        return CANNOT_RUN
    try:
        known = _machine(folder, facts(device))
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return CANNOT_RUN
    for name in redo:
        Journal(folder, name).forget()
    print(f"{known['gpu']}: {len(chosen)} steps in at most {minutes:g} minutes; results in {folder}", flush=True)
    results = Session(chosen, folder, minutes, start, say=_say, **session).run()
    report = write_report(folder, known, results)
    archive = write_archive(folder)
    print()
    for result in results:
        print(f"  {result.status:<12} {result.step.name:<16} {result.detail}")
    unfinished = [result.step.name for result in results if result.status.startswith("not")]
    if unfinished:
        print(f"\nThe time was up before {', '.join(unfinished)}: the same command again goes on.")
    print(f"\nThe report is {report}. Please send back {archive}.")
    return ALL_PASSED if all(result.fine for result in results) else SOMETHING_FAILED


def _say(text: str) -> None:
    print(text, flush=True)


def _machine(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Keeps the machine's facts in the folder, or holds them to those that are there.

    Raises:
        ValueError: The folder holds the check of another machine or installation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "machine.json"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name in {**before, **found} if before.get(name) != found.get(name)]
        if differing:
            changes = ", ".join(f"{name} {before.get(name)} → {found.get(name)}" for name in differing)
            raise ValueError(f"--out: {folder} holds the check of another machine or installation ({changes})")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found
