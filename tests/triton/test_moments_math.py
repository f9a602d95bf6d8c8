"""The device functions beside the header they repeat: the same coefficients, and e^x and its parts to rounding."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from triton_kernels.kernels import moments_math

HEADER = Path(__file__).parents[2] / "csrc"


def header_coefficients(name: str) -> list[float]:
    text = (HEADER / "erfcx_coefficients.h").read_text()
    found = re.search(rf"{name}(?:\[\d+\])? = \{{?([^;}}]*)", text)
    assert found is not None, name
    return [float(number.strip().removesuffix("f")) for number in found[1].split(",")]


def test_coefficients_are_the_headers():
    assert header_coefficients("kErfcxKappa_float") == [moments_math.KAPPA.value]
    assert header_coefficients("kErfcxValue_float") == list(moments_math.ERFCX_VALUE.value)
    assert header_coefficients("kErfcxSlope_float") == list(moments_math.ERFCX_SLOPE.value)
    assert len(moments_math.ERFCX_VALUE.value) == moments_math.VALUE_TERMS.value
    assert len(moments_math.ERFCX_SLOPE.value) == moments_math.SLOPE_TERMS.value


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("kRoundToInteger", moments_math._ROUND_TO_INTEGER),
        ("kLn2High", moments_math._LN2_HIGH),
        ("kLn2Low", moments_math._LN2_LOW),
        ("kExpLowest", moments_math._EXP_LOWEST),
        ("kSmallestStd", moments_math._SMALLEST_STD),
        ("kSmallestNormal", moments_math._SMALLEST_NORMAL),
    ],
)
def test_constants_are_the_headers(name, here):
    text = (HEADER / "scalar_math.h").read_text()
    found = re.search(rf"static constexpr float {name} = (\S+)f;", text)
    assert found is not None
    assert float(found[1]) == here.value


@triton.jit
def _scaled_exp_kernel(high_ptr, low_ptr, exp_ptr, expm1_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    scale, fraction = moments_math.scaled_exp(tl.load(high_ptr + at), tl.load(low_ptr + at))
    tl.store(exp_ptr + at, scale * fraction + scale)
    tl.store(expm1_ptr + at, scale * fraction + (scale - 1.0))


def test_exponential_of_two_parts_is_exact_to_rounding():
    generator = torch.Generator().manual_seed(5)
    high = torch.cat([-87 * torch.rand(2048, generator=generator), 0.1 * torch.randn(2048, generator=generator)])
    low = high * 2.0**-12 * torch.rand(4096, generator=generator)
    exp, expm1 = torch.empty(4096), torch.empty(4096)
    _scaled_exp_kernel[(1,)](high, low, exp, expm1, SIZE=4096)
    truth = high.double() + low.double()
    # 1.5 ulp of the product and its last addition; the reduced argument itself is within an eighth of that.
    torch.testing.assert_close(exp.double(), truth.exp(), rtol=3 * 2**-24, atol=0)
    torch.testing.assert_close(expm1.double(), truth.expm1(), rtol=4 * 2**-24, atol=0)


@triton.jit
def _halves_kernel(x_ptr, high_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(high_ptr + at, moments_math.upper_half(tl.load(x_ptr + at)))


def test_products_of_halves_are_exact():
    x = torch.randn(1024) * torch.logspace(-9, 15, 1024)  # no product leaves the normal range
    high = torch.empty(1024)
    _halves_kernel[(1,)](x, high, SIZE=1024)
    low = x - high
    assert (low.abs() <= high.abs() * 2.0**-11).all()
    for a, b in ((high, high), (high, low), (low, low)):
        assert torch.equal((a * b).double(), a.double() * b.double())
    assert np.array_equal(high.double() + low.double(), x.double())
