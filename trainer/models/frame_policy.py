"""Actors that read one frame and the scan, without a history, and their deployed policies."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from trainer.models.actor import LatentActor
from trainer.models.networks import Encoder, Latent


class FrameActor(LatentActor):
    """An actor of the current frame and scan; arguments as for `LatentActor`."""

    body_groups = ("proprio",)

    def normalised(self, obs: TensorDict) -> dict[str, Tensor]:
        """`frame` [B, P] and `scan` [B, S]."""
        return {"frame": self.proprio_normalizer(obs[self.obs_groups[0]]), "scan": self.scan_of(obs)}


class DeployedFramePolicy(nn.Module):
    """Raw observations → action: all that a robot needs, nothing else.

    Args:
        actor: Copied, not shared.
        encoder: Encoder of the actor; None where the policy network reads the scan itself.
    """

    is_recurrent = False
    input_names: ClassVar[list[str]] = ["proprio", "extero"]
    """Names of the inputs, in the order of `forward`."""
    output_names: ClassVar[list[str]] = ["actions"]

    def __init__(self, actor: LatentActor, encoder: Encoder | None) -> None:
        super().__init__()
        self.proprio_size, self.scan_size = actor.proprio_size, actor.scan_size
        self.proprio_normalizer = copy.deepcopy(actor.proprio_normalizer)
        self.scan_normalizer = copy.deepcopy(actor.scan_normalizer)
        self.encoder = _ScanItself() if encoder is None else copy.deepcopy(encoder)
        self.mlp = copy.deepcopy(actor.mlp)

    def forward(self, proprio: Tensor, extero: Tensor) -> Tensor:
        """Action [B, A] of proprio [B, P] and extero [B, S], not normalised."""
        frame = self.proprio_normalizer(proprio)
        latent = self.encoder(frame, self.scan_normalizer(extero))
        return self.mlp(torch.cat([frame, latent.mean], -1))

    def get_dummy_inputs(self) -> tuple[Tensor, Tensor]:
        """Zeros of the right shapes, for tracing."""
        return torch.zeros(1, self.proprio_size), torch.zeros(1, self.scan_size)


class DeployedBlindFramePolicy(nn.Module):
    """The same of a robot without a scan; arguments as for `DeployedFramePolicy`."""

    is_recurrent = False
    input_names: ClassVar[list[str]] = ["proprio"]
    """Names of the inputs, in the order of `forward`."""
    output_names: ClassVar[list[str]] = ["actions"]

    def __init__(self, actor: LatentActor, encoder: Encoder | None) -> None:
        super().__init__()
        self.policy = DeployedFramePolicy(actor, encoder)

    def forward(self, proprio: Tensor) -> Tensor:
        """Action [B, A] of proprio [B, P], not normalised."""
        return self.policy(proprio, proprio[:, :0])

    def get_dummy_inputs(self) -> tuple[Tensor]:
        """Zeros of the right shape, for tracing."""
        return self.policy.get_dummy_inputs()[:1]


def deployed_frame_policy(actor: LatentActor, encoder: Encoder | None) -> nn.Module:
    """The policy of such an actor, with or without a scan; arguments as for `DeployedFramePolicy`."""
    return (DeployedFramePolicy if actor.scan_group is not None else DeployedBlindFramePolicy)(actor, encoder)


class _ScanItself(nn.Module):
    """Stands where an encoder would."""

    def forward(self, frame: Tensor, scan: Tensor) -> Latent:
        """The scan, as a latent without variance."""
        return Latent(scan, torch.zeros_like(scan), scan[:, :0])
