from __future__ import annotations

import functools
import math

import torch
from helpers.activation_battery import BAD_MOMENTS, ActivationBattery
from helpers.battery import BACKENDS

import p3kernels
from p3kernels import reference


class TestReluMoments(ActivationBattery):
    op = p3kernels.relu_moments
    reference = reference.relu_moments
    activation = "leaky_relu"
    parameters = (0.0,)
    gradcheck_parameters = (0.0,)
    bad_inputs = BAD_MOMENTS

    @staticmethod
    def plain(x, _):
        return torch.relu(x)

    def with_parameter(self, parameter, backend):
        assert parameter == 0.0
        return functools.partial(p3kernels.relu_moments, backend=backend)


def test_half_normal():
    """Mean zero is textbook: E = std / √(2π), Var = var (1/2 − 1/2π)."""
    var = torch.tensor([0.25, 1.0, 9.0], dtype=torch.float64)
    for backend in BACKENDS:
        mean_out, var_out = p3kernels.relu_moments(torch.zeros(3, dtype=torch.float64), var, backend=backend)
        torch.testing.assert_close(mean_out, var.sqrt() / math.sqrt(2 * math.pi), rtol=1e-14, atol=0)
        torch.testing.assert_close(var_out, var * (0.5 - 0.5 / math.pi), rtol=1e-14, atol=0)


def test_positive_and_negative_part_make_the_whole():
    """max(x, 0) − max(−x, 0) = x, and their product is 0: the variances add up with 2 E E."""
    mean, var = 3 * torch.randn(500, dtype=torch.float64), torch.rand(500, dtype=torch.float64)
    for backend in BACKENDS:
        up_mean, up_var = p3kernels.relu_moments(mean, var, backend=backend)
        down_mean, down_var = p3kernels.relu_moments(-mean, var, backend=backend)
        # Sums of numbers of the size of the inputs: a few roundings.
        torch.testing.assert_close(up_mean - down_mean, mean, rtol=1e-14, atol=1e-15)
        torch.testing.assert_close(up_var + down_var + 2 * up_mean * down_mean, var, rtol=1e-13, atol=1e-15)
