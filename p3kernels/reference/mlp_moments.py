"""Moments through a whole MLP, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from p3kernels.activations import ELU, Activation, activation_by_name
from p3kernels.reference.elu_moments import elu_moments
from p3kernels.reference.leaky_relu_moments import leaky_relu_moments
from p3kernels.reference.linear_moments import linear_moments


@activation_by_name
def mlp_moments(
    mean: Tensor, var: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], *, activation: Activation
) -> tuple[Tensor, Tensor]:
    """Moments of an MLP's output, the last layer linear, hidden units taken as independent Gaussians."""
    activation_moments = elu_moments if activation.code == ELU else leaky_relu_moments
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        mean, var = linear_moments(mean, var, weight, bias)
        if layer < len(weights) - 1:
            mean, var = activation_moments(mean, var, activation.parameter)
    return mean, var
