"""SimpleActorCritic: no encoder, no latent; PPO on what the robot senses now.

"It operates without an encoder and directly takes the current proprioception o^proprio and exteroception o^extero as
input. Because providing the full observation history to this uncompressed baseline substantially slows convergence,
SimpleActorCritic is configured to process single-step observations only." Only the policy gradient trains the actor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from p3kernels import LatentMean
from trainer.algorithms.method import Method
from trainer.models.frame_policy import FrameActor, deployed_frame_policy
from trainer.models.networks import Latent


def method() -> Method:
    """`--method simple-actor-critic`."""
    return Method("simple-actor-critic", actor=f"{__name__}:SimpleActor", phases=(LatentMean(),))


class SimpleActor(FrameActor):
    """Frame and scan → action; arguments as for `LatentActor`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._make_policy_network(self.proprio_size + self.scan_size)

    def encode_normalised(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Latent]:
        """The inputs [B, P + S], and a latent without columns."""
        context = torch.cat([inputs["frame"], inputs["scan"]], -1)
        nothing = context[:, :0]
        return context, Latent(nothing, nothing, nothing)

    def as_jit(self) -> nn.Module:
        """The deployed policy, normalisers included."""
        return deployed_frame_policy(self, None)
