"""Self-Predictive Representations (SPR): the latent must tell the latents that follow.

The paper's loss is Σ_{k=1..K} ‖ f⁽ᵏ⁾(z_t, a_{t:t+k−1}) − sg(g(o_{t+k})) ‖², with the online dynamics
z_{t+1} = f(z_t, a_t) applied K = 3 times, the target g an exponential moving average of the online encoder, sg no
gradient, and a weight of 0.5. "SPR takes o^proprio and o^extero as input": one frame, no history, no velocity estimate,
no decoder, a deterministic z. The encoder is trained by this loss and by the policy gradient.

Not given by the paper, chosen here: the encoder is the network table's, its MLP reading one frame; f is an MLP of the
same widths; the norm is a mean over dimensions, as all errors here are; the average keeps 0.99 of itself at every
optimiser step. A prediction counts while its steps are in the same episode and in the same rollout.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from p3kernels import LatentMean
from trainer.algorithms.method import Method
from trainer.config import EncoderConfig
from trainer.models.actor import Policy, RepresentationLoss
from trainer.models.frame_policy import FrameActor, deployed_frame_policy
from trainer.models.networks import Encoder, Latent, mlp


def method() -> Method:
    """`--method spr`."""
    return Method("spr", actor=f"{__name__}:SprActor", phases=(LatentMean(),), options=EncoderConfig)


class SprActor(FrameActor):
    """Frame and scan → z; the policy acts on the frame and z.

    Args:
        *arguments: Arguments of `LatentActor`.
        proprio_latent: Size of the frame's latent.
        extero_latent: Size of the scan's latent; nothing without a scan.
        representation_coef: Weight of the prediction's loss.
        prediction_steps: K.
        ema_decay: What the target keeps of itself at an optimiser step.
        dynamics_hidden: Widths of the dynamics model.
        **options: Options of `LatentActor`.
    """

    def __init__(
        self,
        *arguments: Any,
        proprio_latent: int = 10,
        extero_latent: int = 100,
        representation_coef: float = 0.5,
        prediction_steps: int = 3,
        ema_decay: float = 0.99,
        dynamics_hidden: Sequence[int] = (256, 256),
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        if prediction_steps < 1:
            raise ValueError(f"prediction_steps: expected at least 1, got {prediction_steps}")
        if not 0.0 <= ema_decay < 1.0:
            raise ValueError(f"ema_decay: expected 0 <= ema_decay < 1, got {ema_decay}")
        self.representation_coef = representation_coef
        self.prediction_steps, self.ema_decay = prediction_steps, ema_decay
        extero_latent = 0 if self.scan_shape is None else extero_latent
        self.encoder = Encoder(
            self.proprio_size, self.scan_shape, proprio_latent, extero_latent, stochastic=False, velocity_size=0
        )
        latent_size = proprio_latent + extero_latent
        self.dynamics = mlp([latent_size + self.num_actions, *dynamics_hidden, latent_size])
        self._make_policy_network(self.proprio_size + latent_size)
        self.target_encoder = copy.deepcopy(self.encoder).requires_grad_(False)

    def encode_normalised(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Latent]:
        """The frame [B, P] and z."""
        return inputs["frame"], self.encoder(inputs["frame"], inputs["scan"])

    def targets(self, observations: TensorDict) -> dict[str, Tensor]:
        """Frames and scans, normalised."""
        return self.normalised(observations)

    def representation_loss(
        self, policy: Policy, latent: Latent, batch: Mapping[str, Any], rollout: Mapping[str, Any]
    ) -> RepresentationLoss:
        """Σ_k ‖ f⁽ᵏ⁾(z_t, a) − sg(g(o_{t+k})) ‖², a mean over dimensions and over the predictions that count."""
        last = len(rollout["actions"]) - 1
        predicted, now = latent.mean, batch["rows"]
        counts = torch.ones_like(batch["continues"])
        total = torch.zeros((), device=predicted.device)
        for _ in range(self.prediction_steps):
            then = now + rollout["num_envs"]
            # The next observation is in this rollout and of this episode; otherwise this and all later ones are out.
            counts = counts * rollout["continues"][now] * (then <= last)
            then = then.clamp(max=last)
            predicted = self.dynamics(torch.cat([predicted, rollout["actions"][now]], -1))
            with torch.no_grad():
                target = self.target_encoder(rollout["frame"][then], rollout["scan"][then]).mean
            error = (predicted - target).square().mean(-1)
            total = total + self.ranks.masked_mean(error, counts)
            now = then
        return RepresentationLoss({"prediction": total}, {"prediction": self.representation_coef})

    def after_step(self, taken: Tensor | None = None) -> None:
        """Moves the target towards the online encoder."""
        target: list[Tensor] = list(self.target_encoder.parameters())
        online: list[Tensor] = list(self.encoder.parameters())
        with torch.no_grad():
            if taken is None:
                torch._foreach_lerp_(target, online, 1.0 - self.ema_decay)
                return
            share = (1.0 - self.ema_decay) * taken.to(target[0].dtype)
            for mine, theirs in zip(target, online, strict=True):
                mine.lerp_(theirs, share)

    def as_jit(self) -> nn.Module:
        """The deployed policy, encoder and normalisers included."""
        return deployed_frame_policy(self, self.encoder)
