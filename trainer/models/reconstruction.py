"""The loss of an encoder and decoder: what is reconstructed, and how far the latent is from its prior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.models.networks import Latent
from trainer.models.ranks import ONE_RANK, Ranks


@dataclass(frozen=True)
class Reconstruction:
    """Squared errors, each a mean over batch and dimensions."""

    proprio: Tensor
    """Error of the next proprioception, over steps whose next one is known."""
    scan: Tensor | None
    """None where the environment has no scan."""
    velocity: Tensor | None
    """None where no velocity is estimated."""

    def parts(self) -> dict[str, Tensor]:
        """Those that there are, by name."""
        return {name: error for name, error in vars(self).items() if error is not None}

    def total(self) -> Tensor:
        """The paper's MSE(y) and the velocity's."""
        return sum(self.parts().values(), torch.zeros((), device=self.proprio.device))


def reconstruction(
    decoded: tuple[Tensor, Tensor],
    velocity: Tensor,
    next_proprio: Tensor,
    next_valid: Tensor,
    scan: Tensor,
    true_velocity: Tensor,
    ranks: Ranks = ONE_RANK,
) -> Reconstruction:
    """Errors of the decoder and of the velocity estimate.

    Args:
        decoded: Next proprioception [B, P] and scan [B, S] from a latent; S is 0 without a scan.
        velocity: [B, 3], the estimate; [B, 0] where there is none.
        next_proprio: [B, P], normalised.
        next_valid: [B]: 1 where `next_proprio` is the state that the step ended in, 0 where it is a new episode's.
        scan: [B, S], normalised.
        true_velocity: [B, 3], or [B, 0].
        ranks: Over which the mean is that of all valid steps.
    """
    error = (decoded[0] - next_proprio).square().mean(-1)
    return Reconstruction(
        proprio=ranks.masked_mean(error, next_valid),
        scan=(decoded[1] - scan).square().mean() if scan.shape[-1] else None,
        velocity=(velocity - true_velocity).square().mean() if true_velocity.shape[-1] else None,
    )


KL_REDUCTIONS = ("mean", "sum")


def latent_kl(latent: Latent, proprio_latent: int, reduction: str = "mean") -> Tensor:
    """KL(q ‖ N(0, 1)), a mean over the batch: of the two latents' means over dimensions, or the sum over dimensions.

    A mean by default, as the reconstruction errors are: a KL summed over 110 dimensions against an error averaged over
    96 switches the latent off at β = 0.1.

    Args:
        latent: q(z | o).
        proprio_latent: How many of the latent's first columns belong to the proprioception.
        reduction: "mean", or "sum": the divergence of the whole latent.
    """
    kl = latent.kl_to_prior()
    if reduction == "sum":
        return kl.sum(-1).mean()
    if kl.shape[-1] == proprio_latent:  # no scan, no second latent
        return kl.mean()
    return 0.5 * (kl[:, :proprio_latent].mean() + kl[:, proprio_latent:].mean())
