"""The actor of P³ as an rsl_rl model: encoder, decoder and policy network, and the estimator of its likelihood.

Usable from any rsl_rl project: `class_name: "trainer.models:P3Actor"`, with `trainer.algorithms:P3PPO`. The decoder
lives here so that rsl_rl's optimiser, checkpoints and multi-GPU code cover it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rsl_rl.modules import EmpiricalNormalization
from tensordict import TensorDict
from torch import Tensor, nn

from p3kernels import MomentMatching, MonteCarlo
from p3kernels.estimators import MomentMatchingPolicy, MonteCarloPolicy
from trainer.models.networks import Decoder, Encoder, Latent, mlp

Estimator = MomentMatching | MonteCarlo
Policy = MomentMatchingPolicy | MonteCarloPolicy


class P3Actor(nn.Module):
    """Observation groups → marginal policy.

    Args:
        obs: Observation groups, for their sizes.
        obs_groups: rsl_rl's observation sets; `obs_groups[obs_set]` must hold the three groups below.
        obs_set: "actor".
        output_dim: A.
        hidden_dims: Widths of the policy network.
        init_std: Exploration noise at the beginning.
        scan_shape: Rows and columns of the exteroception.
        proprio_latent: Size of the history's latent.
        extero_latent: Size of the scan's latent.
        obs_normalization: Running mean and variance of the inputs, frozen over rollout and update.
        groups: Names of the proprioception, history and exteroception groups.
    """

    is_recurrent: bool = False

    def __init__(
        self,
        obs: TensorDict,
        obs_groups: Mapping[str, Sequence[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: Sequence[int] = (512, 256, 128),
        init_std: float = 1.0,
        scan_shape: Sequence[int] = (11, 17),
        proprio_latent: int = 10,
        extero_latent: int = 100,
        obs_normalization: bool = True,
        groups: Sequence[str] = ("proprio", "history", "extero"),
    ) -> None:
        super().__init__()
        missing = [name for name in groups if name not in obs_groups[obs_set]]
        if missing:
            raise ValueError(f"obs_groups[{obs_set!r}]: expected the groups {list(groups)}, missing {missing}")
        if not init_std > 0:
            raise ValueError(f"init_std: expected a positive number, got {init_std}")
        self.obs_groups = list(groups)
        proprio, history, extero = (obs[name].shape[-1] for name in groups)
        if history % proprio:
            raise ValueError(f"history: expected a multiple of the proprioception's {proprio} columns, got {history}")
        shape = (scan_shape[0], scan_shape[1])
        if math.prod(shape) != extero:
            raise ValueError(f"scan_shape: {shape} has {math.prod(shape)} points, the group {groups[2]!r} {extero}")
        self.proprio_size, self.frames = proprio, history // proprio
        self.obs_dim = proprio + history + extero
        self.encoder = Encoder(history, shape, proprio_latent, extero_latent)
        self.decoder = Decoder(proprio, output_dim, shape, proprio_latent, extero_latent)
        self.mlp = mlp([proprio + 3 + proprio_latent + extero_latent, *hidden_dims, output_dim])
        self.log_std = nn.Parameter(torch.full((output_dim,), math.log(init_std)))
        self.proprio_normalizer = EmpiricalNormalization(proprio) if obs_normalization else nn.Identity()
        self.scan_normalizer = EmpiricalNormalization(extero) if obs_normalization else nn.Identity()
        last = self.mlp[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():  # small first actions: the stance, not a random pose
            last.weight.mul_(0.1)
            last.bias.zero_()
        self.estimator: Estimator = MomentMatching()
        self._policy: Policy | None = None

    @property
    def action_std(self) -> Tensor:
        """[A]: the exploration noise, positive whatever the parameter."""
        return self.log_std.exp()

    def inputs(self, obs: TensorDict) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised proprioception [B, P], history [B, H·P] and scan [B, S]."""
        proprio, history, scan = (obs[name] for name in self.obs_groups)
        frames = self.proprio_normalizer(history.unflatten(-1, (self.frames, -1)))
        return self.proprio_normalizer(proprio), frames.flatten(-2), self.scan_normalizer(scan)

    def encode(self, obs: TensorDict) -> tuple[Tensor, Latent]:
        """The deterministic part of the policy's input [B, P + 3] and the latent distribution."""
        proprio, history, scan = self.inputs(obs)
        latent = self.encoder(history, scan)
        return torch.cat([proprio, latent.velocity], -1), latent

    def policy(self, obs: TensorDict) -> tuple[Policy, Latent]:
        """The marginal policy of the active estimator, and the latent distribution it marginalises."""
        context, latent = self.encode(obs)
        return self.estimator.policy(self.mlp, context, latent.mean, latent.std, self.action_std), latent

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
        if isinstance(self.proprio_normalizer, EmpiricalNormalization):
            assert isinstance(self.scan_normalizer, EmpiricalNormalization)
            proprio, _, scan = (obs[name] for name in self.obs_groups)
            self.proprio_normalizer.update(proprio)
            self.scan_normalizer.update(scan)

    @property
    def current_policy(self) -> Policy:
        """Of the last stochastic call."""
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
        """Mean and std [B, A] under moment matching; a mixture has no such parameters."""
        policy = self.current_policy
        return (policy.mean, policy.stddev) if isinstance(policy, MomentMatchingPolicy) else ()

    def get_output_log_prob(self, outputs: Tensor) -> Tensor:
        """[B] of actions [B, A] under the last stochastic call's policy."""
        return self.current_policy.log_prob(outputs)

    def get_kl_divergence(self, old_params: tuple[Tensor, ...], new_params: tuple[Tensor, ...]) -> Tensor:
        """[B]: closed form between two moment-matched policies."""
        if not old_params or not new_params:
            raise ValueError("a Monte Carlo policy has no closed-form KL; P3PPO estimates it from log-probabilities")
        return gaussian_kl(*old_params, *new_params)

    def reset(self, dones: Tensor | None = None, hidden_state: Any = None) -> None:
        """Nothing: there is no memory but the history in the observation."""

    def get_hidden_state(self) -> None:
        """None: not recurrent."""

    def detach_hidden_state(self, dones: Tensor | None = None) -> None:
        """Nothing to detach."""

    def as_jit(self) -> DeployedPolicy:
        """The deployed policy, encoder and normalisers included."""
        return DeployedPolicy(self)

    def as_onnx(self, verbose: bool = False) -> DeployedPolicy:
        """As `as_jit`; `verbose` is rsl_rl's."""
        return DeployedPolicy(self)


class DeployedPolicy(nn.Module):
    """Raw observations → action at the latent's mean: all that a robot needs, nothing else.

    Args:
        actor: Copied, not shared.
    """

    is_recurrent = False

    def __init__(self, actor: P3Actor) -> None:
        super().__init__()
        self.frames, self.proprio_size = actor.frames, actor.proprio_size
        self.proprio_normalizer = copy.deepcopy(actor.proprio_normalizer)
        self.scan_normalizer = copy.deepcopy(actor.scan_normalizer)
        encoder = copy.deepcopy(actor.encoder)
        self.rows, self.columns = encoder.scan_shape
        self.proprio_latent, self.extero_latent = encoder.proprio_latent, encoder.extero_latent
        self.history_encoder, self.history_head = encoder.history, encoder.history_head
        self.scan_encoder, self.scan_head = encoder.scan, encoder.scan_head
        self.mlp = copy.deepcopy(actor.mlp)

    def forward(self, proprio: Tensor, history: Tensor, extero: Tensor) -> Tensor:
        """Action [B, A] of proprio [B, P], history [B, H·P] and extero [B, S], not normalised."""
        frames = self.proprio_normalizer(history.view(-1, self.frames, self.proprio_size))
        features = self.history_head(self.history_encoder(frames.view(-1, self.frames * self.proprio_size)))
        mean = features[:, : self.proprio_latent]
        velocity = features[:, 2 * self.proprio_latent :]
        scan_mean = self.scan_head(self.scan_encoder(self.scan_normalizer(extero)))[:, : self.extero_latent]
        return self.mlp(torch.cat([self.proprio_normalizer(proprio), velocity, mean, scan_mean], -1))

    def get_dummy_inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Zeros of the right shapes, for tracing."""
        sizes = (self.proprio_size, self.frames * self.proprio_size, self.rows * self.columns)
        proprio, history, extero = (torch.zeros(1, size) for size in sizes)
        return proprio, history, extero

    @property
    def input_names(self) -> list[str]:
        """As in `forward`."""
        return ["proprio", "history", "extero"]

    @property
    def output_names(self) -> list[str]:
        """["actions"]."""
        return ["actions"]


def gaussian_kl(old_mean: Tensor, old_std: Tensor, new_mean: Tensor, new_std: Tensor) -> Tensor:
    """KL(old ‖ new) [B] of diagonal Gaussians [B, A]."""
    ratio = old_std / new_std
    shift = (old_mean - new_mean) / new_std
    return (0.5 * (ratio.square() + shift.square() - 1.0) - ratio.log()).sum(-1)
