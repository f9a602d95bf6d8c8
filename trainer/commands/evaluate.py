"""`p3 eval`: policies judged side by side, on fixed terrains and seeds, in one simulator or in several."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trainer.algorithms.presets import check_engine
from trainer.config.command_line import check_writable, parse
from trainer.config.commands import EvalConfig
from trainer.evaluation.compare import compare, number_of_parts
from trainer.evaluation.episodes import default_terrains
from trainer.evaluation.table import markdown, numbers, plot
from trainer.runs.files import finite
from trainer.runs.policy import Candidate, load_candidate
from trainer.tasks import TaskConfig, make_task
from trainer.tasks.settings import assigned, differences


def main(arguments: Sequence[str], prog: str = "p3 eval") -> int:
    """Prints the table, and writes what was asked for."""
    config = parse(EvalConfig, arguments, prog)
    _check(config)
    candidates = [load_candidate(source) for source in config.checkpoints]
    for candidate in candidates:
        if candidate.choice:
            print(candidate.choice, file=sys.stderr)
        if not candidate.has_contract:
            print(f"{candidate.path}: saved without a contract; takes that of {candidate.config.task}")
    task = _task(config, candidates)
    print(_heading(config, task))
    progress = _Progress(len(config.engine) * number_of_parts(len(candidates), task, config))
    rows = [row for engine in config.engine for row in compare(candidates, task, config, engine, progress.done)]
    conditions = list(dict.fromkeys(row.condition for row in rows))
    rows.sort(key=lambda row: conditions.index(row.condition))
    table = markdown(rows)
    print(table)
    if config.markdown is not None:
        config.markdown.write_text(f"{_heading(config, task)}\n\n{table}\n", encoding="utf-8")
    if config.json is not None:
        content = {"protocol": _protocol(config, task), "results": [numbers(row) for row in rows]}
        config.json.write_text(json.dumps(finite(content), indent=2) + "\n", encoding="utf-8")
    if config.plot is not None:
        plot(rows, config.plot)
    return 0


def _check(config: EvalConfig) -> None:
    if not config.checkpoints:
        raise ValueError("CHECKPOINT: expected at least one run directory or checkpoint file")
    for engine in config.engine:
        check_engine(engine, config.device)
    for option in ("engine", "latent"):
        if not getattr(config, option):
            raise ValueError(f"--{option}: expected at least one")
    check_writable(config.markdown, "--markdown")
    check_writable(config.json, "--json")
    check_writable(config.plot, "--plot", (".png", ".svg", ".pdf"))


def _task(config: EvalConfig, candidates: Sequence[Candidate]) -> TaskConfig:
    if config.task is not None:
        return assigned(make_task(config.task).config, config.set)
    tasks = [candidate.task for candidate in candidates]
    names = list(dict.fromkeys(task.name for task in tasks))
    if len(names) > 1:
        raise ValueError(f"--task: the checkpoints are of {' and '.join(names)}; say whose rewards and commands count")
    for candidate, task in zip(candidates, tasks, strict=True):
        if task != tasks[0]:
            raise ValueError(
                f"--task: {candidate.name} has other settings than {candidates[0].name}"
                f" ({differences(tasks[0], task)[0]}); with --task {names[0]} they are judged by its defaults"
            )
    return assigned(tasks[0], config.set)


def _heading(config: EvalConfig, task: TaskConfig) -> str:
    pushed = "with pushes" if config.pushes else "without pushes"
    return (
        f"{task.name}: {config.episodes} episodes of {config.seconds:g} s on each of"
        f" {', '.join(config.terrains or default_terrains(task))}, {pushed}, seed {config.seed};"
        " means ± 95 % confidence"
    )


def _protocol(config: EvalConfig, task: TaskConfig) -> dict[str, Any]:
    settings = asdict(config)
    for name in ("checkpoints", "markdown", "json", "plot", "num_threads", "device"):
        del settings[name]
    return {**settings, "task": task.name, "terrains": list(config.terrains or default_terrains(task))}


class _Progress:
    """A line on stderr after each part, with the time that the rest will take."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._begin = total, 0, time.monotonic()

    def done(self, what: str) -> None:
        self._done += 1
        passed = time.monotonic() - self._begin
        left = passed / self._done * (self._total - self._done)
        print(f"{self._done}/{self._total} {what}: {passed:.0f} s, about {left:.0f} s left", file=sys.stderr)
