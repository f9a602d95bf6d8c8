"""`p3 diagnose`: how wrong a single-sample likelihood is on a checkpoint of one's own, and what P³ does about it."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from p3kernels.version import __version__
from trainer.config.command_line import parse
from trainer.config.commands import DiagnoseConfig
from trainer.diagnosis.figures import write_figures
from trainer.diagnosis.files import FOLDER, NUMBERS, TABLES
from trainer.diagnosis.numbers import QUICK, Diagnosis, Sizes, diagnose
from trainer.diagnosis.states import Say, Subject, before_switch, check_method, gather
from trainer.diagnosis.tables import tables
from trainer.report.page import write_report
from trainer.runs.files import finite, replace_file
from trainer.runs.named_checkpoint import RunCheckpoint, read_run_checkpoint


def main(arguments: Sequence[str], prog: str = "p3 diagnose") -> int:
    """Prints the tables and writes numbers and figures; returns 0, or 2 for what cannot be diagnosed."""
    config = parse(DiagnoseConfig, arguments, prog)
    started, used = time.perf_counter(), time.process_time()

    def say(message: str) -> None:
        print(f"[{time.perf_counter() - started:6.1f} s] {message}", file=sys.stderr, flush=True)

    _check(config)
    checkpoints = _checkpoints(config.checkpoint)
    out = config.out or checkpoints[-1].output(FOLDER)
    out.mkdir(parents=True, exist_ok=True)
    sizes = QUICK if config.quick else Sizes(states=config.states)
    found: dict[str, Diagnosis] = {}
    rollouts: dict[str, dict[str, Any]] = {}
    for checkpoint in checkpoints:
        say(f"{checkpoint.path}: {checkpoint.config.task}, {checkpoint.config.method}")
        subject = _gather(checkpoint, config, sizes, say)
        clip, pair = checkpoint.config.ppo.clip_param, _pair(found, subject)
        found[checkpoint.name] = diagnose(subject, sizes, clip=clip, seed=config.seed, say=say, pair=pair)
        rollouts[checkpoint.name] = subject.settings
    lines = _page(found, config, sizes)
    print("\n".join(lines))
    replace_file(out / TABLES, ("\n".join(lines) + "\n").encode())
    seconds = {"wall": time.perf_counter() - started, "cpu": time.process_time() - used}
    numbers = _numbers(found, rollouts, config, sizes, seconds)
    replace_file(out / NUMBERS, (json.dumps(numbers, indent=1, allow_nan=False) + "\n").encode())
    say(f"numbers: {out / NUMBERS}, tables: {out / TABLES}")
    _draw(found, out, checkpoints, say)
    return 0


def _draw(found: Mapping[str, Diagnosis], out: Path, checkpoints: Sequence[RunCheckpoint], say: Say) -> None:
    """The figures, and the run's report where they belong to it."""
    robots = {checkpoint.task.robot for checkpoint in checkpoints}
    names = None
    if len(robots) == 1:
        names = [name.removesuffix("_joint") for name in robots.pop().joint_names]
    figures = write_figures(found, out, names)
    say(f"figures: {out}/*.png" if figures else "no figures: matplotlib is missing; pip install 'p3kernels[train]'")
    run_dir = checkpoints[-1].run_dir
    if out == run_dir / FOLDER and (run_dir / "metrics.jsonl").exists():
        say(f"report: {write_report(run_dir)}")


def _check(config: DiagnoseConfig) -> None:
    if not config.checkpoint:
        raise ValueError("CHECKPOINT: expected at least one run directory or checkpoint file")
    for name in ("num_envs", "states"):
        value = getattr(config, name)
        if value is not None and value < 2:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least 2, got {value}")
    if not 0 <= config.seed < 2**62:
        raise ValueError(f"--seed: expected 0 <= seed < 2**62, got {config.seed}")


def _checkpoints(paths: Sequence[Path]) -> list[RunCheckpoint]:
    """As named; of one run directory also the one before LSFT, where there is one."""
    found = [read_run_checkpoint(path, newest=True) for path in paths]
    if len(paths) == 1 and paths[0].is_dir():
        earlier = before_switch(found[0])
        found = [*([earlier] if earlier is not None else []), *found]
    for checkpoint in found:
        check_method(checkpoint)
    names = [checkpoint.name for checkpoint in found]
    if len(set(names)) < len(names):
        raise ValueError("CHECKPOINT: expected each checkpoint once")
    return found


def _gather(checkpoint: RunCheckpoint, config: DiagnoseConfig, sizes: Sizes, say: Say) -> Subject:
    return gather(
        checkpoint,
        task=config.task,
        num_envs=config.num_envs,
        states=sizes.states,
        steps=sizes.steps,
        seed=config.seed,
        num_threads=config.num_threads,
        say=say,
    )


def _pair(found: Mapping[str, Diagnosis], subject: Subject) -> tuple[int, int] | None:
    """The actions of the first checkpoint's scatter for the others too, where they have as many."""
    for first in found.values():
        if len(first.variance_gap.action_std) == len(subject.states.action_std):
            return first.cloud.actions
    return None


def _page(found: Mapping[str, Diagnosis], config: DiagnoseConfig, sizes: Sizes) -> list[str]:
    title = ["# p3 diagnose", ""]
    if config.quick:
        title += [f"**--quick: {sizes.states} states and few samples. Rough numbers, not results.**", ""]
    return [*title, *tables(found)]


def _numbers(
    found: Mapping[str, Diagnosis],
    rollouts: Mapping[str, dict[str, Any]],
    config: DiagnoseConfig,
    sizes: Sizes,
    seconds: dict[str, float],
) -> dict[str, Any]:
    checkpoints = {}
    for name, diagnosis in found.items():
        numbers = asdict(diagnosis)
        numbers["cloud"].pop("points")
        for row in numbers["gradient_noise"].values():
            row.pop("action_noise")
        checkpoints[name] = {"rollout": rollouts[name], **numbers}
    return finite(
        {
            "versions": {"p3kernels": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "settings": {"seed": config.seed, "quick": config.quick, **asdict(sizes)},
            "seconds": seconds,
            "checkpoints": checkpoints,
        }
    )
