"""The loss of an encoder and decoder: what is reconstructed, and how far the latent is from its prior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.models.networks import Latent
from trainer.models.ranks import ONE_RANK, Ranks
from trainer.models.update_terms import fused, squared_errors
from trainer.models.update_terms import latent_kl as fused_latent_kl


@dataclass(frozen=True)
class Reconstruction:
    """Squared errors, each a mean over batch and dimensions."""

    proprio: Tensor
    """Error of the next proprioception, over steps whose next one is known."""
    scan: Tensor | None
    """None where the environment has no scan."""
    velocity: Tensor | None
    """None where no velocity is estimated."""
    made: Tensor | None = None
    """[n]: those that there are, in this order, where they were made at once."""

    def parts(self) -> dict[str, Tensor]:
        """Those that there are, by name."""
        named = {"proprio": self.proprio, "scan": self.scan, "velocity": self.velocity}
        return {name: error for name, error in named.items() if error is not None}

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
    valid_count: Tensor | None = None,
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
        valid_count: Their number, a mean over ranks, where it is known.
    """
    if fused(*decoded, velocity, next_proprio, next_valid, scan, true_velocity):
        count = ranks.mean(next_valid.sum()) if valid_count is None else valid_count
        present = {"proprio": (decoded[0], next_proprio)}
        present |= {"scan": (decoded[1], scan)} if scan.shape[-1] else {}
        present |= {"velocity": (velocity, true_velocity)} if true_velocity.shape[-1] else {}
        predictions, targets = zip(*present.values(), strict=True)
        made = squared_errors(predictions, targets, next_valid, count, 1.0 / ranks.size)
        by_name = dict(zip(present, made.unbind(), strict=True))
        return Reconstruction(by_name["proprio"], by_name.get("scan"), by_name.get("velocity"), made)
    error = (decoded[0] - next_proprio).square().mean(-1)
    return Reconstruction(
        proprio=ranks.masked_mean(error, next_valid, valid_count),
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
    if fused(latent.mean, latent.std):
        return fused_latent_kl(latent.mean, latent.std, proprio_latent, _shares(latent.mean, proprio_latent, reduction))
    kl = latent.kl_to_prior()
    if reduction == "sum":
        return kl.sum(-1).mean()
    if kl.shape[-1] == proprio_latent:  # no scan, no second latent
        return kl.mean()
    return 0.5 * (kl[:, :proprio_latent].mean() + kl[:, proprio_latent:].mean())


def _shares(mean: Tensor, proprio_latent: int, reduction: str) -> tuple[float, float]:
    """Weights in `latent_kl` of an element of mean [B, Z]: in the first latent's columns, and in the others."""
    rows, latent = mean.shape
    if reduction == "sum":
        return 1.0 / rows, 1.0 / rows
    if latent == proprio_latent:
        return 1.0 / (rows * latent), 0.0
    return 0.5 / (rows * proprio_latent), 0.5 / (rows * (latent - proprio_latent))
