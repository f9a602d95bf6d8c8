"""What rounding the operands of the dots costs the actor's moments, emulated: `python tools/dot_precision_error.py`.

Every product of the forward and the backward pass gets operands rounded as the precision does, everything else is
float64, and the results are compared with float64 throughout. Largest error over the largest element of each tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from p3kernels import reference
from p3kernels.bench.actor import moment_inputs, split_parameters
from p3kernels.bench.entry import Size

ROWS = 1024


def keep_bits(x: Tensor, bits: int) -> Tensor:
    """x with a significand of `bits` bits, rounded to nearest."""
    significand, exponent = torch.frexp(x)
    return torch.ldexp((significand * 2**bits).round(), exponent - bits)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """The TF32 value nearest to x, and the TF32 value nearest to what is left."""
    high = keep_bits(x, 11)
    return high, keep_bits(x - high, 11)


def product(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """a b with operands of fp32, rounded as `precision` does."""
    a, b = keep_bits(a, 24), keep_bits(b, 24)
    if precision == "tf32x3":
        (a_high, a_low), (b_high, b_low) = split(a), split(b)
        return a_high @ b_high + (a_high @ b_low + a_low @ b_high)
    if precision == "tf32":  # the tensor cores would cut off; the kernels round where they write
        return keep_bits(a, 11) @ keep_bits(b, 11)
    if precision == "bf16":
        return keep_bits(a, 8) @ keep_bits(b, 8)
    return a @ b


class Product(torch.autograd.Function):
    """a bᵀ, its gradients by products of the same precision."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, precision: str) -> Tensor:
        """[B, I], [O, I] → [B, O]."""
        ctx.save_for_backward(a, b)
        ctx.precision = precision
        return product(a, b.t(), precision)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, None]:
        """d_a, d_b."""
        a, b = ctx.saved_tensors
        return product(d_out, b, ctx.precision), product(d_out.t(), a, ctx.precision), None


def results(precision: str | None) -> list[Tensor]:
    """Outputs and gradients of the actor's moments; None for float64 without rounding."""
    inputs = {name: tensor.double().requires_grad_() for name, tensor in moment_inputs(Size(ROWS)).items()}
    mean, var = inputs["mean"], inputs["var"]
    weights, biases = split_parameters(inputs)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        stochastic = weight[:, weight.shape[1] - var.shape[1] :].square()
        if precision is None:
            mean, var = mean @ weight.t() + bias, var @ stochastic.t()
        else:
            mean = Product.apply(mean, weight, precision) + bias
            var = Product.apply(var, stochastic, precision)
        if layer < len(weights) - 1:
            mean, var = reference.elu_moments(mean, var)
    source = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(mean.shape, generator=source).double() for _ in range(2)]
    return [mean.detach(), var.detach(), *torch.autograd.grad((mean, var), list(inputs.values()), cotangents)]


def main() -> None:
    """Prints one line a precision."""
    expected = results(None)
    print(f"{'':<8}{'mean':>10}{'var':>10}{'gradients':>11}   ({ROWS} rows of the G1 actor)")
    for precision in ("ieee", "tf32x3", "tf32", "bf16"):
        errors = [
            float((got - true).abs().max() / true.abs().max())
            for got, true in zip(results(precision), expected, strict=True)
        ]
        print(f"{precision:<8}{errors[0]:>10.1e}{errors[1]:>10.1e}{max(errors[2:]):>11.1e}")


if __name__ == "__main__":
    main()
