"""Policies judged side by side: the same tiles, starts, dynamics, noise, commands and pushes for each of them.

All of that is drawn from the seed, and an environment that ends draws nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from trainer.config import EngineName
from trainer.config.commands import Protocol
from trainer.engines.registry import make_env
from trainer.evaluation.episodes import PLANE, Episodes, default_terrains, run_episodes, trial_task
from trainer.evaluation.table import Row
from trainer.runs.policy import Act, Candidate, acting_in
from trainer.tasks import LocomotionTask, TaskConfig
from trainer.training.memory import check_memory


def number_of_parts(policies: int, task: TaskConfig, config: Protocol) -> int:
    """How often `compare` calls `done` for one engine."""
    terrains = config.terrains or default_terrains(task)
    grades = 1 if set(terrains) == {PLANE} else len(config.difficulty)
    return grades * len(config.strengths) * len(terrains) * policies * len(config.latent)


def compare(
    candidates: Sequence[Candidate],
    task: TaskConfig,
    config: Protocol,
    engine: EngineName,
    done: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """One row for each policy, way of acting, difficulty and strength; those under one condition are side by side.

    Args:
        candidates: The policies.
        task: Whose rewards and commands count.
        config: How they are judged.
        engine: Where.
        done: Called after each part, with what it was.

    Raises:
        ValueError: A policy's contract does not fit, or a setting cannot be.
    """
    terrains = config.terrains or default_terrains(task)
    check_memory("--episodes", config.episodes, task)
    grades: Sequence[float | None] = (None,) if set(terrains) == {PLANE} else config.difficulty
    parts = [(grade, strength, terrain) for grade in grades for strength in config.strengths for terrain in terrains]
    trial_tasks = [trial_task(task, t, s, config.seconds, pushes=config.pushes) for _, s, t in parts]
    for candidate in candidates:  # what cannot run is said before anything has run
        acting_in(candidate, trial_tasks[0], "mean")
    found: dict[tuple[int, str, float | None, float], dict[str, Episodes]] = {}
    for (grade, strength, terrain), trial in zip(parts, trial_tasks, strict=True):
        fixed = None if terrain == PLANE else grade
        for index, latent, episodes in _part(candidates, trial, fixed, config, engine):
            found.setdefault((index, latent, grade, strength), {})[terrain] = episodes
            done(f"{engine}: {candidates[index].name}, z {latent}, {terrain}, × {strength:g}")
    return [
        Row(
            candidate.name,
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
    config: Protocol,
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
