"""The elementwise operators behind `elu_moments`, `relu_moments` and `leaky_relu_moments`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from p3kernels import checks
from p3kernels.activations import Activation
from p3kernels.backends import choose_backend
from p3kernels.cpu import native as cpu
from p3kernels.cuda import native as cuda
from p3kernels.ops.register import Kernels, Operators, elementwise, launched
from p3kernels.records import Backward, Gradients, activation_of, result_dtype


class Inputs(NamedTuple):
    """What the activations' operators take: mean and variance of one shape, whichever it is."""

    mean: Tensor
    var: Tensor
    activation_code: int
    activation_parameter: float


class Outputs(NamedTuple):
    """What the activations' operators give, of the shape of the inputs."""

    mean: Tensor
    var: Tensor


def _native(kernels: Any) -> Kernels[Inputs, Outputs]:
    """By the functions of a `native` module, the CPU's or the GPU's."""

    def forward(inputs: Inputs) -> Outputs:
        mean, var = inputs.mean.contiguous(), inputs.var.contiguous()
        out_mean = torch.empty_like(mean, dtype=result_dtype(mean))
        out_var = torch.empty_like(out_mean)
        kernels.moments_forward(activation_of(inputs), mean, var, None, out_mean, out_var)
        return Outputs(out_mean, out_var)

    def backward(request: Backward[Inputs, Outputs]) -> Gradients:
        mean, var = request.inputs.mean.contiguous(), request.inputs.var.contiguous()
        d_mean, d_var = torch.empty_like(mean), torch.empty_like(var)
        incoming = request.d_outputs
        kernels.moments_backward(activation_of(request.inputs), mean, var, None, *incoming, d_mean, d_var)
        return {"mean": d_mean, "var": d_var}

    return Kernels(forward, backward)


_OPERATORS = Operators(
    "activation_moments",
    Inputs,
    Outputs,
    fake=elementwise(Outputs),
    kernels={
        "cpu": _native(cpu),
        "cuda": _native(cuda),
        "triton": launched("triton_kernels.activation_moments", Outputs, ("mean", "var")),
    },
    differentiable=("mean", "var"),
)


def activation_moments(
    mean: Tensor, var: Tensor, activation: Activation, reference: Callable[..., Any], backend: str | None
) -> tuple[Tensor, Tensor]:
    """Mean and variance of an activation, by the chosen backend; `reference` takes its parameter after the moments."""
    chosen = choose_backend(backend, mean, var)
    check_moments(mean, var, chosen)
    if chosen == "reference":
        return reference(mean, var, activation.parameter)
    out = _OPERATORS(chosen, Inputs(mean, var, activation.code, activation.parameter))
    return out.mean, out.var


def check_moments(mean: Tensor, var: Tensor, backend: str) -> None:
    """Elementwise moments: two tensors of one shape, dtype and device."""
    checks.check_tensor("mean", mean, backend=backend)
    checks.check_tensor("var", var, backend=backend)
    checks.check_like("var", var, "mean", mean, backend)
    checks.check_shape("var", var, mean.shape)
    checks.check_values("var", var)
