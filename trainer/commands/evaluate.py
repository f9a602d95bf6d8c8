"""`p3 eval`: policies judged side by side, on fixed terrains and seeds, in one simulator or in several.

Every policy sees the same tiles, starts, dynamics, noise, commands and pushes: they are drawn from the seed, and an
environment that ends draws nothing new.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from trainer.engines.registry import EngineName, check_engine, make_env
from trainer.evaluation.episodes import (
    PLANE,
    Episodes,
    Evaluation,
    default_terrains,
    evaluate,
    run_episodes,
    trial_task,
)
from trainer.evaluation.policy import Act, Candidate, acting_in, action_of, load_candidate
from trainer.evaluation.table import Row, markdown, numbers, plot
from trainer.tasks import LocomotionTask, TaskConfig, make_task
from trainer.tasks.settings import assigned, differences

__all__ = ["Evaluation", "action_of", "evaluate", "load_candidate", "terrain_difficulty"]


def terrain_difficulty(task: LocomotionTask, difficulty: float | None) -> float | None:
    """The difficulty to fix: 0 by default on terrains, none on a plane.

    Raises:
        ValueError: A difficulty for a task without terrains, or one that is not in [0, 1].
    """
    if not task.config.terrains:
        if difficulty is not None:
            raise ValueError(f"--difficulty: {task.config.name} has no terrains")
        return None
    if difficulty is not None and not 0 <= difficulty <= 1:
        raise ValueError(f"--difficulty: expected numbers in [0, 1], got {difficulty:g}")
    return difficulty or 0.0


@dataclass
class EvalConfig:
    """Judge trained policies side by side, on the same terrains, robots and random numbers."""

    checkpoints: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories (best.pt, else the newest checkpoint), checkpoint or policy files, or pretrained policies."""
    latent: tuple[Literal["mean", "sample", "policy"], ...] = ("mean",)
    """Act at the latent's mean (as deployed), at a sample of it, or with exploration noise too."""
    terrains: tuple[str, ...] = ()
    """plane, stairs, gaps, single_row_stones, ...; by default the last three of these on tasks with terrains, else the
    plane."""
    difficulty: tuple[float, ...] = (0.0,)
    """Difficulties of the terrains, in [0, 1], a part of the table each; nothing to the plane."""
    strengths: tuple[float, ...] = (0.0, 1.0)
    """Of randomised friction, masses and sensor noise, a part of the table each: 0 none, 1 as in training."""
    pushes: bool = True
    """Push the robots as in training, every 5 to 10 s."""
    episodes: int = 100
    """On each terrain, at each difficulty and strength; they run in parallel."""
    seconds: float = 20.0
    """Length of an episode."""
    task: str | None = None
    """Whose rewards and commands count; the checkpoints' own by default, if they have the same."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SETTING=VALUE")] = ()
    """Change settings of that task, as for p3 train: max_tilt=0.8 dynamics.friction=0.2,0.4."""
    engine: tuple[EngineName, ...] = ("mujoco",)
    """Where, whatever a policy was trained in: native MuJoCo; mjlab or physx (the G1's tasks); several, one after the
    other from the same starts, a part of the table each."""
    device: str = "cpu"
    """Where mjlab simulates: cpu, cuda:0, ..."""
    seed: int = 1000
    """Of everything random; other than the training's."""
    num_threads: int | None = None
    """Simulator threads; all cores by default."""
    markdown: Path | None = None
    """Also write the table to this file."""
    json: Path | None = None
    """Write the numbers, terrain by terrain, to this file."""
    plot: Path | None = None
    """Draw bars into this file (.png, .svg or .pdf)."""


def main(arguments: Sequence[str], prog: str = "p3 eval") -> int:
    """Prints the table, and writes what was asked for."""
    config = tyro.cli(EvalConfig, args=list(arguments), prog=prog)
    try:
        _check(config)
        candidates = [load_candidate(source) for source in config.checkpoints]
        for candidate in candidates:
            if candidate.choice:
                print(candidate.choice, file=sys.stderr)
            if not candidate.has_contract:
                print(f"{candidate.path}: saved without a contract; takes that of {candidate.config.task}")
        task = _task(config, candidates)
        print(_heading(config, task))
        rows = [row for engine in config.engine for row in compare(candidates, task, config, engine)]
        conditions = list(dict.fromkeys(row.condition for row in rows))
        rows.sort(key=lambda row: conditions.index(row.condition))
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    table = markdown(rows)
    print(table)
    if config.markdown is not None:
        config.markdown.write_text(f"{_heading(config, task)}\n\n{table}\n", encoding="utf-8")
    if config.json is not None:
        content = {"protocol": _protocol(config, task), "results": [numbers(row) for row in rows]}
        config.json.write_text(json.dumps(_finite(content), indent=2) + "\n", encoding="utf-8")
    if config.plot is not None:
        plot(rows, config.plot)
    return 0


def compare(candidates: Sequence[Candidate], task: TaskConfig, config: EvalConfig, engine: EngineName) -> list[Row]:
    """One row for each policy, way of acting, difficulty and strength; those under one condition are side by side.

    Args:
        candidates: The policies.
        task: Whose rewards and commands count.
        config: How they are judged.
        engine: Where.

    Raises:
        ValueError: A policy's contract does not fit, or a setting cannot be.
    """
    terrains = config.terrains or default_terrains(task)
    grades: Sequence[float | None] = (None,) if set(terrains) == {PLANE} else config.difficulty
    parts = [(grade, strength, terrain) for grade in grades for strength in config.strengths for terrain in terrains]
    trial_tasks = [trial_task(task, t, s, config.seconds, pushes=config.pushes) for _, s, t in parts]
    for candidate in candidates:  # what cannot run is said before anything has run
        acting_in(candidate, trial_tasks[0], "mean")
    found: dict[tuple[int, str, float | None, float], dict[str, Episodes]] = {}
    progress = _Progress(len(parts) * len(candidates) * len(config.latent))
    for (grade, strength, terrain), trial in zip(parts, trial_tasks, strict=True):
        fixed = None if terrain == PLANE else grade
        for index, latent, episodes in _part(candidates, trial, fixed, config, engine):
            found.setdefault((index, latent, grade, strength), {})[terrain] = episodes
            progress.done(f"{engine}: {candidates[index].label}, z {latent}, {terrain}, × {strength:g}")
    return [
        Row(
            candidate.label,
            candidate.config.method,
            latent,
            grade,
            strength,
            found[index, latent, grade, strength],
            engine,
        )
        for grade in grades
        for strength in config.strengths
        for index, candidate in enumerate(candidates)
        for latent in config.latent
    ]


def _part(
    candidates: Sequence[Candidate],
    task: LocomotionTask,
    difficulty: float | None,
    config: EvalConfig,
    engine: EngineName,
) -> Iterator[tuple[int, str, Episodes]]:
    """Every policy in the same environments from the same beginning."""
    env = make_env(
        engine,
        task.config,
        config.episodes,
        seed=config.seed,
        device=config.device,
        num_threads=config.num_threads,
        difficulty=difficulty,
        auto_reset=False,
    )
    beginning = env.state_dict()
    for index, candidate in enumerate(candidates):
        for latent in config.latent:
            env.load_state_dict(beginning)
            torch.manual_seed(config.seed)
            act = _on_cpu(acting_in(candidate, task, latent), env.device)
            yield index, latent, run_episodes(act, env, config.seconds)


def _on_cpu(act: Act, device: str) -> Act:
    """`act`, whose networks are on the CPU, for an environment on `device`."""
    return lambda observations: act(observations.cpu()).to(device)


def _check(config: EvalConfig) -> None:
    if not config.checkpoints:
        raise ValueError("CHECKPOINT: expected at least one run directory or checkpoint file")
    for engine in config.engine:
        check_engine(engine, config.device)
    if not config.seconds > 0 or config.episodes < 1:
        raise ValueError("--seconds and --episodes: expected positive numbers")
    for option in ("engine", "latent", "difficulty", "strengths"):
        if not getattr(config, option):
            raise ValueError(f"--{option}: expected at least one")
    for difficulty in config.difficulty:
        if not 0 <= difficulty <= 1:
            raise ValueError(f"--difficulty: expected numbers in [0, 1], got {difficulty:g}")
    for option in ("markdown", "json", "plot"):
        path = getattr(config, option)
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"--{option}: no directory {path.parent}")
    if config.plot is not None and config.plot.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--plot: expected a name ending in .png, .svg or .pdf, got {config.plot}")


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
                f"--task: {candidate.label} has other settings than {candidates[0].label}"
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


def _finite(value: Any) -> Any:
    """As JSON can have it: null where an interval is without end."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Progress:
    """A line on stderr after each part, with the time that the rest will take."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._begin = total, 0, time.monotonic()

    def done(self, what: str) -> None:
        self._done += 1
        passed = time.monotonic() - self._begin
        left = passed / self._done * (self._total - self._done)
        print(f"{self._done}/{self._total} {what}: {passed:.0f} s, about {left:.0f} s left", file=sys.stderr)
