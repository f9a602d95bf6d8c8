"""Trained policies from disk, acting on the observations of a task that may order them otherwise.

From a checkpoint to its actor: neither a simulator nor an optimiser is built for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rsl_rl.utils import resolve_callable
from tensordict import TensorDict
from torch import Tensor

from p3kernels.estimators import Estimator
from trainer.algorithms.methods import parse_method
from trainer.algorithms.plug_in import mismatch
from trainer.algorithms.rsl_rl_config import rsl_rl_config
from trainer.algorithms.schedule import EstimatorSchedule
from trainer.config import ResolvedConfig
from trainer.models.actor import LatentActor
from trainer.runs.named_checkpoint import RunCheckpoint, read_run_checkpoint
from trainer.tasks import LocomotionTask
from trainer.tasks.contract import Contract, Matching, match

Act = Callable[[TensorDict], Tensor]


@dataclass(frozen=True, kw_only=True)
class Candidate(RunCheckpoint):
    """A checkpoint as a policy to be judged or exported."""

    actor: LatentActor
    contract: Contract
    has_contract: bool
    """False where the checkpoint is from before contracts were saved, and its task's stands for it."""


def load_candidate(source: str | Path) -> Candidate:
    """The policy of a CHECKPOINT argument (`find_checkpoint`).

    Raises:
        FileNotFoundError: No run or no checkpoint there.
        ValueError: The checkpoint is damaged, foreign, of another version or of another task than its run.
    """
    found = read_run_checkpoint(source)
    path = found.path
    task = LocomotionTask(found.task)
    actor = make_actor(found.config, task)
    try:
        actor.load_state_dict(found.content["algorithm"]["actor_state_dict"])
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"{path}: other networks than its settings say: {mismatch(error)}") from error
    actor.estimator = _estimator(found.config, found.content["algorithm"])
    saved = found.content.get("contract")
    try:
        contract = task.contract if saved is None else Contract.from_dict(saved)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Candidate(**vars(found), actor=actor.eval(), contract=contract, has_contract=saved is not None)


def make_actor(config: ResolvedConfig, task: LocomotionTask) -> LatentActor:
    """The actor of a run's method, with first weights, for the observations of `task`."""
    settings = rsl_rl_config(config)
    options = settings["actor"]
    kind = resolve_callable(options.pop("class_name"))
    sizes = task.actor_groups
    nothing = TensorDict({name: torch.zeros(1, size) for name, size in sizes.items()}, batch_size=[1])
    return kind(nothing, {"actor": settings["obs_groups"]["actor"]}, "actor", task.num_actions, **options)


def _estimator(config: ResolvedConfig, algorithm: Mapping[str, Any]) -> Estimator:
    """The estimator that the checkpoint's next iteration would train with; of a file of weights alone, the first."""
    schedule = EstimatorSchedule(parse_method(config.method), config.switch_at)
    own = algorithm.get("p3_state")
    if own is not None:
        schedule.load_state_dict(own["estimators"])
    return schedule.estimator


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
