"""The error table of derivation.md: kernels against 50-digit arithmetic, and densely against the float64 reference.

python tools/measure_accuracy.py
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import p3kernels

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from helpers import oracle

POINTS = 3000
DENSE_POINTS = 131_072
# std and beta ranges where the ELU kernel changes its method
DENSE = ((0.3, 0.9, -0.5, 0.3), (0.3, 2, -1.3, -0.7), (0.45, 0.55, -3, 0), (0.5, 6, -4, -0.9), (1e-4, 0.5, -3, 1))
CASES = (
    *((f"ELU, alpha = {a}", p3kernels.elu_moments, oracle.elu, a) for a in (0.5, 1.0, 1.7)),
    *((f"LeakyReLU, slope = {s}", p3kernels.leaky_relu_moments, oracle.leaky_relu, s) for s in (0.0, 0.01, 0.2)),
)

generator = torch.Generator().manual_seed(1)


def uniform(low: float, high: float, count: int) -> Tensor:
    """Uniform numbers, float64."""
    return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)


def six(op: Callable[..., tuple[Tensor, Tensor]], mean: Tensor, var: Tensor) -> Tensor:
    """Mean, variance and the four partial derivatives, [6, n] in float64."""
    mean, var = mean.detach().requires_grad_(), var.detach().requires_grad_()
    outputs = op(mean, var)
    gradients = [g for out in outputs for g in torch.autograd.grad(out.sum(), (mean, var), retain_graph=True)]
    return torch.stack([tensor.detach().double() for tensor in (*outputs, *gradients)])


def worst(got: Tensor, exact: Tensor, var: Tensor, tail: float) -> list[float]:
    """Largest error of the mean, the variance and the gradients (above 1e-9 of their unit), each by its scale."""
    std = var.double().sqrt()
    one = torch.ones_like(std)
    scales = [exact[0].abs() + std, exact[1] + tail * var.double()]
    scales += [row.abs() + 1e-9 * unit for row, unit in zip(exact[2:], (one, one, std, one), strict=True)]
    errors = [float(((g - e).abs() / s).max()) for g, e, s in zip(got, exact, scales, strict=True)]
    return [errors[0], errors[1], max(errors[2:])]


def main() -> None:
    """Prints one line a case and dtype, then the dense check."""
    print(f"{'':32} {'mean':>9} {'variance':>9} {'gradients':>9}")
    for dtype in (torch.float32, torch.float64):
        std = 10 ** uniform(-4, 1, POINTS)
        near = (std * uniform(-9, 9, POINTS)).clamp(-20, 20)
        mean = torch.where(uniform(0, 1, POINTS) < 0.5, uniform(-20, 20, POINTS), near).to(dtype)
        var = std.square().to(dtype)
        for name, op, exactly, parameter in CASES:
            rounded = float(torch.tensor(parameter, dtype=dtype))  # the kernel sees the parameter in its dtype
            pairs = zip(mean.tolist(), var.tolist(), strict=True)
            exact = torch.tensor(
                [[float(x) for x in exactly(m, v, rounded)] for m, v in pairs], dtype=torch.float64
            ).t()
            tail = 1e-4 if parameter == 0 else 0.0
            row = worst(six(lambda m, v, op=op, p=parameter: op(m, v, p), mean, var), exact, var, tail)
            print(f"{name + ', ' + str(dtype)[6:]:32} " + " ".join(f"{value:9.1e}" for value in row))
    rows = []
    for low, high, beta_low, beta_high in DENSE:
        std = uniform(low, high, DENSE_POINTS)
        mean, var = (std * uniform(beta_low, beta_high, DENSE_POINTS)).float(), std.square().float()
        reference = functools.partial(p3kernels.elu_moments, backend="reference")
        rows.append(worst(six(p3kernels.elu_moments, mean, var), six(reference, mean.double(), var.double()), var, 0.0))
    row = [max(column) for column in zip(*rows, strict=True)]
    print(f"{'ELU, alpha = 1, dense, float32':32} " + " ".join(f"{value:9.1e}" for value in row))


if __name__ == "__main__":
    main()
