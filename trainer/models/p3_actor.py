"""The actor of P³ and of the VAE baselines as an rsl_rl model: encoder, decoder and policy network.

Usable from any rsl_rl project: `class_name: "trainer.models:P3Actor"`, with `trainer.algorithms:P3PPO`. The decoder
lives here so that rsl_rl's optimiser, checkpoints and multi-GPU code cover it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from trainer.models.actor import LatentActor, Policy, RepresentationLoss
from trainer.models.latent_noise import LatentNoise
from trainer.models.networks import Decoder, Encoder, Latent
from trainer.models.reconstruction import KL_REDUCTIONS, Reconstruction, latent_kl, reconstruction


class EncoderDecoderActor(LatentActor):
    """History and scan → latent and velocity estimate; the decoder reconstructs the next state and the scan.

    A robot without a scan has no second latent, an environment that does not know the velocity no estimate of it.

    Args:
        obs: Observation groups, for their sizes.
        *arguments: Further arguments of `LatentActor`.
        proprio_latent: Size of the history's latent.
        extero_latent: Size of the scan's latent; nothing without a scan.
        representation_coef: Weight of the representation's loss.
        velocity_group: Observation group with the true velocity; None where no velocity is to be estimated.
        **options: Options of `LatentActor`.
    """

    stochastic = True
    """Whether the latent is a distribution."""

    def __init__(
        self,
        obs: TensorDict,
        *arguments: Any,
        proprio_latent: int = 10,
        extero_latent: int = 100,
        representation_coef: float = 1.0,
        velocity_group: str | None = "velocity",
        **options: Any,
    ) -> None:
        super().__init__(obs, *arguments, **options)
        if velocity_group is not None and velocity_group not in obs.keys():  # noqa: SIM118  a TensorDict iterates over rows
            raise ValueError(
                f"observations: expected the group {velocity_group!r} with the true velocity; name another with the"
                " actor's setting velocity_group, or none (null in YAML) to estimate no velocity"
            )
        proprio, history = self.proprio_size, obs[self.obs_groups[1]].shape[-1]
        if history % proprio:
            raise ValueError(f"history: expected a multiple of the proprioception's {proprio} columns, got {history}")
        self.frames, self.velocity_group = history // proprio, velocity_group
        self.representation_coef = representation_coef
        extero_latent = 0 if self.scan_shape is None else extero_latent
        velocity = 0 if velocity_group is None else obs[velocity_group].shape[-1]
        self.encoder = Encoder(
            history,
            self.scan_shape,
            proprio_latent,
            extero_latent,
            stochastic=self.stochastic,
            velocity_size=velocity,
        )
        self.decoder = Decoder(
            proprio, self.num_actions, self.scan_shape, proprio_latent, extero_latent, velocity_size=velocity
        )
        inputs = proprio + velocity + proprio_latent + extero_latent
        self._make_policy_network(inputs)

    def normalised(self, obs: TensorDict) -> dict[str, Tensor]:
        """Proprioception `frame` [B, P], `history` [B, H·P] and `scan` [B, S]."""
        proprio, history = (obs[name] for name in self.obs_groups[:2])
        frames = self.proprio_normalizer(history.unflatten(-1, (self.frames, -1)))
        return {"frame": self.proprio_normalizer(proprio), "history": frames.flatten(-2), "scan": self.scan_of(obs)}

    def encode_normalised(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Latent]:
        """The deterministic part of the policy's input [B, P + 3] and the latent distribution."""
        latent = self.encoder(inputs["history"], inputs["scan"])
        return torch.cat([inputs["frame"], latent.velocity], -1), latent

    def targets(self, observations: TensorDict) -> dict[str, Tensor]:
        """Next proprioception, its validity, scan (normalised) and true velocity."""
        scan, next_proprio = self.scan_of(observations), observations["next_proprio"]
        return {
            "scan": scan,
            "next_proprio": self.proprio_normalizer(next_proprio),
            "next_valid": observations["next_valid"].squeeze(-1),
            "velocity": next_proprio[:, :0] if self.velocity_group is None else observations[self.velocity_group],
        }

    def reconstruct(self, sample: Tensor, latent: Latent, batch: Mapping[str, Any]) -> Reconstruction:
        """The errors of decoding `sample` [B, Z] of the latent."""
        decoded = self.decoder(sample, latent.velocity, batch["actions"])
        next_proprio, next_valid, scan, velocity = (
            batch[name] for name in ("next_proprio", "next_valid", "scan", "velocity")
        )
        count = batch.get("next_valid_count")
        return reconstruction(decoded, latent.velocity, next_proprio, next_valid, scan, velocity, self.ranks, count)

    def as_jit(self) -> nn.Module:
        """The deployed policy, encoder and normalisers included."""
        return DeployedPolicy(self) if self.scan_group is not None else DeployedBlindPolicy(self)


class P3Actor(EncoderDecoderActor):
    """The paper's network table: a β-VAE whose latent the actor acts on.

    Args:
        *arguments: Arguments of `EncoderDecoderActor`.
        beta: Weight of the latent's KL.
        kl_reduction: Reduction of that KL over the latent's dimensions: "mean" or "sum".
        latent_noise_coef: Weight of the Σλ term (`trainer.models.latent_noise`); 0 for none.
        latent_noise_target: Σv/σ² at which that weight is adapted to hold it; None for a constant weight.
        latent_init_scale: Factor on the policy network's first weights of the latent's columns.
        **options: Options of `EncoderDecoderActor`.
    """

    def __init__(
        self,
        *arguments: Any,
        beta: float = 0.1,
        kl_reduction: str = "mean",
        latent_noise_coef: float = 0.0,
        latent_noise_target: float | None = None,
        latent_init_scale: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        if kl_reduction not in KL_REDUCTIONS:
            raise ValueError(f"kl_reduction: expected one of {', '.join(KL_REDUCTIONS)}, got {kl_reduction!r}")
        if latent_noise_coef < 0:
            raise ValueError(f"latent_noise_coef: expected 0 or a positive number, got {latent_noise_coef}")
        if latent_noise_coef == 0 and latent_noise_target is not None:
            raise ValueError("latent_noise_target: expected a latent_noise_coef to begin with, got 0")
        if latent_init_scale < 0:
            raise ValueError(f"latent_init_scale: expected 0 or a positive number, got {latent_init_scale}")
        self.beta, self.kl_reduction = beta, kl_reduction
        if latent_noise_coef > 0:
            self.latent_noise = LatentNoise(latent_noise_coef, latent_noise_target)
        if latent_init_scale != 1.0:
            first = self.mlp[0]
            assert isinstance(first, nn.Linear)
            with torch.no_grad():
                first.weight[:, -(self.encoder.proprio_latent + self.encoder.extero_latent) :] *= latent_init_scale

    def representation_loss(
        self, policy: Policy, latent: Latent, batch: Mapping[str, Any], rollout: Mapping[str, Any]
    ) -> RepresentationLoss:
        """MSE(y) + β KL(q ‖ N(0, I)), decoding the latent that the policy saw."""
        errors = self.reconstruct(policy.latent(), latent, batch)
        kl = latent_kl(latent, self.encoder.proprio_latent, self.kl_reduction)
        parts, coef = errors.parts(), self.representation_coef
        weights = {**dict.fromkeys(parts, coef), "latent_kl": coef * self.beta}
        made = None if errors.made is None else (errors.made, kl)
        return RepresentationLoss({**parts, "latent_kl": kl}, weights, made)


class DeployedPolicy(nn.Module):
    """Raw observations → action at the latent's mean: all that a robot needs, nothing else.

    Args:
        actor: Copied, not shared.
    """

    is_recurrent = False
    input_names: ClassVar[list[str]] = ["proprio", "history", "extero"]
    """Names of the inputs, in the order of `forward`."""
    output_names: ClassVar[list[str]] = ["actions"]

    def __init__(self, actor: EncoderDecoderActor) -> None:
        super().__init__()
        self.frames, self.proprio_size, self.scan_size = actor.frames, actor.proprio_size, actor.scan_size
        self.proprio_normalizer = copy.deepcopy(actor.proprio_normalizer)
        self.scan_normalizer = copy.deepcopy(actor.scan_normalizer)
        self.encoder = copy.deepcopy(actor.encoder)
        self.mlp = copy.deepcopy(actor.mlp)

    def forward(self, proprio: Tensor, history: Tensor, extero: Tensor) -> Tensor:
        """Action [B, A] of proprio [B, P], history [B, H·P] and extero [B, S], not normalised."""
        context, latent_mean, _ = self.encode(proprio, history, extero)
        return self.mlp(torch.cat([context, latent_mean], -1))

    def encode(self, proprio: Tensor, history: Tensor, extero: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The deterministic part of the policy network's input [B, P + 3], and the latent's mean and std [B, Z]."""
        frames = self.proprio_normalizer(history.view(-1, self.frames, self.proprio_size))
        latent = self.encoder(frames.view(-1, self.frames * self.proprio_size), self.scan_normalizer(extero))
        return torch.cat([self.proprio_normalizer(proprio), latent.velocity], -1), latent.mean, latent.std

    def get_dummy_inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Zeros of the right shapes, for tracing."""
        sizes = (self.proprio_size, self.frames * self.proprio_size, self.scan_size)
        proprio, history, extero = (torch.zeros(1, size) for size in sizes)
        return proprio, history, extero


class DeployedBlindPolicy(nn.Module):
    """The same of a robot without a scan.

    Args:
        actor: Copied, not shared.
    """

    is_recurrent = False
    input_names: ClassVar[list[str]] = ["proprio", "history"]
    """Names of the inputs, in the order of `forward`."""
    output_names: ClassVar[list[str]] = ["actions"]

    def __init__(self, actor: EncoderDecoderActor) -> None:
        super().__init__()
        self.policy = DeployedPolicy(actor)

    def forward(self, proprio: Tensor, history: Tensor) -> Tensor:
        """Action [B, A] of proprio [B, P] and history [B, H·P], not normalised."""
        return self.policy(proprio, history, proprio[:, :0])

    def get_dummy_inputs(self) -> tuple[Tensor, Tensor]:
        """Zeros of the right shapes, for tracing."""
        return self.policy.get_dummy_inputs()[:2]
