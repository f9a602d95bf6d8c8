"""The Monte Carlo likelihood keeps 16 bits between its products in "tf32" and "bf16": accuracy, and float16's range."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

import p3kernels
from triton_kernels import mlp_mixture_log_prob as kernel
from triton_kernels.kernels.moments_math import ELU

ROWS, CONTEXT, LATENT, SAMPLES = 24, 9, 6, 5
SIZES = (CONTEXT + LATENT, 40, 17, 20, 3)


def inputs_of(dtype: torch.dtype, weight_scale: float = 1.0) -> list[Tensor]:
    """Action, context, latent mean and std, weights, biases, std."""
    source = torch.Generator().manual_seed(3)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=source)

    rows = [normal(ROWS, SIZES[-1]), normal(ROWS, CONTEXT), normal(ROWS, LATENT), 0.1 + normal(ROWS, LATENT).abs()]
    weights = [normal(o, i, scale=weight_scale * i**-0.5) for i, o in itertools.pairwise(SIZES)]
    biases = [normal(o, scale=0.1) for o in SIZES[1:]]
    std = 0.4 + 0.2 * normal(SIZES[-1]).abs()
    return [tensor.to(dtype).requires_grad_() for tensor in (*rows, *weights, *biases, std)]


def log_prob_of(inputs: list[Tensor], backend: str, precision: str | None) -> Tensor:
    noise = torch.randn(SAMPLES, ROWS, LATENT, generator=torch.Generator().manual_seed(4)).to(inputs[0])
    named = {} if precision is None else {"precision": precision}
    return p3kernels.mlp_mixture_log_prob(
        *inputs[:4], inputs[4:8], inputs[8:12], inputs[12], num_samples=SAMPLES, noise=noise, backend=backend, **named
    )


def gradients(incoming: Tensor, backend: str = "triton", precision: str | None = "tf32") -> list[Tensor]:
    dtype = torch.float64 if backend == "reference" else torch.float32
    inputs = inputs_of(dtype)
    return list(torch.autograd.grad(log_prob_of(inputs, backend, precision), inputs, incoming.to(dtype)))


def incoming_of(scale: float) -> Tensor:
    return scale * torch.randn(ROWS, generator=torch.Generator().manual_seed(5))


def errors(precision: str, scale: float = 1.0) -> list[float]:
    """The error of every gradient, relative to its largest element."""
    pairs = zip(
        gradients(incoming_of(scale), precision=precision),
        gradients(incoming_of(scale), "reference", None),
        strict=True,
    )
    return [float((got - expected).abs().max() / expected.abs().max()) for got, expected in pairs]


def test_high_is_more_accurate_than_medium():
    """Operands of 11 bits against 8; the reference is float64."""
    for high, medium in zip(errors("tf32"), errors("bf16"), strict=True):
        assert high < 4e-3
        assert high < 0.5 * medium


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9, 1e30])
def test_gradients_of_any_size(scale):
    """PPO's are divided by the batch; float16 alone would make 0 of the small ones and infinities of the large ones."""
    assert max(errors("tf32", scale)) < 4e-3


def test_no_gradient_at_all():
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients(torch.zeros(ROWS)))


def test_a_gradient_that_is_not_finite_stays_in_its_row():
    incoming = incoming_of(1.0)
    incoming[7] = torch.nan
    d_mean, d_expected = gradients(incoming)[2], gradients(incoming_of(1.0))[2]
    others = torch.arange(ROWS) != 7
    assert d_mean[7].isnan().all()
    torch.testing.assert_close(d_mean[others], d_expected[others], rtol=1e-2, atol=1e-4)


def test_activations_beyond_its_range_saturate():
    inputs = inputs_of(torch.float32, weight_scale=300.0)
    log_prob = log_prob_of(inputs, "triton", "tf32")
    assert not log_prob.isnan().any()
    for gradient in torch.autograd.grad(log_prob, inputs, torch.ones(ROWS)):
        assert not gradient.isnan().any()


@pytest.mark.parametrize(("precision", "bytes_each"), [("ieee", 4), ("tf32x3", 4), ("tf32", 2), ("bf16", 2)])
def test_a_tile_of_16_bits_has_twice_the_samples(precision, bytes_each, monkeypatch):
    monkeypatch.setattr(kernel, "SCRATCH_BYTES", 4 * (40 + 17 + 20) * ROWS * 3)
    inputs = [tensor.detach() for tensor in inputs_of(torch.float32)]
    seed = torch.zeros(1, dtype=torch.int64)
    network = (inputs[4:8], inputs[8:12], inputs[12])
    problem = kernel.Problem(*inputs[:4], *network, None, None, seed, None, 12, False, ELU.value, 1.0, precision)
    assert problem.tile_size() == (12 // bytes_each, ROWS)
    assert dataclasses.replace(problem, num_samples=1200).tile_size() == (12 // bytes_each, ROWS)
