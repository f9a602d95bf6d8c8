"""Data efficiency: the share of samples that an estimator's own noise leaves inside PPO's clipping interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from p3kernels.diagnostics.inputs import LatentPolicy, check_clip, check_count, diagnostic, judged_twice, seeded
from p3kernels.estimators.protocol import Estimator


@dataclass(frozen=True)
class DataEfficiency:
    """D_eff as a share, and how well it is known."""

    share: float
    """In [0, 1]; the paper gives it in percent."""
    standard_error: float
    """Error of `share` as that of all observations of this kind: rows are taken as independent, the repeats of a row
    are not. NaN for one row, which says nothing about others."""
    count: int
    """M: rows times repeats."""


@diagnostic
@torch.no_grad()
def data_efficiency(
    estimator: Estimator,
    policy: LatentPolicy,
    *,
    clip: float = 0.2,
    repeats: int = 1,
    common: bool = False,
    seed: int | None = None,
) -> DataEfficiency:
    """D_eff = (1/M) Σ_i 1[1 - ε ≤ r̂_i ≤ 1 + ε], where the current and the old policy are one and the same.

    An action is drawn from the policy and remembered; its likelihood is estimated again, as an update does it, and r̂ is
    the ratio of the two. The exact ratio is 1, so what is outside was put there by the estimator. A deterministic
    estimator has exactly 1, and so has one that keeps its noise, and every one where the latent is certain. A ratio
    that is not a number is outside.

    Args:
        estimator: `MomentMatching()`, `MonteCarlo(n)` or alike.
        policy: Actor, observations, latents (Z may be 0) and exploration.
        clip: ε, between 0 and 1.
        repeats: Actions drawn a row, each with two likelihoods of its own.
        common: Both likelihoods of an action see the same latents, whatever the estimator. Of identical policies the
            ratio is then 1; how wrong either likelihood is does not show.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.
    """
    check_clip(clip)
    check_count("repeats", repeats, 1)
    inside = policy.context.new_zeros(len(policy.context))
    with seeded(seed, policy.context.device):
        for _ in range(repeats):
            _, old, current = judged_twice(estimator, policy, common=common)
            ratio = (current - old).exp()
            inside += (1 - clip <= ratio) & (ratio <= 1 + clip)
    shares = inside.double() / repeats
    rows = len(shares)
    error = shares.std().item() / math.sqrt(rows) if rows > 1 else math.nan
    return DataEfficiency(shares.mean().item(), error, rows * repeats)
