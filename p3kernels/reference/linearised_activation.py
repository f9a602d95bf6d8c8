"""Statistical linearisation of an activation: f(x) = E[f] + g (x − mean) + what is uncorrelated with x."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from p3kernels.activations import ELU
from p3kernels.reference.elu_moments import elu_derivatives, elu_gradients, elu_moments
from p3kernels.reference.gaussian import OnceDifferentiable
from p3kernels.reference.leaky_relu_moments import leaky_relu_derivatives, leaky_relu_gradients, leaky_relu_moments


class LinearisedUnits(NamedTuple):
    """Of f(x), x ~ N(mean, var), elementwise."""

    mean: Tensor
    """E[f]."""
    gain: Tensor
    """E[f′]."""
    residual: Tensor
    """Var[f] − gain² var ≥ 0."""
    curvature: Tensor
    """E[f″]."""


class _LinearisedActivation(torch.autograd.Function):
    @staticmethod
    def forward(mean: Tensor, var: Tensor, kind: int, parameter: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        moments, first, higher = _functions(kind)
        out_mean, out_var = moments(mean.double(), var.double(), parameter)
        gain = first(mean.double(), var.double(), parameter)[0]
        residual = (out_var - gain.square() * var.double()).clamp_min(0)
        curvature = higher(mean.double(), var.double(), parameter)[0]
        dtype = mean.dtype
        return out_mean.to(dtype), gain.to(dtype), residual.to(dtype), curvature.to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, float], output: tuple[Tensor, ...]) -> None:
        mean, var, ctx.kind, ctx.parameter = inputs
        ctx.save_for_backward(mean, var)

    @staticmethod
    def backward(
        ctx: Any, d_out: Tensor, d_gain: Tensor, d_residual: Tensor, d_curvature: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        mean, var = ctx.saved_tensors
        _, first, higher = _functions(ctx.kind)
        with torch.no_grad():
            m, v = mean.double(), var.double()
            gain, mean_var, var_mean, var_var = first(m, v, ctx.parameter)
            second, third, fourth = higher(m, v, ctx.parameter)
            # The clamp of the residual only meets rounding: its gradient is that of the difference everywhere.
            residual_mean = var_mean - 2 * gain * v * second
            residual_var = var_var - gain.square() - gain * v * third
            d_mean = d_out * gain + d_gain * second + d_residual * residual_mean + d_curvature * third
            d_var = d_out * mean_var + d_residual * residual_var + 0.5 * (d_gain * third + d_curvature * fourth)
            d_mean, d_var = d_mean.to(mean.dtype), d_var.to(mean.dtype)
        if torch.is_grad_enabled():
            d_mean, d_var = OnceDifferentiable.apply(d_mean, d_var, mean, var, d_out, d_gain, d_residual, d_curvature)
        return d_mean, d_var, None, None


def _functions(kind: int) -> tuple[Any, Any, Any]:
    """Moments, their gradients, and the expected derivatives of order two to four."""
    if kind == ELU:
        return elu_moments, elu_gradients, elu_derivatives
    return leaky_relu_moments, leaky_relu_gradients, leaky_relu_derivatives


def linearised_activation(mean: Tensor, var: Tensor, kind: int, parameter: float) -> LinearisedUnits:
    """The units for pre-activations of these means and variances, with exact gradients."""
    return LinearisedUnits(*_LinearisedActivation.apply(mean, var, kind, parameter))
