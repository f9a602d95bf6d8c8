"""Evaluation while training: the same episodes at the same difficulties every time, and the best policy by them.

The episodes run in native MuJoCo, whatever the training simulates in, at the latent's mean, as a robot acts. They have
random numbers of their own: a training is the same, bit for bit, with and without them. The ranks divide the
difficulties, so that the numbers do not depend on how many ranks there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.algorithms.presets import task_of
from trainer.config import ResolvedConfig
from trainer.engines.mujoco.env import MujocoEnv
from trainer.evaluation.episodes import Episodes, run_episodes
from trainer.models.actor import LatentActor
from trainer.models.ranks import Ranks
from trainer.runs.checkpoint import best_path, load_checkpoint
from trainer.tasks import LocomotionTask, TaskConfig
from trainer.tasks.terrains import FLAT

SEED = 1_000
"""Seed of the episodes; other than the trainings', which begin at 1."""


class TrainingEvaluation:
    """The evaluations of a run, and the best of them so far.

    Args:
        config: The settings of the run.
        ranks: Which share the difficulties.

    Attributes:
        best: Iteration, success and reward of the best evaluation so far; None before the first.

    Raises:
        FileNotFoundError: Native MuJoCo does not find the robot.
    """

    def __init__(self, config: ResolvedConfig, ranks: Ranks) -> None:
        self.best: dict[str, float] | None = None
        self._interval, self._last, self._ranks = config.eval_interval, config.iterations, ranks
        self._envs: dict[float | None, tuple[MujocoEnv, dict[str, Any]]] = {}
        if not self._interval:
            return
        task = task_of(config)
        self._seconds = config.eval_seconds
        self._difficulties = list(config.eval_difficulty) if task.terrains else [None]
        threads = ranks.threads() if config.num_threads is None else config.num_threads
        for difficulty in self._difficulties[ranks.rank :: ranks.size]:
            env = _environment(replace(task, episode_seconds=self._seconds), difficulty, config.eval_episodes, threads)
            self._envs[difficulty] = env, env.state_dict()

    def resume(self, content: Mapping[str, Any], run_dir: Path) -> None:
        """Takes over the best evaluation so far, which the first rank reads."""
        self.best = self._ranks.from_first(lambda: best_so_far(content, run_dir))

    def is_due(self, iteration: int) -> bool:
        """Whether the policy is evaluated: every so many iterations, and after the last."""
        return self._interval > 0 and (iteration % self._interval == 0 or iteration == self._last)

    def judge(self, actor: LatentActor, iteration: int, save_best: Callable[[], None]) -> tuple[dict[str, float], str]:
        """Evaluates; called by all ranks.

        Args:
            actor: The policy.
            iteration: Its number.
            save_best: Writes `best.pt`, with what `best` then is; called where it is the best so far.

        Returns:
            The numbers, and a line about them.
        """
        numbers, before = self.measure(actor), self.best
        told = f"iteration {iteration}: evaluated: success {numbers['success']:.0%}, reward {numbers['reward']:.1f}"
        if before is not None and _rank(numbers) <= _rank(before):
            best = f"{before['success']:.0%}, {before['reward']:.1f}, of iteration {before['iteration']:g}"
            return numbers, f"{told}; the best is {best}"
        self.best = {"iteration": iteration, **numbers}
        try:
            save_best()
        except OSError as error:
            self.best = before
            return numbers, f"{told}, the best so far, but best.pt could not be written: {error.strerror or error}"
        return numbers, f"{told}, the best so far: best.pt"

    def measure(self, actor: LatentActor) -> dict[str, float]:
        """Runs the episodes; called by all ranks, returns the numbers of all of them."""
        started = time.perf_counter()
        random_state = torch.get_rng_state()
        own = {difficulty: self._episodes(actor, difficulty) for difficulty in self._envs}
        torch.set_rng_state(random_state)
        found = {difficulty: part for parts in self._ranks.gather(own) for difficulty, part in parts.items()}
        ordered = [found[difficulty] for difficulty in self._difficulties]
        whole = {name: torch.cat([part[name] for part in ordered]) for name in ordered[0]}
        numbers = {name: values.mean().item() for name, values in whole.items()}
        if len(ordered) > 1:
            for difficulty, part in zip(self._difficulties, ordered, strict=True):
                numbers[f"success_at_{difficulty:g}"] = part["success"].mean().item()
        return numbers | {"seconds": time.perf_counter() - started}

    def _episodes(self, actor: LatentActor, difficulty: float | None) -> dict[str, Tensor]:
        env, beginning = self._envs[difficulty]
        env.load_state_dict(beginning)
        device = actor.log_std.device

        def act(observations: TensorDict) -> Tensor:
            return actor.act_at_mean(observations.to(device)).cpu()

        episodes: Episodes = run_episodes(act, env, self._seconds)
        return {
            "success": episodes.success.float(),
            "fell": episodes.fell.float(),
            "reward": episodes.reward,
            "lifetime": episodes.lifetime,
        }


def best_so_far(content: Mapping[str, Any], run_dir: Path) -> dict[str, float] | None:
    """The best evaluation that a checkpoint knows, or that of `best.pt`, if that is better.

    It is where the run was killed between an evaluation and the next checkpoint. Without a readable `best.pt` there is
    none: the next evaluation is the best there is.
    """
    path = best_path(run_dir)
    try:
        kept = load_checkpoint(path).get("best") if path.exists() else None
    except ValueError:  # damaged: to be written again
        kept = None
    known = content.get("best")
    if kept is None or known is None:
        return kept
    return max(kept, known, key=_rank)


def _rank(numbers: Mapping[str, float]) -> tuple[float, float]:
    return numbers["success"], numbers["reward"]


def _environment(task: TaskConfig, difficulty: float | None, episodes: int, num_threads: int | None) -> MujocoEnv:
    if any(name != FLAT for name in task.terrains):  # flat ground, the same at every difficulty, says nothing of it
        task = replace(task, terrains=tuple(name for name in task.terrains if name != FLAT))
    return MujocoEnv(
        LocomotionTask(task), episodes, seed=SEED, num_threads=num_threads, difficulty=difficulty, auto_reset=False
    )
