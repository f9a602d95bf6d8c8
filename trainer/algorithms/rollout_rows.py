"""The rows that an update is over: the stored rollout with what every epoch shares, and its minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from torch import Tensor

from trainer.algorithms.mirroring import Mirroring
from trainer.algorithms.rows import PackedRows, rows_of
from trainer.models.dense import critic_inputs
from trainer.models.ranks import Ranks

_MASKS = ("drawn", "next_valid")
"""What of a rollout says which rows count in a mean: 1 or 0."""


class RolloutRows:
    """The part of `P3PPO` that turns its storage into minibatches."""

    actor: Any
    critic: Any
    storage: RolloutStorage
    ranks: Ranks
    device: str
    iteration: int
    num_mini_batches: int
    mirroring: Mirroring | None
    on_phase: Callable[[str], None]
    deferred: bool
    _seed: Tensor | None
    _packed: PackedRows | None

    def _rollout(self) -> dict[str, Any]:
        """The rows that an update is over, with what it needs of them and the epochs share.

        Row t·E + e is step t of environment e; those of steps that are mirrored too come after the rollout's.
        """
        storage, actor = self.storage, self.actor
        rollout = {
            "observations": storage.observations.flatten(0, 1),
            "actions": storage.actions.flatten(0, 1),
            "values": storage.values.flatten(),
            "returns": storage.returns.flatten(),
            "advantages": storage.advantages.flatten(),
            "log_prob": storage.actions_log_prob.flatten(),
            "continues": 1.0 - storage.dones.flatten().float(),
        }
        self._seed = torch.randint(2**62, (1,))  # on the CPU, as the operators want it
        if actor.estimator.deferred:
            rollout["stream"] = self._streams()
            rollout |= self._remembered(rollout)
        else:
            stored = (values.flatten(0, 1) for values in storage.distribution_params)
            rollout |= dict(zip(actor.estimator.remembers, stored, strict=True))
        if self.mirroring is not None:
            rollout = self.mirroring.extended(rollout, self.iteration, storage.num_envs, self.critic, self._remembered)
        return {**rollout, **actor.targets(rollout["observations"]), "num_envs": storage.num_envs}

    def _prepared(self, rollout: dict[str, Any]) -> dict[str, Any]:
        """The rollout with what the networks read in the place of its observations.

        Statistics are frozen until the update is over: what is normalised is normalised once, not in every epoch. On a
        GPU all of it is side by side, so that a minibatch is one gather.
        """
        rows = {name: value for name, value in rollout.items() if name not in ("observations", "num_envs")}
        observations = rollout["observations"]
        rows |= {**self.actor.normalised(observations), "critic": critic_inputs(self.critic, observations)}
        rest = {"num_envs": rollout["num_envs"]}
        if self.deferred:
            self._packed = PackedRows(rows, self._packed)
            rows, rest["packed"] = self._packed.columns(), self._packed
        self.on_phase("prepared")
        return rows | rest

    def _streams(self) -> Tensor:
        """[T·E]: the number of a row among those of all ranks, by which an estimator may draw its noise."""
        steps, envs = self.storage.num_transitions_per_env, self.storage.num_envs
        own = torch.arange(envs, device=self.device) + envs * self.ranks.rank
        return (torch.arange(steps, device=self.device)[:, None] * (envs * self.ranks.size) + own).flatten()

    @torch.no_grad()
    def _remembered(self, rows: Mapping[str, Any]) -> dict[str, Tensor]:
        """What an update compares rows with, by the present weights; before its first step those are the rollout's.

        Args:
            rows: `observations` and `actions` [B], and what is known of them already, such as noise.
        """
        policy = self.actor.recall(*self.actor.encode(rows["observations"]), rows, self._seed)
        return policy.remember(rows["actions"])

    def _minibatches(self, rollout: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The rollout in a new order, in `num_mini_batches` parts.

        Of several ranks each part has MASK_count beside each mask: how many of its rows count, a mean over the ranks.
        All parts' are one message, so that ranks wait for each other once in a step, for its gradients.
        """
        parts = list(self._shuffled(rollout))
        masks = [name for name in _MASKS if name in rollout] if self.ranks.size > 1 else []
        own = [torch.stack([rollout[name][rows].sum() for rows in parts]) for name in masks]
        counts = self.ranks.mean(torch.stack(own)) if masks else torch.zeros(0, len(parts))
        for rows, numbers in zip(parts, counts.unbind(1), strict=True):
            known = {f"{name}_count": number for name, number in zip(masks, numbers.unbind(), strict=True)}
            yield {**self._batch(rollout, rows), **known}

    def _shuffled(self, rollout: dict[str, Any]) -> Iterator[Tensor]:
        """The numbers [B] of its rows in a new order, in parts; a rest that does not divide is left out."""
        size = len(rollout["actions"]) // self.num_mini_batches
        order = torch.randperm(len(rollout["actions"]), device=self.device)
        for start in range(0, size * self.num_mini_batches, size):
            yield order[start : start + size]

    @staticmethod
    def _batch(rollout: dict[str, Any], rows: Tensor) -> dict[str, Any]:
        """The rows [B] of a rollout."""
        if "packed" in rollout:
            return {**rollout["packed"].rows(rows), "rows": rows}
        batch = {name: rows_of(value, rows) for name, value in rollout.items() if not isinstance(value, int)}
        return {**batch, "rows": rows}
