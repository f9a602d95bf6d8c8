"""The paper's law of the gradient noise, A²/N · d_a σ_vae² ‖J‖² / σ_act⁴, exponent by exponent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p3kernels.diagnostics.gradient_noise import gradient_noise, ratio_variance
from p3kernels.diagnostics.inputs import check_policy, seeded
from p3kernels.estimators import MonteCarlo

SMALL = 0.1
"""Variance of the estimated ratio, to first order, up to which the law's expansion is taken to hold."""


@dataclass(frozen=True)
class PowerLaw:
    """noise ∝ quantity^exponent, over the points where the law's own assumptions hold."""

    quantity: tuple[float, ...]
    """What was varied, all points."""
    noise: tuple[float, ...]
    """What was measured there."""
    standard_error: tuple[float, ...]
    """Of `noise`; 0 where a point is a row of its own."""
    in_range: tuple[bool, ...]
    """Whether the ratio's predicted variance is small there, so that the point is in the fit."""
    exponent: float
    """Least squares in logarithms; NaN with fewer than two points in range."""
    exponent_error: float
    predicted: float
    """The law's exponent."""


@dataclass(frozen=True)
class NoiseScaling:
    """One quantity varied at a time."""

    num_samples: PowerLaw
    """With the latent's std scaled down by `shrink`."""
    latent_std: PowerLaw
    """Factors on the latent's std."""
    action_std: PowerLaw
    """Factors on the exploration's std; actions are drawn from the policy so scaled."""
    jacobian: PowerLaw
    """A row's ‖J‖_F weighted by the latent's and exploration's stds, rows side by side, in the action's mean."""
    ratio_variance: float
    """σ_vae² ‖J‖² / σ_act² of the policy as it is: the law holds where this over N is far below 1."""
    shrink: float


def noise_scaling(
    actor: nn.Sequential,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    action_std: Tensor,
    advantage: Tensor,
    *,
    counts: Sequence[int] = (1, 2, 4, 8, 16),
    points: int = 6,
    redraws: int = 24,
    seed: int | None = None,
) -> NoiseScaling:
    """Measures the noise of the unclipped surrogate's gradient while N, σ_vae and σ_act are scaled, one at a time.

    The law is a first-order expansion: it can hold where the ratio's variance is small. Where the policy as it is lies
    outside, the scans go from it into that range, and only points inside are fitted.

    Args:
        actor: Linear and ELU, ReLU or LeakyReLU layers; takes [context, z].
        context: [B, C].
        latent_mean: [B, Z].
        latent_std: [B, Z], not all 0.
        action_std: [A] or [B, A].
        advantage: [B].
        counts: N of the scan over N.
        points: Of the scans over the two stds.
        redraws: Of the latents, for every point.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.

    Raises:
        TypeError: An argument of another kind or dtype.
        ValueError: A shape or a number that does not fit.
    """
    check_policy(actor, context, latent_mean, latent_std, action_std)
    rows = ratio_variance(actor, context, latent_mean, latent_std, action_std)
    variance = rows.mean().item()
    if not variance > 0:
        raise ValueError("latent_std: expected a latent that changes the action, its first-order variance is 0")
    shrink = min(1.0, math.sqrt(SMALL / 4 / variance))
    factors = [shrink ** (1 - step / (points - 1)) for step in range(points)]
    if shrink == 1.0:
        factors = [2.0**-step for step in reversed(range(points))]

    with seeded(seed, context.device):

        def measure(num_samples: int, latent: float, exploration: float) -> tuple[float, float, Tensor]:
            scaled = (actor, context, latent_mean, latent * latent_std, exploration * action_std)
            action = MonteCarlo(1).policy(*scaled).sample()
            found = gradient_noise(MonteCarlo(num_samples), *scaled, action, advantage, clip=None, redraws=redraws)
            return found.noise, found.standard_error, torch.tensor(found.action_noise, dtype=torch.float64)

        over_counts = _scan(counts, lambda n: measure(int(n), shrink, 1.0), lambda n: variance * shrink**2 / n, -1.0)
        over_latent = _scan(factors, lambda f: measure(1, f, 1.0), lambda f: variance * f**2, 2.0)
        inverse = [1 / factor for factor in factors]
        over_action = _scan(inverse, lambda f: measure(1, 1.0, f), lambda f: variance / f**2, -4.0)
        _, _, noise = measure(1, shrink, 1.0)
    used = (advantage.abs() > 0.1 * advantage.std()) & (rows > 0) & (noise > 0)
    per_row = noise[used] / advantage[used].double().square()
    return NoiseScaling(
        num_samples=over_counts,
        latent_std=over_latent,
        action_std=over_action,
        jacobian=_fit(rows[used].sqrt().tolist(), per_row.tolist(), [0.0] * len(per_row), [True] * len(per_row), 2.0),
        ratio_variance=variance,
        shrink=shrink,
    )


def _scan(
    quantities: Sequence[float],
    measure: Callable[[float], tuple[float, float, Tensor]],
    variance: Callable[[float], float],
    predicted: float,
) -> PowerLaw:
    found = [measure(quantity) for quantity in quantities]
    in_range = [variance(quantity) <= SMALL for quantity in quantities]
    return _fit(quantities, [noise for noise, _, _ in found], [error for _, error, _ in found], in_range, predicted)


def _fit(
    quantity: Sequence[float],
    noise: Sequence[float],
    errors: Sequence[float],
    in_range: Sequence[bool],
    predicted: float,
) -> PowerLaw:
    chosen = [(math.log(x), math.log(y)) for x, y, use in zip(quantity, noise, in_range, strict=True) if use and y > 0]
    exponent = error = math.nan
    if len({x for x, _ in chosen}) > 1:
        x, y = torch.tensor(chosen, dtype=torch.float64).T
        spread = (x - x.mean()).square().sum()
        slope = ((x - x.mean()) * (y - y.mean())).sum() / spread
        left = y - y.mean() - slope * (x - x.mean())
        exponent = slope.item()
        if len(chosen) > 2:
            error = (left.square().sum() / (len(chosen) - 2) / spread).sqrt().item()
    return PowerLaw(
        tuple(map(float, quantity)), tuple(noise), tuple(errors), tuple(in_range), exponent, error, predicted
    )
