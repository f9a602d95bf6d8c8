"""Trained policies from disk, acting on the observations of a task that may order them otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.algorithms import P3PPO
from trainer.config import TrainConfig, rsl_rl_config
from trainer.contract import Contract, Matching, match
from trainer.env import LocomotionEnv
from trainer.models.actor import LatentActor
from trainer.run_checkpoint import read_run_checkpoint
from trainer.tasks import LocomotionTask, make_task

Act = Callable[[TensorDict], Tensor]


@dataclass(frozen=True)
class Candidate:
    """A policy to be judged or exported."""

    actor: LatentActor
    config: TrainConfig
    path: Path
    """Of the checkpoint."""
    contract: Contract
    has_contract: bool
    """False where the checkpoint is from before contracts were saved, and its task's stands for it."""

    @property
    def label(self) -> str:
        """Run and checkpoint."""
        return f"{self.path.resolve().parent.name}/{self.path.stem}"


def load_candidate(source: Path) -> Candidate:
    """The policy of a run directory (its latest checkpoint) or of a checkpoint in one.

    Raises:
        FileNotFoundError: No run or no checkpoint there.
        ValueError: The checkpoint is damaged, foreign, of another version or of another task than its run.
    """
    found = read_run_checkpoint(source)
    config, path = found.config, found.path
    task = make_task(config.task)
    env = LocomotionEnv(task, 1, num_threads=0)
    algorithm = P3PPO.construct_algorithm(env.get_observations(), env, rsl_rl_config(config), "cpu")
    algorithm.load(found.content["algorithm"], None, True)
    algorithm.eval_mode()
    saved = found.content.get("contract")
    try:
        contract = task.contract if saved is None else Contract.from_dict(saved)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Candidate(algorithm.actor, config, path, contract, saved is not None)


def action_of(actor: LatentActor, latent: str) -> Act:
    """How to act: "mean" of the latent as deployed, a "sample" of it, or the whole "policy" with exploration."""
    if latent == "policy":
        return lambda observations: actor(observations, stochastic_output=True)
    return {"mean": actor.act_at_mean, "sample": actor.act_at_sample}[latent]


def acting_in(candidate: Candidate, task: LocomotionTask, latent: str) -> Act:
    """The candidate's policy on the observations of `task`, with orders matched by name.

    Raises:
        ValueError: Naming what the two do not agree on.
    """
    try:
        matching = match(candidate.contract, task)
    except ValueError as error:
        raise ValueError(f"{candidate.path}: does not fit {task.config.name}: {error}") from error
    act = action_of(candidate.actor, latent)
    return act if matching.same else _reordered(act, matching)


def _reordered(act: Act, matching: Matching) -> Act:
    """`act`, which sees and returns columns in its own order, for observations and actions in the task's."""
    groups = {"proprio": matching.proprio, "history": matching.history, "extero": matching.scan}
    columns = {name: torch.tensor(indices) for name, indices in groups.items()}
    actions = torch.tensor(matching.action)

    def reordered(observations: TensorDict) -> Tensor:
        moved = {name: observations[name][:, indices] for name, indices in columns.items()}
        return act(TensorDict(moved, batch_size=observations.batch_size))[:, actions]

    return reordered
