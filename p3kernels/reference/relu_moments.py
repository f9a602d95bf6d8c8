"""Mean and variance of ReLU(x), x ~ N(mean, var)."""

from __future__ import annotations

from torch import Tensor

from p3kernels.reference.leaky_relu_moments import leaky_relu_moments


def relu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of ReLU(x), elementwise: LeakyReLU with slope 0."""
    return leaky_relu_moments(mean, var, 0.0)
