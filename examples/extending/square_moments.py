"""An op of one's own: mean and variance of x², x ~ N(mean, var)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from p3kernels import checks
from p3kernels.backends import choose_backend
from p3kernels.ops.register import Kernels, Operators, elementwise, launched
from p3kernels.records import Backward, Gradients


def reference(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """The op as plain torch, the truth for its kernels. Every term is non-negative: nothing cancels."""
    return mean.square() + var, 2.0 * var * (var + 2.0 * mean.square())


class Inputs(NamedTuple):
    """What the op takes, checked; the annotations become the operator's schema."""

    mean: Tensor
    var: Tensor


class Outputs(NamedTuple):
    """What the op gives, of the shape of the inputs."""

    mean: Tensor
    var: Tensor


def _cpu_forward(inputs: Inputs) -> Outputs:
    return Outputs(*(moment.contiguous() for moment in reference(inputs.mean, inputs.var)))  # a C++ kernel's place


def _cpu_backward(request: Backward[Inputs, Outputs]) -> Gradients:
    (mean, var), (d_out_mean, d_out_var) = request.inputs, request.d_outputs
    return {
        "mean": 2.0 * mean * d_out_mean + 8.0 * mean * var * d_out_var,
        "var": d_out_mean + 4.0 * (var + mean.square()) * d_out_var,
    }


_OPERATORS = Operators(
    "square_moments",
    Inputs,
    Outputs,
    fake=elementwise(Outputs),
    kernels={
        "cpu": Kernels(_cpu_forward, _cpu_backward),
        "triton": launched("square_moments_triton", Outputs, ("mean", "var")),
    },
    differentiable=("mean", "var"),
)


def square_moments(mean: Tensor, var: Tensor, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Mean and variance of x², elementwise.

    Args:
        mean: Any shape, float32 or float64.
        var: The same shape, ≥ 0.
        backend: None to choose, or "reference", "cpu", "triton".
    """
    chosen = choose_backend(backend, mean, var)
    checks.check_tensor("mean", mean, backend=chosen)
    checks.check_tensor("var", var, backend=chosen)
    checks.check_like("var", var, "mean", mean, chosen)
    checks.check_shape("var", var, mean.shape)
    return reference(mean, var) if chosen == "reference" else tuple(_OPERATORS(chosen, Inputs(mean, var)))


if __name__ == "__main__":
    mean = torch.linspace(-2.0, 2.0, 5, requires_grad=True)
    out_mean, out_var = square_moments(mean, torch.full((5,), 0.25))
    (out_mean + out_var).sum().backward()
    print("mean    ", out_mean.tolist(), "\nvariance", out_var.tolist(), "\ngradient", mean.grad.tolist())
