"""`p3 eval`: policies judged side by side, on fixed terrains and seeds, in native MuJoCo or mjlab.

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
from trainer.evaluate_episodes import (
    PLANE,
    Episodes,
    Evaluation,
    default_terrains,
    evaluate,
    run_episodes,
    trial_task,
)
from trainer.evaluate_policy import Act, Candidate, acting_in, action_of, load_candidate
from trainer.evaluate_table import Row, markdown, numbers, plot
from trainer.tasks import LocomotionTask, TaskConfig, make_task

__all__ = ["Evaluation", "action_of", "evaluate", "load_candidate", "terrain_level"]


def terrain_level(task: LocomotionTask, level: int | None) -> int | None:
    """The level to fix: 0 by default on terrains, none on a plane.

    Raises:
        ValueError: A level for a task without terrains.
    """
    if not task.config.terrains:
        if level is not None:
            raise ValueError(f"--level: {task.config.name} has no terrain levels")
        return None
    return level or 0


@dataclass
class EvalConfig:
    """Judge trained policies side by side, on the same terrains, robots and random numbers."""

    checkpoints: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories (the latest checkpoint of each) or checkpoint files."""
    latent: tuple[Literal["mean", "sample", "policy"], ...] = ("mean",)
    """Act at the latent's mean (as deployed), at a sample of it, or with exploration noise too."""
    terrains: tuple[str, ...] = ()
    """plane, stairs, gaps, single_row_stones, ...; by default the last three of these on tasks with terrains, else the
    plane."""
    level: tuple[int, ...] = (0,)
    """Terrain levels, 0 to 5, a part of the table each; nothing to the plane."""
    strengths: tuple[float, ...] = (0.0, 1.0)
    """Of randomised friction, masses and sensor noise, a part of the table each: 0 none, 1 as in training."""
    pushes: bool = True
    """Push the robots as in training, every 5 to 10 s."""
    episodes: int = 100
    """On each terrain, at each level and strength; they run in parallel."""
    seconds: float = 20.0
    """Length of an episode."""
    task: str | None = None
    """Whose rewards and commands count; the checkpoints' own by default, if they have the same."""
    engine: EngineName = "mujoco"
    """Where: native MuJoCo, or mjlab (the G1's tasks); whatever a policy was trained in."""
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
            if not candidate.has_contract:
                print(f"{candidate.path}: saved without a contract; takes that of {candidate.config.task}")
        task = _task(config, candidates)
        print(_heading(config, task))
        rows = compare(candidates, task, config)
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


def compare(candidates: Sequence[Candidate], task: TaskConfig, config: EvalConfig) -> list[Row]:
    """One row for each policy, way of acting, level and strength; those under one condition are beside each other.

    Raises:
        ValueError: A policy's contract does not fit, or a setting cannot be.
    """
    terrains = config.terrains or default_terrains(task)
    levels: Sequence[int | None] = (None,) if set(terrains) == {PLANE} else config.level
    parts = [(level, strength, terrain) for level in levels for strength in config.strengths for terrain in terrains]
    trial_tasks = [trial_task(task, t, s, config.seconds, pushes=config.pushes) for _, s, t in parts]
    for candidate in candidates:  # what cannot run is said before anything has run
        acting_in(candidate, trial_tasks[0], "mean")
    found: dict[tuple[int, str, int | None, float], dict[str, Episodes]] = {}
    progress = _Progress(len(parts) * len(candidates) * len(config.latent))
    for (level, strength, terrain), trial in zip(parts, trial_tasks, strict=True):
        fixed = None if terrain == PLANE else level
        for index, latent, episodes in _part(candidates, trial, fixed, config):
            found.setdefault((index, latent, level, strength), {})[terrain] = episodes
            progress.done(f"{candidates[index].label}, z {latent}, {terrain}, × {strength:g}")
    return [
        Row(candidate.label, candidate.config.method, latent, level, strength, found[index, latent, level, strength])
        for level in levels
        for strength in config.strengths
        for index, candidate in enumerate(candidates)
        for latent in config.latent
    ]


def _part(
    candidates: Sequence[Candidate], task: LocomotionTask, level: int | None, config: EvalConfig
) -> Iterator[tuple[int, str, Episodes]]:
    """Every policy in the same environments from the same beginning."""
    env = make_env(
        config.engine,
        task.config,
        config.episodes,
        seed=config.seed,
        device=config.device,
        num_threads=config.num_threads,
        level=level,
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
    check_engine(config.engine, config.device)
    if not config.seconds > 0 or config.episodes < 1:
        raise ValueError("--seconds and --episodes: expected positive numbers")
    for option in ("latent", "level", "strengths"):
        if not getattr(config, option):
            raise ValueError(f"--{option}: expected at least one")
    for option in ("markdown", "json", "plot"):
        path = getattr(config, option)
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"--{option}: no directory {path.parent}")
    if config.plot is not None and config.plot.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--plot: expected a name ending in .png, .svg or .pdf, got {config.plot}")


def _task(config: EvalConfig, candidates: Sequence[Candidate]) -> TaskConfig:
    if config.task is not None:
        return make_task(config.task).config
    names = list(dict.fromkeys(candidate.config.task for candidate in candidates))
    if len(names) > 1:
        raise ValueError(f"--task: the checkpoints are of {' and '.join(names)}; say whose rewards and commands count")
    return make_task(names[0]).config


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
