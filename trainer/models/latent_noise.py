"""The Σλ term: a pressure on the action variance that the latent causes, which moment matching alone never sees.

For an actor μ(x, z) with z ~ N(m, s²) and exploration noise σ, Σv/σ² = Σ_a Var_z[μ_a] / σ_a² is, to first order, the
sum of the eigenvalues λ of J Σ_z Jᵀ / σ²: what decides how noisy a sampled likelihood is (docs/derivation.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.models.dense import run
from trainer.models.networks import Latent

EVERY = 2
"""In an update the term is the mean over every so many rows of a minibatch, whose order is random: the same expectation
at half of the cost. Strided, and not the first half, so that the rows of several ranks are those of one."""
BAND, STEP, REACH = 1.2, 1.2, 100.0
"""Limits of the adapted coefficient: Σv/σ² may be off its target by the factor `BAND`; beyond it the coefficient moves
by `STEP` an update, and by `REACH` at most from where it began."""


def latent_share(
    network: nn.Sequential, context: Tensor, latent: Latent, action_std: Tensor, *, every: int = 1
) -> Tensor:
    """An unbiased estimate of mean_B Σ_a E_z[(μ_a(x, z) - μ_a(x, m))²] / σ_a²: Σv/σ², and the mean's small shift.

    mean_B Σ_a (μ(sg x, sg m + s∘ε) - sg μ(x, m))² / sg σ_a² with one ε a row: the gradient reaches the network's
    weights and the latent's std, and nothing else. Through the mean or the context it could only lower the variance by
    moving the robot's behaviour to where the network is flat; through σ, by exploring more.

    Args:
        network: Takes [context, z].
        context: [B, C].
        latent: Latent distribution, with std [B, Z].
        action_std: [A].
        every: Takes one of so many rows.
    """
    context, mean, std = context.detach()[::every], latent.mean.detach()[::every], latent.std[::every]
    with torch.no_grad():
        centre = run(torch.cat([context, mean], -1), network)
    moved = run(torch.cat([context, torch.addcmul(mean, std, torch.randn_like(mean))], -1), network)
    return ((moved - centre) / action_std.detach()).square().sum(-1).mean()


class LatentNoise:
    """The weight of the Σλ term: constant, or adapted so that Σv/σ² is held at a target.

    Args:
        coef: The weight, or the one to begin with.
        target: Σv/σ² to hold; None for a constant weight.
    """

    def __init__(self, coef: float, target: float | None = None) -> None:
        if not coef > 0:
            raise ValueError(f"latent_noise_coef: expected a positive number, got {coef}")
        if target is not None and not target > 0:
            raise ValueError(f"latent_noise_target: expected a positive number, got {target}")
        self.initial, self.coef, self.target = coef, coef, target

    def adapt(self, share: float) -> None:
        """After an update in which Σv/σ² was `share`: a larger weight where that is too much, a smaller one where not.

        As the learning rate follows the KL, and slower: the share moves over tens of updates.
        """
        if self.target is None:
            return
        if share > BAND * self.target:
            self.coef = min(self.coef * STEP, self.initial * REACH)
        elif share < self.target / BAND:
            self.coef = max(self.coef / STEP, self.initial / REACH)
