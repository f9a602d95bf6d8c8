"""The elementwise operators behind `elu_moments`, `relu_moments` and `leaky_relu_moments`, one a backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from p3kernels import checks
from p3kernels.cpu import native
from p3kernels.cuda import native as cuda_native
from p3kernels.ops.second_derivatives import refuse_second_derivatives


def result_dtype(tensor: Tensor) -> torch.dtype:
    """What an operator answers with: bfloat16 is taken but never given."""
    return torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype


def triton_launcher(module: str, name: str) -> Callable[..., Any]:
    """A function of triton_kernels, imported when it is called: importing p3kernels imports no triton."""

    def launcher(*args: Any) -> Any:
        return getattr(importlib.import_module(f"triton_kernels.{module}"), name)(*args)

    return launcher


def define_operators(
    backend: str,
    device_types: str | None,
    forward: Callable[..., tuple[Tensor, Tensor]],
    backward: Callable[..., tuple[Tensor, Tensor]],
) -> Any:
    """Registers p3kernels::activation_moments_<backend> and its backward, with shapes and autograd; returns the first.

    Args:
        backend: The last part of the names.
        device_types: What the kernels run on, None for any device.
        forward: (mean, var, kind, parameter) → out_mean, out_var.
        backward: (d_out_mean, d_out_var, mean, var, kind, parameter) → d_mean, d_var.
    """

    @torch.library.custom_op(f"p3kernels::activation_moments_{backend}", mutates_args=(), device_types=device_types)
    def operator(mean: Tensor, var: Tensor, kind: int, parameter: float) -> tuple[Tensor, Tensor]:
        return forward(mean, var, kind, parameter)

    @operator.register_fake
    def _(mean: Tensor, var: Tensor, kind: int, parameter: float) -> tuple[Tensor, Tensor]:
        empty = torch.empty_like(mean, dtype=result_dtype(mean), memory_format=torch.contiguous_format)
        return empty, torch.empty_like(empty)

    @torch.library.custom_op(
        f"p3kernels::activation_moments_backward_{backend}", mutates_args=(), device_types=device_types
    )
    def operator_backward(
        d_out_mean: Tensor, d_out_var: Tensor, mean: Tensor, var: Tensor, kind: int, parameter: float
    ) -> tuple[Tensor, Tensor]:
        return backward(d_out_mean, d_out_var, mean, var, kind, parameter)

    @operator_backward.register_fake
    def _(
        d_out_mean: Tensor, d_out_var: Tensor, mean: Tensor, var: Tensor, kind: int, parameter: float
    ) -> tuple[Tensor, Tensor]:
        contiguous = torch.contiguous_format
        return torch.empty_like(mean, memory_format=contiguous), torch.empty_like(var, memory_format=contiguous)

    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, float], output: tuple[Tensor, Tensor]) -> None:
        mean, var, ctx.kind, ctx.parameter = inputs
        ctx.save_for_backward(mean, var)

    def differentiate(ctx: Any, d_out_mean: Tensor, d_out_var: Tensor) -> tuple[Tensor, Tensor, None, None]:
        mean, var = ctx.saved_tensors
        d_mean, d_var = operator_backward(d_out_mean, d_out_var, mean, var, ctx.kind, ctx.parameter)
        return d_mean, d_var, None, None

    operator.register_autograd(differentiate, setup_context=setup_context)
    refuse_second_derivatives(operator_backward, backend)
    return operator


def _launchers(kernels: Any) -> tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., tuple[Tensor, Tensor]]]:
    """Forward and backward by the functions of a `native` module, the CPU's or the GPU's."""

    def forward(mean: Tensor, var: Tensor, kind: int, parameter: float) -> tuple[Tensor, Tensor]:
        mean, var = mean.contiguous(), var.contiguous()
        out_mean = torch.empty_like(mean, dtype=result_dtype(mean))
        out_var = torch.empty_like(out_mean)
        kernels.moments_forward(kind, parameter, mean, var, None, out_mean, out_var)
        return out_mean, out_var

    def backward(
        d_out_mean: Tensor, d_out_var: Tensor, mean: Tensor, var: Tensor, kind: int, parameter: float
    ) -> tuple[Tensor, Tensor]:
        mean, var = mean.contiguous(), var.contiguous()
        d_mean, d_var = torch.empty_like(mean), torch.empty_like(var)
        incoming = (d_out_mean.contiguous(), d_out_var.contiguous())
        kernels.moments_backward(kind, parameter, mean, var, None, *incoming, d_mean, d_var)
        return d_mean, d_var

    return forward, backward


_OPERATORS = {
    "cpu": define_operators("cpu", "cpu", *_launchers(native)),
    "cuda": define_operators("cuda", None, *_launchers(cuda_native)),
    "triton": define_operators(
        "triton",
        None,
        triton_launcher("activation_moments", "forward"),
        triton_launcher("activation_moments", "backward"),
    ),
}


def run_activation_moments(
    backend: str, mean: Tensor, var: Tensor, kind: int, parameter: float
) -> tuple[Tensor, Tensor]:
    """The operator of a backend on checked arguments."""
    return _OPERATORS[backend](mean, var, kind, float(parameter))


def check_moments(mean: Tensor, var: Tensor, backend: str) -> None:
    """Elementwise moments: two tensors of one shape, dtype and device."""
    checks.check_tensor("mean", mean, backend=backend)
    checks.check_tensor("var", var, backend=backend)
    checks.check_like("var", var, "mean", mean, backend)
    checks.check_shape("var", var, mean.shape)
    checks.check_values("var", var)
