from __future__ import annotations

import math

import pytest
import torch
from helpers.accuracy import CONFIGURATIONS, OPS, assert_accurate, moments_and_gradients, points
from helpers.device_cases import EluMomentsCases, LeakyReluMomentsCases

each_configuration = pytest.mark.parametrize(("name", "parameter"), CONFIGURATIONS)


class TestEluMoments(EluMomentsCases):
    backend = "cuda"


class TestLeakyReluMoments(LeakyReluMomentsCases):
    backend = "cuda"


def with_parameter(name, parameter):
    return lambda mean, var: OPS[name](mean, var, parameter, backend="cuda")


@each_configuration
def test_held_out_accuracy(name, parameter):
    """Against 50 digits, within the bounds of the CPU kernels: it is the same header."""
    got = moments_and_gradients(with_parameter(name, parameter), *points(torch.float32))
    assert_accurate(got, name, parameter, "cpu")


@each_configuration
def test_extreme_inputs_stay_finite(name, parameter):
    sizes = [0.0, 1e-45, 1e-38, 1e-20, 1e-3, 1, 20, 88, 89, 104, 1e4]
    mean = torch.tensor(sizes + [-size for size in sizes])
    var = torch.cat([torch.tensor([0.0, 1e-45, 1e-40, 1.2e-38]), torch.logspace(-37, 8, 50)])
    got = moments_and_gradients(with_parameter(name, parameter), *torch.meshgrid(mean, var, indexing="ij"))
    assert got.isfinite().all()
    assert (got[1] >= 0).all()


@each_configuration
def test_nan_and_negative_variance_touch_only_their_elements(name, parameter):
    mean, var = torch.randn(67), torch.rand(67)
    clean = moments_and_gradients(with_parameter(name, parameter), mean, var)
    mean[3], var[20], var[66] = math.nan, math.nan, -1e-3
    touched = torch.zeros(67, dtype=torch.bool)
    touched[[3, 20, 66]] = True
    got = moments_and_gradients(with_parameter(name, parameter), mean, var)
    assert got[:, touched].isnan().all()
    assert torch.equal(got[:, ~touched], clean[:, ~touched])
