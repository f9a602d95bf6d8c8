from __future__ import annotations

import functools
import math

import torch
from helpers.activation_battery import BAD_MOMENTS, ActivationBattery
from helpers.bad_inputs import bad
from helpers.battery import BACKENDS
from helpers.cases import LeakyReluMomentsCase

import p3kernels


class TestLeakyReluMoments(LeakyReluMomentsCase, ActivationBattery):
    plain = torch.nn.functional.leaky_relu
    activation = "leaky_relu"
    parameters = (0.01, 0.2)
    gradcheck_parameters = (0.01, 0.2, 1.7)
    bad_inputs = (
        *BAD_MOMENTS,
        bad("negative", ValueError, r"negative_slope: expected a finite number >= 0, got -0\.1", negative_slope=-0.1),
        bad("nan", ValueError, r"negative_slope: expected a finite number >= 0, got nan", negative_slope=math.nan),
        bad("a string", TypeError, r"negative_slope: expected a number, got str", negative_slope="0"),
    )

    def with_parameter(self, parameter, backend):
        return functools.partial(p3kernels.leaky_relu_moments, negative_slope=parameter, backend=backend)


def test_slope_one_is_the_identity():
    mean, var = torch.randn(500, dtype=torch.float64) * 3, torch.rand(500, dtype=torch.float64)
    for backend in BACKENDS:
        out_mean, out_var = p3kernels.leaky_relu_moments(mean, var, 1.0, backend=backend)
        # A sum of two halves: a few roundings of the larger one.
        torch.testing.assert_close(out_mean, mean, rtol=0, atol=4 * torch.finfo(torch.float64).eps * 10)
        torch.testing.assert_close(out_var, var, rtol=16 * torch.finfo(torch.float64).eps, atol=1e-16)


def test_homogeneous():
    """f(c x) = c f(x) for c > 0; with c a power of two and no underflow every digit agrees."""
    mean, var = torch.randn(500), torch.rand(500) + 0.01
    for backend in BACKENDS:
        small = p3kernels.leaky_relu_moments(mean, var, 0.3, backend=backend)
        large = p3kernels.leaky_relu_moments(16 * mean, 256 * var, 0.3, backend=backend)
        assert torch.equal(16 * small[0], large[0])
        assert torch.equal(256 * small[1], large[1])


def test_default_slope_is_torchs():
    mean, var = torch.randn(50), torch.rand(50)
    slope = torch.nn.LeakyReLU().negative_slope
    expected = p3kernels.leaky_relu_moments(mean, var, slope)
    for got, value in zip(p3kernels.leaky_relu_moments(mean, var), expected, strict=True):
        assert torch.equal(got, value)
