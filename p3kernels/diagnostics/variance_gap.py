"""The variance gap: an estimator's mean and variance of the action against those of sampled latents."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from p3kernels.diagnostics.inputs import Estimators, LatentPolicy, check_count, diagnostic, seeded
from p3kernels.diagnostics.moments import latent_var
from p3kernels.diagnostics.samples import sampled_moments


@dataclass(frozen=True)
class PropagatedMoments:
    """One estimator's moments, beside the sampled ones."""

    variance_ratio: float
    """Propagated over sampled variance of the action by the latent, both summed over observations and actions. 1 is
    right, 0 is a latent that is ignored. NaN where the sampled variance is 0."""
    ratio_low: float
    """5 % quantile over the observations of the ratio of an observation's sums."""
    ratio_high: float
    """95 % quantile of the same ratio."""
    mean_error: float
    """Root mean square of the difference of the means, in exploration stds."""
    std: tuple[float, ...]
    """[A]: root of the mean variance by the latent."""


@dataclass(frozen=True)
class VarianceGap:
    """Sampled moments, and each estimator's beside them."""

    sampled_std: tuple[float, ...]
    """[A]: root of the mean variance of the action by the latent, over sampled latents."""
    action_std: tuple[float, ...]
    """[A]: the exploration noise."""
    latent_share: float
    """Σv/σ²: sampled variance by the latent over that of the exploration, summed over the actions of an observation
    (each in its own σ²), averaged over observations. The likelihood's noise grows with it."""
    noise: float
    """Sampling noise: a mean of one observation and action is known to 1/√num_samples of its latent std."""
    num_samples: int
    estimators: dict[str, PropagatedMoments]


@diagnostic
@torch.no_grad()
def variance_gap(
    estimators: Estimators, policy: LatentPolicy, *, num_samples: int = 1000, seed: int | None = None
) -> VarianceGap:
    """Compares mean and variance per action dimension with those over `num_samples` sampled latents.

    A linear actor has none: moment matching is then exact. The variance of a deeper one is too small where units of a
    layer vary together and their covariance is left out.

    Args:
        estimators: By name.
        policy: Actor, observations, latents and exploration.
        num_samples: Latents a row, at least 2.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.
    """
    check_count("num_samples", num_samples, 2)
    with seeded(seed, policy.context.device):
        sampled = sampled_moments(*policy[:4], num_samples)
        exploration = policy.action_std.double().expand(sampled.mean.shape)
        rows = {}
        for name, estimator in estimators.items():
            estimated = estimator.policy(*policy)
            var = latent_var(estimated, policy.action_std)
            ratios = (var.sum(-1) / sampled.var.sum(-1)).nan_to_num(nan=1.0)  # 0 of 0 is right
            low, high = ratios.quantile(ratios.new_tensor([0.05, 0.95])).tolist()
            rows[name] = PropagatedMoments(
                variance_ratio=(var.sum() / sampled.var.sum()).item(),
                ratio_low=low,
                ratio_high=high,
                mean_error=((estimated.mean.double() - sampled.mean) / exploration).square().mean().sqrt().item(),
                std=tuple(var.mean(0).sqrt().tolist()),
            )
    return VarianceGap(
        sampled_std=tuple(sampled.var.mean(0).sqrt().tolist()),
        action_std=tuple(exploration.mean(0).tolist()),
        latent_share=(sampled.var / exploration.square()).sum(-1).mean().item(),
        noise=num_samples**-0.5,
        num_samples=num_samples,
        estimators=rows,
    )
