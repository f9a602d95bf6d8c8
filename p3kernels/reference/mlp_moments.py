"""Moments through a whole MLP, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from p3kernels.activations import ELU, resolve_activation
from p3kernels.reference.elu_moments import elu_moments
from p3kernels.reference.leaky_relu_moments import leaky_relu_moments
from p3kernels.reference.linear_moments import linear_moments


def mlp_moments(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str = "elu",
    activation_parameter: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Moments of an MLP's output, the last layer linear, hidden units taken as independent Gaussians."""
    code, parameter = resolve_activation(activation, activation_parameter)
    activation_moments = elu_moments if code == ELU else leaky_relu_moments
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        mean, var = linear_moments(mean, var, weight, bias)
        if layer < len(weights) - 1:
            mean, var = activation_moments(mean, var, parameter)
    return mean, var
