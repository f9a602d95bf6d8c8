"""What the activations' moments share: a Gaussian seen from zero, and the moments of its positive part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_STD = 1e-140
LARGEST_SLOPE = 1e30
"""It only bounds what is multiplied by a variance below 1e-30."""


@dataclass
class PositivePart:
    """x ~ N(mean, var) and y = max(x, 0), in float64; none of the numbers is a difference of larger ones."""

    std: Tensor
    beta: Tensor
    """mean / std."""
    exp_half_square: Tensor
    """exp(−beta² / 2)."""
    density_over_std: Tensor
    """The density of x at 0; taken as 0 for var = 0, where it has no limit."""
    above: Tensor
    """P(x > 0)."""
    below: Tensor
    """P(x ≤ 0)."""
    mean: Tensor
    """E[y]."""
    var: Tensor
    """Var[y]."""
    mirror_mean: Tensor
    """E[max(−x, 0)]."""
    mirror_var: Tensor
    """Var[max(−x, 0)]."""


def positive_part(mean: Tensor, var: Tensor) -> PositivePart:
    """The positive part of N(mean, var), for float64 tensors; var = 0 is the limit std → 0."""
    std = var.sqrt()
    safe_std = std.clamp_min(SMALLEST_STD)
    beta = mean / safe_std
    distance = beta.abs()
    exp_half_square = torch.exp(-0.5 * beta.square())
    # Repeated integrals of the tail: Q, H1 = ∫Q, 2 H2 = 2∫H1.
    tail = 0.5 * exp_half_square * torch.special.erfcx(distance / math.sqrt(2))
    h1 = (exp_half_square / math.sqrt(2 * math.pi) - distance * tail).clamp_min(0)
    h2 = (tail - distance * h1).clamp_min(0)
    far_var = var * (h2 - h1.square())
    near_var = var * (1 - h2 - h1 * (2 * distance + h1))
    positive = mean >= 0
    return PositivePart(
        std=std,
        beta=beta,
        exp_half_square=exp_half_square,
        density_over_std=torch.where(var == 0, 0, exp_half_square / (math.sqrt(2 * math.pi) * safe_std)),
        above=torch.where(positive, 1 - tail, tail),
        below=torch.where(positive, tail, 1 - tail),
        mean=mean.clamp_min(0) + std * h1,
        var=torch.where(positive, near_var, far_var),
        mirror_mean=(-mean).clamp_min(0) + std * h1,
        mirror_var=torch.where(positive, far_var, near_var),
    )


def density_slope(part: PositivePart) -> Tensor:
    """∂/∂mean of the density of x at 0: −(mean / var) · density, kept finite in float32 as var → 0."""
    slope = -part.beta * part.density_over_std / part.std.clamp_min(SMALLEST_STD)
    return slope.clamp(-LARGEST_SLOPE, LARGEST_SLOPE)


def density_curvature(mean: Tensor, part: PositivePart) -> Tensor:
    """∂²/∂mean² of the density of x at 0: (mean² / var − 1) / var · density, kept finite as `density_slope` is."""
    curvature = -(part.density_over_std + mean * density_slope(part)) / part.std.clamp_min(SMALLEST_STD).square()
    return curvature.clamp(-LARGEST_SLOPE, LARGEST_SLOPE)


def guard(mean: Tensor, var: Tensor, value: Tensor) -> Tensor:
    """NaN where an input is NaN or the variance negative, in the dtype of the inputs."""
    return torch.where((var >= 0) & ~mean.isnan(), value, math.nan).to(mean.dtype)
