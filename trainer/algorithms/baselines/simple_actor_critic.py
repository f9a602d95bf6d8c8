"""SimpleActorCritic: no encoder, no latent; PPO on what the robot senses now.

"It operates without an encoder and directly takes the current proprioception o^proprio and exteroception o^extero as
input. Because providing the full observation history to this uncompressed baseline substantially slows convergence,
SimpleActorCritic is configured to process single-step observations only." Only the policy gradient trains the actor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from p3kernels import LatentMean
from trainer.algorithms.method import Method
from trainer.models.actor import LatentActor
from trainer.models.frame_policy import deployed_frame_policy
from trainer.models.networks import Latent


def method() -> Method:
    """`--method simple-actor-critic`."""
    return Method("simple-actor-critic", actor=f"{__name__}:SimpleActor", phases=(LatentMean(),))


class SimpleActor(LatentActor):
    """Frame and scan → action.

    Args:
        obs: Observation groups, for their sizes.
        obs_groups: rsl_rl's observation sets; `obs_groups[obs_set]` must hold `groups`.
        obs_set: "actor".
        output_dim: A.
        hidden_dims: Widths of the policy network.
        init_std: Exploration noise at the beginning.
        scan_shape: Rows and columns of the exteroception.
        obs_normalization: Running mean and variance of the inputs, frozen over rollout and update.
        groups: Names of the proprioception and, if there is a scan, exteroception groups. None for "proprio", and
            "extero" where the observation set has it.
    """

    body_groups = ("proprio",)

    def __init__(
        self,
        obs: TensorDict,
        obs_groups: Mapping[str, Sequence[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: Sequence[int] = (512, 256, 128),
        init_std: float = 1.0,
        scan_shape: Sequence[int] = (11, 17),
        obs_normalization: bool = True,
        groups: Sequence[str] | None = None,
    ) -> None:
        super().__init__(obs, obs_groups, obs_set, groups, scan_shape, obs_normalization)
        self._make_policy_network(self.proprio_size + self.scan_size, hidden_dims, output_dim, init_std)

    def normalised(self, obs: TensorDict) -> dict[str, Tensor]:
        """`frame` [B, P] and `scan` [B, S]."""
        return {"frame": self.proprio_normalizer(obs[self.obs_groups[0]]), "scan": self.scan_of(obs)}

    def encode_normalised(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Latent]:
        """The inputs [B, P + S], and a latent without columns."""
        context = torch.cat([inputs["frame"], inputs["scan"]], -1)
        nothing = context[:, :0]
        return context, Latent(nothing, nothing, nothing)

    def as_jit(self) -> nn.Module:
        """The deployed policy, normalisers included."""
        return deployed_frame_policy(self, None)
