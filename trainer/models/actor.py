"""What every actor shares: inputs and their statistics, the policy network, and the face that rsl_rl sees.

An actor encodes observations into a deterministic context and a latent distribution (of no columns, where it has no
latent), acts on both through one policy network, and brings the loss that trains its representation. Which estimator
of the marginal likelihood is used and which ranks train it is not its business: the algorithm sets `estimator` and
`ranks`.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rsl_rl.modules import EmpiricalNormalization
from tensordict import TensorDict
from torch import Tensor, nn

from p3kernels import LatentMean
from p3kernels.estimators import Estimator, Policy
from p3kernels.estimators.gaussian import gaussian_kl
from trainer.config import HIDDEN_DIMS
from trainer.models.latent_noise import LatentNoise
from trainer.models.networks import Latent, mlp
from trainer.models.ranks import ONE_RANK


@dataclass(frozen=True)
class RepresentationLoss:
    """What trains an actor's representation beside the policy gradient."""

    parts: dict[str, Tensor]
    """Its terms, unweighted, by name: the log has them so."""
    weights: dict[str, float]
    """Weights of the terms in the whole loss, by the same names in the same order."""
    made: tuple[Tensor, ...] | None = None
    """The same terms in the same order, where several were made as one tensor [n]; None where each stands alone."""

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        """The terms to sum: [] or [n] each."""
        return tuple(self.parts.values()) if self.made is None else self.made

    @property
    def total(self) -> Tensor:
        """Their weighted sum; there is at least one."""
        return sum((self.weights[name] * part for name, part in self.parts.items()), torch.zeros(()))


class LatentActor(nn.Module, abc.ABC):
    """Observation groups → policy.

    Args:
        obs: Observation groups, for their sizes.
        obs_groups: rsl_rl's observation sets; `obs_groups[obs_set]` must hold `groups`.
        obs_set: "actor".
        output_dim: A.
        hidden_dims: Widths of the policy network.
        init_std: Exploration noise at the beginning.
        scan_shape: Rows and columns of the exteroception; nothing to an actor without it.
        obs_normalization: Running mean and variance of the inputs, frozen over rollout and update.
        groups: Names of the groups that the actor reads: those of `body_groups`, and the exteroception's after them
            where there is one. None for the usual names, with "extero" where the observation set has it.
    """

    body_groups: tuple[str, ...] = ("proprio", "history")
    """The usual names of the groups that it reads beside the exteroception; the proprioception is the first."""
    is_recurrent: bool = False
    mlp: nn.Sequential
    log_std: nn.Parameter
    latent_noise: LatentNoise | None
    """The weight of the Σλ term; None without that term."""

    def __init__(
        self,
        obs: TensorDict,
        obs_groups: Mapping[str, Sequence[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: Sequence[int] = HIDDEN_DIMS,
        init_std: float = 1.0,
        scan_shape: Sequence[int] = (11, 17),
        *,
        obs_normalization: bool = True,
        groups: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if not init_std > 0:
            raise ValueError(f"init_std: expected a positive number, got {init_std}")
        self.num_actions, self.hidden_dims, self.init_std = output_dim, tuple(hidden_dims), init_std
        self.obs_groups = self._groups_read(groups, obs_groups[obs_set], obs_set)
        self.scan_group = self.obs_groups[-1] if len(self.obs_groups) > len(self.body_groups) else None
        self.proprio_size, self.scan_size, self.scan_shape = obs[self.obs_groups[0]].shape[-1], 0, None
        if self.scan_group is not None:
            self.scan_size = obs[self.scan_group].shape[-1]
            self.scan_shape = _grid(scan_shape, self.scan_group, self.scan_size)
        self.obs_dim = sum(obs[name].shape[-1] for name in self.obs_groups)
        self.proprio_normalizer = EmpiricalNormalization(self.proprio_size) if obs_normalization else nn.Identity()
        has_statistics = obs_normalization and self.scan_group is not None
        self.scan_normalizer = EmpiricalNormalization(self.scan_size) if has_statistics else nn.Identity()
        self.estimator: Estimator = LatentMean()
        self.latent_noise: LatentNoise | None = None
        self.ranks = ONE_RANK
        self._policy: Policy | None = None

    def _groups_read(self, groups: Sequence[str] | None, present: Sequence[str], obs_set: str) -> list[str]:
        """The names of the groups that the actor reads, checked against the observation set."""
        if groups is None:
            groups = [*self.body_groups, *(name for name in ("extero",) if name in present)]
        if len(groups) - len(self.body_groups) not in (0, 1):
            expected = ", ".join(self.body_groups)
            raise ValueError(f"groups: expected the names of {expected} and, if there is one, the scan, got {groups}")
        missing = [name for name in groups if name not in present]
        if missing:
            raise ValueError(f"obs_groups[{obs_set!r}]: expected the groups {list(groups)}, missing {missing}")
        unread = [name for name in present if name not in (*groups, "history")]
        if unread:
            raise ValueError(
                f"obs_groups[{obs_set!r}]: {type(self).__name__} reads {list(groups)} and nothing of {unread};"
                " name the groups that it has to read in its setting `groups`"
            )
        return list(groups)

    def scan_of(self, obs: TensorDict) -> Tensor:
        """The exteroception [B, S], normalised; [B, 0] without one."""
        if self.scan_group is None:
            return obs[self.obs_groups[0]][..., :0]
        return self.scan_normalizer(obs[self.scan_group])

    def _make_policy_network(self, inputs: int) -> None:
        self.mlp = mlp([inputs, *self.hidden_dims, self.num_actions])
        self.log_std = nn.Parameter(torch.full((self.num_actions,), math.log(self.init_std)))
        last = self.mlp[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():  # small first actions: the stance, not a random pose
            last.weight.mul_(0.1)
            last.bias.zero_()

    @abc.abstractmethod
    def normalised(self, obs: TensorDict) -> dict[str, Tensor]:
        """What the encoder reads, by name: [B, ...] each. Statistics are frozen over an update: once is enough."""

    @abc.abstractmethod
    def encode_normalised(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Latent]:
        """The deterministic part of the policy's input [B, C] and the latent distribution, of what is normalised."""

    def encode(self, obs: TensorDict) -> tuple[Tensor, Latent]:
        """The deterministic part of the policy's input [B, C] and the latent distribution."""
        return self.encode_normalised(self.normalised(obs))

    def targets(self, observations: TensorDict) -> dict[str, Tensor]:
        """What the representation is trained towards, of a flattened rollout [T·E]: computed once an update.

        Args:
            observations: With `next_proprio` [T·E, P] and `next_valid` [T·E, 1].
        """
        return {}

    def representation_loss(
        self, policy: Policy, latent: Latent, batch: Mapping[str, Any], rollout: Mapping[str, Any]
    ) -> RepresentationLoss:
        """The representation's loss on a minibatch; nothing, for a representation that only the policy trains.

        Args:
            policy: Policy of the minibatch.
            latent: Latent of the minibatch.
            batch: The rows of `rollout` that are in it; `rows` [B] are their numbers.
            rollout: The flattened rollout: `targets`, `actions`, `continues` (1 where the next step is of the same
                episode); row t·E + e is step t of environment e.
        """
        return RepresentationLoss({}, {})

    def after_step(self, taken: Tensor | None = None) -> None:
        """Called after every optimiser step.

        Args:
            taken: A 0-d bool, where it is known to the device alone whether the step was taken; None if it was.
        """

    @abc.abstractmethod
    def as_jit(self) -> nn.Module:
        """The deployed policy: raw observations → action, encoder and normalisers included; a copy."""

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """As `as_jit`; `verbose` is rsl_rl's."""
        return self.as_jit()

    @property
    def action_std(self) -> Tensor:
        """[A]: the exploration noise, positive whatever the parameter."""
        return self.log_std.exp()

    def policy(self, obs: TensorDict) -> tuple[Policy, Latent]:
        """The marginal policy of the active estimator, and the latent distribution it marginalises."""
        context, latent = self.encode(obs)
        return self.policy_of(context, latent), latent

    def policy_of(self, context: Tensor, latent: Latent) -> Policy:
        """The marginal policy of what `encode` gave."""
        return self.estimator.policy(self.mlp, context, latent.mean, latent.std, self.action_std)

    def recall(
        self, context: Tensor, latent: Latent, remembered: Mapping[str, Tensor], seed: Tensor | None = None
    ) -> Policy:
        """The policy, at what `encode` gave, in which remembered actions are judged: `Estimator.recall`."""
        return self.estimator.recall(self.mlp, context, latent.mean, latent.std, self.action_std, remembered, seed)

    def act_at_mean(self, obs: TensorDict) -> Tensor:
        """[B, A]: the deployed action, the policy network at the mean of the latent."""
        context, latent = self.encode(obs)
        return self.mlp(torch.cat([context, latent.mean], -1))

    def act_at_sample(self, obs: TensorDict) -> Tensor:
        """[B, A]: the policy network at a sample of the latent, without exploration noise."""
        context, latent = self.encode(obs)
        noise = torch.randn_like(latent.mean)
        return self.mlp(torch.cat([context, latent.mean + latent.std * noise], -1))

    def forward(
        self,
        obs: TensorDict,
        masks: Tensor | None = None,
        hidden_state: Any = None,
        stochastic_output: bool = False,
    ) -> Tensor:
        """rsl_rl's call: a sample of the marginal policy, or the deployed action."""
        if not stochastic_output:
            return self.act_at_mean(obs)
        self._policy, _ = self.policy(obs)
        return self._policy.sample()

    def update_normalization(self, obs: TensorDict) -> None:
        """Moves the statistics by observations [B]. P3PPO calls it after an update, never within a rollout."""
        for normalizer, group in (
            (self.proprio_normalizer, self.obs_groups[0]),
            (self.scan_normalizer, self.scan_group),
        ):
            if isinstance(normalizer, EmpiricalNormalization):
                normalizer.update(obs[group])

    @property
    def current_policy(self) -> Policy:
        """Policy of the last stochastic call."""
        if self._policy is None:
            raise RuntimeError("no policy yet: call the actor with stochastic_output=True first")
        return self._policy

    @property
    def output_mean(self) -> Tensor:
        """[B, A] of the last stochastic call."""
        return self.current_policy.mean

    @property
    def output_std(self) -> Tensor:
        """[A]: exploration alone; rsl_rl logs its mean."""
        return self.action_std

    @property
    def output_entropy(self) -> Tensor:
        """[B] of the last stochastic call."""
        return self.current_policy.entropy()

    @property
    def output_distribution_params(self) -> tuple[Tensor, ...]:
        """Mean [B, A] and std [B, A] or Cholesky factor [B, A, A] of a Gaussian policy; nothing of a mixture."""
        return self.current_policy.params

    def get_output_log_prob(self, outputs: Tensor) -> Tensor:
        """[B] of actions [B, A] under the last stochastic call's policy."""
        return self.current_policy.log_prob(outputs)

    def get_kl_divergence(self, old_params: tuple[Tensor, ...], new_params: tuple[Tensor, ...]) -> Tensor:
        """[B]: closed form between two Gaussian policies."""
        if not old_params or not new_params:
            raise ValueError("a Monte Carlo policy has no closed-form KL; P3PPO estimates it from log-probabilities")
        return gaussian_kl(*old_params, *new_params)

    def reset(self, dones: Tensor | None = None, hidden_state: Any = None) -> None:
        """Nothing: there is no memory but the history in the observation."""

    def get_hidden_state(self) -> None:
        """None: not recurrent."""

    def detach_hidden_state(self, dones: Tensor | None = None) -> None:
        """Nothing to detach."""


def _grid(shape: Sequence[int], group: str, points: int) -> tuple[int, int]:
    """Rows and columns of a scan, checked."""
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"scan_shape: expected rows and columns of the group {group!r}, got {tuple(shape)}")
    if math.prod(shape) != points:
        raise ValueError(f"scan_shape: {tuple(shape)} has {math.prod(shape)} points, the group {group!r} {points}")
    return shape[0], shape[1]


def observation_sets(obs: TensorDict, sets: dict[str, list[str]]) -> dict[str, list[str]]:
    """rsl_rl's `obs_groups`, checked: the sets "actor" and "critic", of groups that the environment has."""
    present = list(obs.keys())
    for name in ("actor", "critic"):
        if name not in sets:
            raise ValueError(f"obs_groups: expected the observation set {name!r}, got {list(sets)}")
        missing = [group for group in sets[name] if group not in present]
        if missing:
            raise ValueError(f"obs_groups[{name!r}]: the environment has no group {missing}; it has {present}")
    return sets
