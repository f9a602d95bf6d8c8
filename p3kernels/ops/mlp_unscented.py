"""The operator behind `mlp_covariance`'s unscented transform, on the CPU backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from p3kernels.layered import mlp_unscented as cpu_kernel
from p3kernels.ops.second_derivatives import refuse_second_derivatives


@torch.library.custom_op("p3kernels::mlp_unscented_cpu", mutates_args=(), device_types="cpu")
def run_mlp_unscented(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    kind: int,
    parameter: float,
) -> tuple[Tensor, Tensor]:
    """Mean [B, A] and covariance [B, A, A]."""
    contiguous = [bias.contiguous() for bias in biases]
    return cpu_kernel.forward(mean, var, weights, contiguous, kind, parameter)


@run_mlp_unscented.register_fake
def _(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    kind: int,
    parameter: float,
) -> tuple[Tensor, Tensor]:
    rows, actions = mean.shape[0], weights[-1].shape[0]
    return mean.new_empty(rows, actions), mean.new_empty(rows, actions, actions)


@torch.library.custom_op("p3kernels::mlp_unscented_backward_cpu", mutates_args=(), device_types="cpu")
def _operator_backward(
    d_out_mean: Tensor,
    d_covariance: Tensor,
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    kind: int,
    parameter: float,
) -> list[Tensor]:
    """[d_mean, d_var, *d_weights, *d_biases]."""
    contiguous = [bias.contiguous() for bias in biases]
    d_mean, d_var, d_weights, d_biases = cpu_kernel.backward(
        d_out_mean, d_covariance, mean, var, weights, contiguous, kind, parameter
    )
    return [d_mean, d_var, *d_weights, *d_biases]


@_operator_backward.register_fake
def _(
    d_out_mean: Tensor,
    d_covariance: Tensor,
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    kind: int,
    parameter: float,
) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in (mean, var, *weights, *biases)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    mean, var, weights, biases, ctx.kind, ctx.parameter = inputs
    ctx.layers = len(weights)
    ctx.save_for_backward(mean, var, *weights, *biases)


def _differentiate(ctx: Any, d_out_mean: Tensor, d_covariance: Tensor) -> tuple[Any, ...]:
    mean, var, *parameters = ctx.saved_tensors
    layers = ctx.layers
    d_mean, d_var, *d_parameters = _operator_backward(
        d_out_mean,
        d_covariance,
        mean,
        var,
        parameters[:layers],
        parameters[layers:],
        ctx.kind,
        ctx.parameter,
    )
    return d_mean, d_var, d_parameters[:layers], d_parameters[layers:], None, None


run_mlp_unscented.register_autograd(_differentiate, setup_context=_setup_context)
refuse_second_derivatives(_operator_backward, "cpu")
