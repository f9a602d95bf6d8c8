from __future__ import annotations

import functools
import math

import pytest
import torch
from helpers.accuracy import moments_and_gradients, scales
from helpers.activation_battery import BAD_MOMENTS, ActivationBattery
from helpers.bad_inputs import bad
from helpers.battery import BACKENDS
from helpers.cases import EluMomentsCase

import p3kernels


class TestEluMoments(EluMomentsCase, ActivationBattery):
    plain = torch.nn.functional.elu
    activation = "elu"
    parameters = (0.5, 1.0, 2.0)
    gradcheck_parameters = (0.5, 1.0, 1.7)
    bad_inputs = (
        *BAD_MOMENTS,
        bad("alpha zero", ValueError, r"alpha: expected a finite number > 0, got 0", alpha=0),
        bad("alpha negative", ValueError, r"alpha: expected a finite number > 0, got -1\.0", alpha=-1.0),
        bad("alpha nan", ValueError, r"alpha: expected a finite number > 0, got nan", alpha=math.nan),
        bad("alpha infinite", ValueError, r"alpha: expected a finite number > 0, got inf", alpha=math.inf),
        bad("alpha a string", TypeError, r"alpha: expected a number, got str", alpha="1"),
        bad("alpha a bool", TypeError, r"alpha: expected a number, got bool", alpha=True),
    )

    def with_parameter(self, parameter, backend):
        return functools.partial(p3kernels.elu_moments, alpha=parameter, backend=backend)


def test_alpha_is_one_by_default():
    mean, var = torch.randn(50), torch.rand(50)
    for got, expected in zip(p3kernels.elu_moments(mean, var), p3kernels.elu_moments(mean, var, 1.0), strict=True):
        assert torch.equal(got, expected)


def test_large_mean_is_the_identity():
    """Nothing of the distribution lies below zero: the moments go through unchanged."""
    mean, var = torch.full((5,), 60.0), torch.logspace(-6, 1, 5)
    for backend in BACKENDS:
        out_mean, out_var = p3kernels.elu_moments(mean, var, backend=backend)
        assert torch.equal(out_mean, mean)
        assert torch.equal(out_var, var)


def test_far_negative_mean_is_lognormal():
    """Nothing lies above zero: −α + α e^x, with the lognormal's variance (e^v − 1) e^(2m + v)."""
    mean, var = torch.tensor([-30.0, -12.0], dtype=torch.float64), torch.tensor([1.5, 0.04], dtype=torch.float64)
    expected = 0.49 * torch.expm1(var) * torch.exp(2 * mean + var)
    for backend in BACKENDS:
        out_mean, out_var = p3kernels.elu_moments(mean, var, 0.7, backend=backend)
        # What lies above zero is below 1e-100 of it; 1e-12 is the reference's own bound in float64.
        torch.testing.assert_close(out_var, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(out_mean, 0.7 * torch.expm1(mean + var / 2), rtol=1e-15, atol=0)


@pytest.mark.parametrize("alpha", TestEluMoments.parameters)
def test_float32_requirement_where_the_method_changes(alpha):
    """The kernel is weakest just above std = 0.5 with zero near; dense from there down, against the reference."""
    std = torch.cat([0.49 + 0.11 * torch.rand(40_000).double(), 0.05 + 0.44 * torch.rand(20_000).double()])
    mean = (std * (0.05 - 0.4 * torch.rand(60_000).double())).float()
    var = std.square().float()
    reference_op, kernel = (functools.partial(p3kernels.elu_moments, alpha=alpha, backend=name) for name in BACKENDS)
    truth = moments_and_gradients(reference_op, mean.double(), var.double())
    units = (moments_and_gradients(kernel, mean, var).double() - truth).abs() / scales(truth, var, alpha)
    # The requirement as it stands: 1e-6 for the mean, 1e-5 for the variance, 1e-4 for gradients.
    for name, unit, tolerance in zip(("mean", "var"), units[:2], (1e-6, 1e-5), strict=True):
        worst = int(unit.argmax())
        at = f"mean {mean[worst]:.9g}, var {var[worst]:.9g}"
        assert unit.max() <= tolerance, f"{name}: {int((unit > tolerance).sum())} misses, {unit[worst]:.3e} at {at}"
    assert units[2:].max() <= 1e-4
