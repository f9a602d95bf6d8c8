"""The terms of the P³ loss, as functions of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.models.networks import Latent


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-mean min(r A, clip(r, 1 ± clip) A) of log r [B] and A [B]."""
    ratio = log_ratio.clamp(max=80.0).exp()
    return -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Squared error of the value [B], the larger of it and of its move clipped to ± clip."""
    error = (value - returns).square()
    if clip is None:
        return error.mean()
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return torch.max(error, (clipped - returns).square()).mean()


@dataclass(frozen=True)
class VaeLoss:
    """The parts of the VAE's loss; each a mean over batch and dimensions, so that β weighs like against like."""

    proprio: Tensor
    """Of the next proprioception, over steps whose next one belongs to the same episode."""
    scan: Tensor
    velocity: Tensor
    latent_kl: Tensor
    """KL(q ‖ N(0, 1)), the mean of the two latents' means."""

    def total(self, beta: float) -> Tensor:
        """Reconstruction + velocity + β KL."""
        return self.proprio + self.scan + self.velocity + beta * self.latent_kl


def vae_loss(
    latent: Latent,
    decoded: tuple[Tensor, Tensor],
    next_proprio: Tensor,
    next_valid: Tensor,
    scan: Tensor,
    velocity: Tensor,
    proprio_latent: int,
) -> VaeLoss:
    """Reconstruction errors and latent KL.

    Squared errors are averaged over dimensions, and so is the KL, within each of the two latents: a KL summed over
    110 dimensions against an error averaged over 96 would switch the latent off at β = 0.1.

    Args:
        latent: q(z | o) and the velocity estimate.
        decoded: Next proprioception [B, P] and scan [B, S] from a sample of it.
        next_proprio: [B, P], normalised.
        next_valid: [B]: 1 where the next observation belongs to the same episode, else 0.
        scan: [B, S], normalised.
        velocity: [B, 3], the true one.
        proprio_latent: How many of the latent's first columns belong to the proprioception.
    """
    error = (decoded[0] - next_proprio).square().mean(-1)
    kl = latent.kl_to_prior()
    return VaeLoss(
        proprio=(error * next_valid).sum() / next_valid.sum().clamp(min=1.0),
        scan=(decoded[1] - scan).square().mean(),
        velocity=(latent.velocity - velocity).square().mean(),
        latent_kl=0.5 * (kl[:, :proprio_latent].mean() + kl[:, proprio_latent:].mean()),
    )
