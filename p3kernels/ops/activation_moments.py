"""The elementwise operator behind `elu_moments`, `relu_moments` and `leaky_relu_moments` on the CPU backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from p3kernels import checks
from p3kernels.cpu import native


@torch.library.custom_op("p3kernels::activation_moments_cpu", mutates_args=(), device_types="cpu")
def activation_moments_cpu(mean: Tensor, var: Tensor, kind: int, parameter: float) -> tuple[Tensor, Tensor]:
    """Moments of an activation: any shape → the same shape, twice."""
    mean, var = mean.contiguous(), var.contiguous()
    out_mean, out_var = torch.empty_like(mean), torch.empty_like(mean)
    native.moments_forward(kind, parameter, mean, var, None, out_mean, out_var)
    return out_mean, out_var


@activation_moments_cpu.register_fake
def _(mean: Tensor, var: Tensor, kind: int, parameter: float) -> tuple[Tensor, Tensor]:
    empty = torch.empty_like(mean, memory_format=torch.contiguous_format)
    return empty, torch.empty_like(empty)


@torch.library.custom_op("p3kernels::activation_moments_backward_cpu", mutates_args=(), device_types="cpu")
def activation_moments_backward_cpu(
    d_out_mean: Tensor, d_out_var: Tensor, mean: Tensor, var: Tensor, kind: int, parameter: float
) -> tuple[Tensor, Tensor]:
    """d_mean, d_var."""
    mean, var = mean.contiguous(), var.contiguous()
    d_mean, d_var = torch.empty_like(mean), torch.empty_like(mean)
    native.moments_backward(
        kind, parameter, mean, var, None, d_out_mean.contiguous(), d_out_var.contiguous(), d_mean, d_var
    )
    return d_mean, d_var


@activation_moments_backward_cpu.register_fake
def _(
    d_out_mean: Tensor, d_out_var: Tensor, mean: Tensor, var: Tensor, kind: int, parameter: float
) -> tuple[Tensor, Tensor]:
    empty = torch.empty_like(mean, memory_format=torch.contiguous_format)
    return empty, torch.empty_like(empty)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, float], output: tuple[Tensor, Tensor]) -> None:
    mean, var, ctx.kind, ctx.parameter = inputs
    ctx.save_for_backward(mean, var)


def _backward(ctx: Any, d_out_mean: Tensor, d_out_var: Tensor) -> tuple[Tensor, Tensor, None, None]:
    mean, var = ctx.saved_tensors
    d_mean, d_var = torch.ops.p3kernels.activation_moments_backward_cpu(
        d_out_mean, d_out_var, mean, var, ctx.kind, ctx.parameter
    )
    return d_mean, d_var, None, None


activation_moments_cpu.register_autograd(_backward, setup_context=_setup_context)


def check_moments(mean: Tensor, var: Tensor) -> None:
    """Elementwise moments: two tensors of one shape, dtype and device."""
    checks.check_tensor("mean", mean)
    checks.check_tensor("var", var)
    checks.check_like("var", var, "mean", mean)
    checks.check_shape("var", var, mean.shape)
    checks.check_values("var", var)
