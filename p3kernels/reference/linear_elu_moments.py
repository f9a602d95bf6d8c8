"""Moments through a linear layer and an ELU."""

from __future__ import annotations

from torch import Tensor

from p3kernels.reference.elu_moments import elu_moments
from p3kernels.reference.linear_moments import linear_moments


def linear_elu_moments(
    mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor | None = None, alpha: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`linear_moments`, then `elu_moments`."""
    return elu_moments(*linear_moments(mean, var, weight, bias), alpha)
