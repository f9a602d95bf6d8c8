"""The moments as the paper prints them, in eager torch: E[y] and E[y²], and their difference clamped at 0.

This is what a reader of the paper would write. In float32 the difference cancels: the variance of a narrow Gaussian
loses its digits, which the benchmark shows as this contestant's error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SMALLEST_VAR = 1e-12


def _density(beta: Tensor) -> Tensor:
    return torch.exp(-0.5 * beta.square()) / math.sqrt(2 * math.pi)


def elu_moments(mean: Tensor, var: Tensor, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """Mean and variance of ELU(x), x ~ N(mean, var): the paper's "Probabilistic ELU Activation"."""
    std = var.clamp_min(SMALLEST_VAR).sqrt()
    beta = mean / std
    above, below, density = torch.special.ndtr(beta), torch.special.ndtr(-beta), _density(beta)
    exp_1 = torch.exp(mean + var / 2) * torch.special.ndtr(-beta - std)
    exp_2 = torch.exp(2 * mean + 2 * var) * torch.special.ndtr(-beta - 2 * std)
    first = mean * above + std * density + alpha * (exp_1 - below)
    second = (mean.square() + var) * above + mean * std * density + alpha**2 * (exp_2 - 2 * exp_1 + below)
    return first, (second - first.square()).clamp_min(0)


def leaky_relu_moments(mean: Tensor, var: Tensor, negative_slope: float = 0.01) -> tuple[Tensor, Tensor]:
    """Mean and variance of LeakyReLU(x), x ~ N(mean, var), the same way."""
    std = var.clamp_min(SMALLEST_VAR).sqrt()
    beta = mean / std
    above, below, density = torch.special.ndtr(beta), torch.special.ndtr(-beta), _density(beta)
    first = mean * (above + negative_slope * below) + (1 - negative_slope) * std * density
    second = (mean.square() + var) * (above + negative_slope**2 * below)
    second = second + (1 - negative_slope**2) * mean * std * density
    return first, (second - first.square()).clamp_min(0)
