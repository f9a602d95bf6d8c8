"""Gaussianity: Shapiro–Wilk tests of the action means over sampled latents."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch

from p3kernels.diagnostics.inputs import LatentPolicy, check_count, diagnostic, seeded
from p3kernels.diagnostics.samples import action_means, sampled_latents

MOST_SAMPLES = 5000
"""Royston's approximation of the distribution of W is for at most so many."""


@dataclass(frozen=True)
class Gaussianity:
    """Means over states; an action that does not vary at a state is not tested there."""

    w: float
    """Shapiro–Wilk's W, over all actions too. Below 1 even for a Gaussian, the more so the fewer samples."""
    p: float
    """Mean p-value of the test; 0.5 for a Gaussian."""
    pass_rate: float
    """Share of p ≥ alpha; 1 - alpha for a Gaussian."""
    w_per_action: tuple[float, ...]
    """[A]; NaN for an action that was tested nowhere."""
    p_per_action: tuple[float, ...]
    """[A]."""
    pass_rate_per_action: tuple[float, ...]
    """[A]."""
    num_samples: int
    alpha: float
    tests: int


@diagnostic
@torch.no_grad()
def gaussianity(
    policy: LatentPolicy, *, num_samples: int = 500, alpha: float = 0.05, seed: int | None = None
) -> Gaussianity:
    """Tests, for each state and each action dimension, whether actor([context, z]) is normal over sampled z.

    The paper reports W = 0.9995, p = 0.422 and a pass rate of 85.39 % at 0.05 of "action means sampled from 4096
    environments over 500 steps", and not how many latents a test had. That number decides the pass rate: with enough
    samples every nonlinear actor fails, with few nearly every one passes. Here `num_samples` latents are drawn at
    each state, and every pair of state and action is a test of its own; give the number beside the rate.

    Args:
        policy: Actor, observations and latents; its exploration is not used, since that is normal anyway.
        num_samples: Latents a test, 3 to 5000.
        alpha: Significance level.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.

    Raises:
        ImportError: scipy is not installed.
        TypeError: An argument of another kind or dtype.
        ValueError: A shape or a number that does not fit.
    """
    check_count("num_samples", num_samples, 3)
    if num_samples > MOST_SAMPLES:
        raise ValueError(f"num_samples: expected at most {MOST_SAMPLES}, got {num_samples}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha: expected a number between 0 and 1, got {alpha!r}")
    with seeded(seed, policy.context.device):
        latents = sampled_latents(policy.latent_mean, policy.latent_std, num_samples)
        parts = [action_means(policy.actor, policy.context, latent) for latent in latents]
    samples = torch.cat(parts).double().cpu()  # [N, B, A]
    varies = samples.std(0) > 1e-6 * samples.abs().amax(0)  # what is only rounding is no distribution
    w, p = torch.full((2, *varies.shape), torch.nan, dtype=torch.float64)
    for row, action in varies.nonzero().tolist():
        w[row, action], p[row, action] = shapiro_wilk(samples[:, row, action].numpy())
    passed = torch.where(varies, (p >= alpha).double(), torch.nan)
    return Gaussianity(
        w=w.nanmean().item(),
        p=p.nanmean().item(),
        pass_rate=passed.nanmean().item(),
        w_per_action=tuple(w.nanmean(0).tolist()),
        p_per_action=tuple(p.nanmean(0).tolist()),
        pass_rate_per_action=tuple(passed.nanmean(0).tolist()),
        num_samples=num_samples,
        alpha=alpha,
        tests=int(varies.sum()),
    )


def shapiro_wilk(values: np.ndarray) -> tuple[float, float]:
    """W and p of a sample of 3 to 5000 values."""
    from scipy.stats import shapiro  # noqa: PLC0415  optional, and slow to import

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "p-value may not be accurate" is not a number to report
        w, p = shapiro(values)
    return float(w), float(p)
