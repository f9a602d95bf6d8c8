"""TF32 operands are rounded to nearest where they are written; the interpreter then multiplies what a GPU would."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from p3kernels import mlp_moments
from triton_kernels.moment_buffers import Buffers, Layout
from triton_kernels.pack import Matrix, pack


def results(precision: str | None, backend: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Outputs and gradients of a small actor."""
    source = torch.Generator().manual_seed(3)
    sizes, stochastic, rows = (23, 40, 17, 5), 11, 48
    mean, var = torch.randn(rows, sizes[0], generator=source), 0.5 * torch.rand(rows, stochastic, generator=source)
    weights = [torch.randn(o, i, generator=source) * i**-0.5 for i, o in itertools.pairwise(sizes)]
    biases = [0.1 * torch.randn(o, generator=source) for o in sizes[1:]]
    inputs = [tensor.to(dtype).requires_grad_() for tensor in (mean, var, *weights, *biases)]
    named = {} if precision is None else {"precision": precision}
    out = mlp_moments(inputs[0], inputs[1], inputs[2:5], inputs[5:], backend=backend, **named)
    cotangents = [torch.randn(out[0].shape, generator=source).to(dtype) for _ in out]
    return [tensor.detach() for tensor in (*out, *torch.autograd.grad(out, inputs, cotangents))]


def errors(precision: str) -> list[float]:
    expected = results(None, "reference", torch.float64)
    got = results(precision, "triton", torch.float32)
    return [float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, expected, strict=True)]


def test_high_is_more_accurate_than_medium():
    """torch's "high" is tf32, 11 bits and derivatives of 11 bits; "medium" is bf16 with 8."""
    for high, medium in zip(errors("tf32"), errors("bf16"), strict=True):
        assert high < 2e-3
        assert high < 0.5 * medium


@pytest.mark.parametrize("layers", [1, 2])
def test_variance_has_no_bias(layers):
    """Operands that are cut off make every product of positive numbers too small, by 7e-4; squares of rounded weights
    that are rounded again make it too large, by 1.5e-5. One layer is packed, two are one launch.
    """
    source = torch.Generator().manual_seed(4)
    mean, var = torch.full((16, 256), 50.0), 0.1 + torch.rand(16, 256, generator=source)
    weights = [torch.randn(256, 256, generator=source) for _ in range(layers)]
    biases = [torch.full((256,), 1e4) for _ in range(layers)]  # every activation is the identity
    _, got = mlp_moments(mean, var, weights, biases, precision="tf32", backend="triton")
    expected = var.double()
    for weight in weights:
        expected = expected @ weight.double().square().t()
    assert abs(float(((got - expected) / expected).mean())) < 1e-5


@pytest.mark.parametrize("value", [1.0, 1.0 + 2**-11, -(1.0 + 2**-12), 3.3e38, 1e-30, float("inf"), float("nan"), 0.0])
def test_rounding_of_a_number(value):
    source, to = torch.full((1, 1), value), torch.empty(1, 16)
    pack([Matrix(source, to)], "tf32")
    assert to[0, 1:].count_nonzero() == 0
    bits = source.view(torch.int32)
    low = int(bits) & 8191
    nearest = (bits - low + (8192 if low >= 4096 else 0)).view(torch.float32)
    expected = source if math.isnan(value) else nearest
    torch.testing.assert_close(to[:, :1], expected, rtol=0, atol=0, equal_nan=True)


def test_deterministic_inputs_lie_before_a_gap():
    layout = Layout(2, (5, 3), 2, 0)
    buffers = Buffers(layout, torch.full((layout.size("ieee"),), torch.nan), "ieee")
    mean, var = torch.arange(10.0).view(2, 5), torch.arange(4.0).view(2, 2)
    weight = torch.arange(15.0).view(3, 5)
    pack(buffers.matrices(mean, var, [weight]), "ieee")
    assert layout.gap == 13
    assert buffers.inputs[0].shape == (2, 32)
    assert torch.equal(buffers.inputs[0][:, :3], mean[:, :3])
    assert torch.equal(buffers.inputs[0][:, 16:18], mean[:, 3:])
    assert buffers.inputs[0].sum() == mean.sum()
    assert torch.equal(buffers.inputs[1][:, :2], var)
    assert torch.equal(buffers.turned[0][16:18, :3], weight.t()[3:])
    assert buffers.weights[0].sum() == buffers.turned[0].sum() == weight.sum()
