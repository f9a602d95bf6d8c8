"""The loss of an encoder and decoder: what is reconstructed, and how far the latent is from its prior."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from trainer.models.networks import Latent
from trainer.training.distributed import ONE_RANK, Ranks


@dataclass(frozen=True)
class Reconstruction:
    """Squared errors, each a mean over batch and dimensions."""

    proprio: Tensor
    """Of the next proprioception, over steps whose next one is known."""
    scan: Tensor
    velocity: Tensor

    def total(self) -> Tensor:
        """The paper's MSE(y) and the velocity's."""
        return self.proprio + self.scan + self.velocity


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
        decoded: Next proprioception [B, P] and scan [B, S] from a latent.
        velocity: [B, 3], the estimate.
        next_proprio: [B, P], normalised.
        next_valid: [B]: 1 where `next_proprio` is the state that the step ended in, 0 where it is a new episode's.
        scan: [B, S], normalised.
        true_velocity: [B, 3].
        ranks: Over which the mean is that of all valid steps.
    """
    error = (decoded[0] - next_proprio).square().mean(-1)
    return Reconstruction(
        proprio=ranks.masked_mean(error, next_valid),
        scan=(decoded[1] - scan).square().mean(),
        velocity=(velocity - true_velocity).square().mean(),
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
    return 0.5 * (kl[:, :proprio_latent].mean() + kl[:, proprio_latent:].mean())
