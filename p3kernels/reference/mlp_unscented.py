"""Mean and covariance of an MLP's output over 2 J points that have the inputs' mean and covariance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from p3kernels.activations import ELU, Activation
from p3kernels.reference.mlp_covariance import SMALLEST_VAR


def point_directions(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[J, J]: √J times a symmetric orthogonal matrix, Hartley's cos + sin; every entry is at most √2.

    A point ± √J σ_j e_j, as on the axes, is farther out in one input than almost any sample; these directions move all
    inputs at once, each by about a standard deviation, as samples do.
    """
    index = torch.arange(count, dtype=torch.float64, device=device)
    angle = 2 * math.pi / max(count, 1) * torch.remainder(index[:, None] * index, max(count, 1))
    return (angle.cos() + angle.sin()).to(dtype)


def mlp_unscented(
    mean: Tensor, var: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], activation: Activation
) -> tuple[Tensor, Tensor]:
    """Mean [B, A] and covariance [B, A, A] of the outputs at mean ± √J std ∘ h_j, all of weight 1 / 2J."""
    stochastic = var.shape[1]
    centre = torch.nn.functional.linear(mean, weights[0], biases[0])[:, None]
    steps = (var + SMALLEST_VAR).sqrt()[:, None] * point_directions(stochastic, var.dtype, var.device)
    shift = steps @ weights[0][:, weights[0].shape[1] - stochastic :].t()
    points = torch.cat([centre + shift, centre - shift], 1) if stochastic else centre
    for weight, bias in zip(weights[1:], biases[1:], strict=True):
        hidden = (
            torch.nn.functional.elu(points, activation.parameter)
            if activation.code == ELU
            else torch.nn.functional.leaky_relu(points, activation.parameter)
        )
        points = torch.nn.functional.linear(hidden, weight, bias)
    out_mean = points.mean(1)
    deviation = points - out_mean[:, None]
    return out_mean, deviation.mT @ deviation / max(points.shape[1], 1)
