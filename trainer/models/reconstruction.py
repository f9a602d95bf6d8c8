"""The loss of an encoder and decoder: what is reconstructed, and how far the latent is from its prior."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from trainer.distributed import ONE_RANK, Ranks
from trainer.models.networks import Latent


@dataclass(frozen=True)
class Reconstruction:
    """Squared errors, each a mean over batch and dimensions."""

    proprio: Tensor
    """Of the next proprioception, over steps whose next one belongs to the same episode."""
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
        next_valid: [B]: 1 where the next observation belongs to the same episode, else 0.
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


def latent_kl(latent: Latent, proprio_latent: int) -> Tensor:
    """KL(q ‖ N(0, 1)), the mean of the two latents' means over batch and dimensions.

    A mean, as the reconstruction errors are: a KL summed over 110 dimensions against an error averaged over 96 would
    switch the latent off at β = 0.1.

    Args:
        latent: q(z | o).
        proprio_latent: How many of the latent's first columns belong to the proprioception.
    """
    kl = latent.kl_to_prior()
    return 0.5 * (kl[:, :proprio_latent].mean() + kl[:, proprio_latent:].mean())
