"""The paper's law of the gradient noise, A²/N · d_a σ_vae² ‖J‖² / σ_act⁴, exponent by exponent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from p3kernels.diagnostics.gradient_noise import GradientNoise, gradient_noise, ratio_variance
from p3kernels.diagnostics.inputs import LatentPolicy, check_count, diagnostic, seeded
from p3kernels.estimators import MonteCarlo

SMALL = 0.02
"""Variance of the estimated ratio, to first order, up to which the law's expansion is taken to hold."""


ACTIONS = 4
"""Drawn for each row where rows are compared."""


@dataclass(frozen=True)
class PowerLaw:
    """noise ∝ quantity^exponent, over the points where the law's own assumptions hold."""

    quantity: tuple[float, ...]
    """What was varied, all points."""
    noise: tuple[float, ...]
    """What was measured there."""
    standard_error: tuple[float, ...]
    """Standard errors of `noise`; 0 where a point is a row of its own."""
    in_range: tuple[bool, ...]
    """Whether the ratio's predicted variance is small there, so that the point is in the fit."""
    exponent: float
    """Least squares in logarithms; NaN with fewer than two points in range."""
    exponent_error: float
    predicted: float
    """The law's exponent."""


@dataclass(frozen=True)
class NoiseLaws:
    """One gradient's noise while one quantity is varied at a time."""

    num_samples: PowerLaw
    """With the latent's std scaled down by `shrink`."""
    latent_std: PowerLaw
    """Factors on the latent's std."""
    action_std: PowerLaw
    """Factors on the exploration's std; actions are drawn from the policy so scaled."""


@dataclass(frozen=True)
class NoiseScaling:
    """The law against measurements, in both of the gradients that it is told of."""

    parameters: NoiseLaws
    """Laws for the gradient in the actor's parameters, which is what an optimiser sees."""
    action_mean: NoiseLaws
    """Laws for a row's term in its action mean, which is what the law is derived for; a mean over rows."""
    jacobian: PowerLaw
    """Rows side by side: the noise in a row's action mean against its ‖J‖_F, weighted by the latent's and the
    exploration's stds."""
    ratio_variance: float
    """σ_vae² ‖J‖² / σ_act² of the policy as it is: the law can hold where this over N is far below 1."""
    shrink: float
    """Factor on the latent's std that brings it there."""


@diagnostic
def noise_scaling(
    policy: LatentPolicy,
    advantage: Tensor,
    *,
    counts: Sequence[int] = (1, 2, 4, 8, 16),
    points: int = 6,
    redraws: int = 24,
    seed: int | None = None,
) -> NoiseScaling:
    """Measures the noise of the unclipped surrogate's gradient while N, σ_vae and σ_act are scaled, one at a time.

    In parameters the law leaves something out: the activations that the score is multiplied by vary with the latent
    too, with σ_vae²/σ_act². Where that is most of the noise, the exponent of σ_act is nearer to -2 than to -4.

    The law is a first-order expansion: it can hold where the ratio's variance is small. Where the policy as it is lies
    outside, the scans go from it into that range, and only points inside are fitted.

    Args:
        policy: Actor, observations, latents whose stds are not all 0, and exploration.
        advantage: [B].
        counts: N of the scan over N.
        points: Points of the scans over the two stds.
        redraws: Redraws of the latents, for every point.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.
    """
    check_count("points", points, 2)
    rows = ratio_variance(policy)
    variance = rows.mean().item()
    if not variance > 0:
        raise ValueError("latent_std: expected a latent that changes the action, its first-order variance is 0")
    if seed is None:
        seed = int(torch.randint(2**62, (1,)))
    shrink = min(1.0, math.sqrt(SMALL / 4 / variance))
    factors = _factors(shrink, points)

    def measure(num_samples: float, latent: float, exploration: float) -> GradientNoise:
        scaled = policy._replace(latent_std=latent * policy.latent_std, action_std=exploration * policy.action_std)
        with seeded(seed, policy.context.device):  # the same random numbers for every point: what differs is the factor
            action = MonteCarlo(1).policy(*scaled).sample()
            estimator = MonteCarlo(int(num_samples))
            return gradient_noise(estimator, scaled, action, advantage, clip=None, redraws=redraws)

    inverse = [1 / factor for factor in factors]
    over_counts = [measure(count, shrink, 1.0) for count in counts]
    over_latent = [measure(1, factor, 1.0) for factor in factors]
    over_action = [measure(1, 1.0, factor) for factor in inverse]
    scans = (
        (counts, over_counts, [variance * shrink**2 / count for count in counts], -1.0),
        (factors, over_latent, [variance * factor**2 for factor in factors], 2.0),
        (inverse, over_action, [variance / factor**2 for factor in inverse], -4.0),
    )
    return NoiseScaling(
        parameters=NoiseLaws(*[_law(_of_parameters, *scan) for scan in scans]),
        action_mean=NoiseLaws(*[_law(_of_action_mean, *scan) for scan in scans]),
        jacobian=_over_rows(policy._replace(latent_std=shrink * policy.latent_std), redraws, seed),
        ratio_variance=variance,
        shrink=shrink,
    )


def _of_parameters(found: GradientNoise) -> tuple[float, float]:
    return found.noise, found.standard_error


def _of_action_mean(found: GradientNoise) -> tuple[float, float]:
    rows = torch.tensor(found.action_noise, dtype=torch.float64)
    return rows.mean().item(), rows.std().item() / math.sqrt(len(rows)) if len(rows) > 1 else math.nan


def _factors(shrink: float, points: int) -> list[float]:
    """From a third of `shrink` up to 1, with more of the points where the law can hold."""
    inside = [shrink * 3 ** (step / 2 - 1) for step in range(3)]
    outside = [shrink ** (1 - step / max(1, points - 3)) for step in range(1, points - 2)]
    return (inside + outside)[-max(points, 3) :] if shrink < 1 else [2.0**-step for step in reversed(range(points))]


def _over_rows(policy: LatentPolicy, redraws: int, seed: int) -> PowerLaw:
    """The noise in a row's action mean against the row's own Jacobian: advantage 1, `ACTIONS` actions a row."""
    device = policy.context.device
    many = policy.rows(torch.arange(len(policy.context), device=device).repeat_interleave(ACTIONS))
    with seeded(seed, device):
        action = MonteCarlo(1).policy(*many).sample()
        ones = torch.ones_like(action[:, 0])
        found = gradient_noise(MonteCarlo(1), many, action, ones, clip=None, redraws=redraws)
    noise = torch.tensor(found.action_noise, dtype=torch.float64).unflatten(0, (-1, ACTIONS)).mean(1)
    spread = ratio_variance(policy).sqrt()
    used = (spread > 0) & (noise > 0)
    count = int(used.sum())
    return _fit(spread[used].tolist(), noise[used].tolist(), [0.0] * count, [True] * count, 2.0)


def _law(
    number: Callable[[GradientNoise], tuple[float, float]],
    quantities: Sequence[float],
    found: Sequence[GradientNoise],
    variances: Sequence[float],
    predicted: float,
) -> PowerLaw:
    noise, errors = zip(*map(number, found), strict=True)
    return _fit(quantities, noise, errors, [variance <= SMALL for variance in variances], predicted)


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
