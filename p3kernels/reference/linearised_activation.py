"""Statistical linearisation of an activation: f(x) = E[f] + g (x − mean) + what is uncorrelated with x."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from p3kernels.activations import ELU
from p3kernels.reference.elu_moments import elu_gain_gradients, elu_gradients, elu_moments
from p3kernels.reference.gaussian import OnceDifferentiable
from p3kernels.reference.leaky_relu_moments import leaky_relu_gain_gradients, leaky_relu_gradients, leaky_relu_moments


class _LinearisedActivation(torch.autograd.Function):
    @staticmethod
    def forward(mean: Tensor, var: Tensor, kind: int, parameter: float) -> tuple[Tensor, Tensor, Tensor]:
        moments, gradients = (elu_moments, elu_gradients) if kind == ELU else (leaky_relu_moments, leaky_relu_gradients)
        out_mean, out_var = moments(mean.double(), var.double(), parameter)
        gain = gradients(mean.double(), var.double(), parameter)[0]
        residual = (out_var - gain.square() * var.double()).clamp_min(0)
        return out_mean.to(mean.dtype), gain.to(mean.dtype), residual.to(mean.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, float], output: tuple[Tensor, ...]) -> None:
        mean, var, ctx.kind, ctx.parameter = inputs
        ctx.save_for_backward(mean, var)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_gain: Tensor, d_residual: Tensor) -> tuple[Tensor, Tensor, None, None]:
        mean, var = ctx.saved_tensors
        first, second = (
            (elu_gradients, elu_gain_gradients)
            if ctx.kind == ELU
            else (leaky_relu_gradients, leaky_relu_gain_gradients)
        )
        with torch.no_grad():
            m, v = mean.double(), var.double()
            gain, mean_var, var_mean, var_var = first(m, v, ctx.parameter)
            gain_mean, gain_var = second(m, v, ctx.parameter)
            # The clamp of the residual only meets rounding: its gradient is that of the difference everywhere.
            residual_mean = var_mean - 2 * gain * v * gain_mean
            residual_var = var_var - gain.square() - 2 * gain * v * gain_var
            d_mean = d_out * gain + d_gain * gain_mean + d_residual * residual_mean
            d_var = d_out * mean_var + d_gain * gain_var + d_residual * residual_var
            d_mean, d_var = d_mean.to(mean.dtype), d_var.to(mean.dtype)
        if torch.is_grad_enabled():
            d_mean, d_var = OnceDifferentiable.apply(d_mean, d_var, mean, var, d_out, d_gain, d_residual)
        return d_mean, d_var, None, None


def linearised_activation(mean: Tensor, var: Tensor, kind: int, parameter: float) -> tuple[Tensor, Tensor, Tensor]:
    """E[f], g = E[f′] and Var[f] − g² var ≥ 0 for x ~ N(mean, var), elementwise, with exact gradients."""
    out_mean, gain, residual = _LinearisedActivation.apply(mean, var, kind, parameter)
    return out_mean, gain, residual
