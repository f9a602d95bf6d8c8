"""Moments through a linear layer, under independent inputs."""

from __future__ import annotations

from torch import Tensor


def linear_moments(mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """mean Wᵀ + b and var (W ∘ W)ᵀ; the columns of `var` [B, J] belong to the last J inputs."""
    stochastic = weight[:, weight.shape[1] - var.shape[1] :]
    out_mean = mean @ weight.t()
    return (out_mean if bias is None else out_mean + bias), var @ stochastic.square().t()
