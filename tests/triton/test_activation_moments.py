from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from helpers.accuracy import assert_accurate, assert_nan_stays_in_its_element, moments_and_gradients, points, scales
from helpers.device_cases import EluMomentsCases, LeakyReluMomentsCases

import p3kernels
from p3kernels import reference

ACTIVATIONS = {
    "elu": (p3kernels.elu_moments, reference.elu_moments, torch.nn.functional.elu, (0.5, 1.0, 2.0)),
    "leaky_relu": (
        p3kernels.leaky_relu_moments,
        reference.leaky_relu_moments,
        torch.nn.functional.leaky_relu,
        (0.0, 0.01, 0.2),
    ),
}
CASES = [(name, parameter) for name, (*_, parameters) in ACTIVATIONS.items() for parameter in parameters]
each_case = pytest.mark.parametrize(("name", "parameter"), CASES)


def with_parameter(name: str, parameter: float) -> Any:
    op = ACTIVATIONS[name][0]
    return lambda mean, var: op(mean, var, parameter, backend="triton")


class TestEluMoments(EluMomentsCases):
    pass


class TestLeakyReluMoments(LeakyReluMomentsCases):
    pass


def test_relu_is_leaky_relu_with_slope_zero():
    mean, var = torch.randn(50), torch.rand(50)
    got = p3kernels.relu_moments(mean, var, backend="triton")
    expected = p3kernels.leaky_relu_moments(mean, var, 0.0, backend="triton")
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


@each_case
def test_held_out_accuracy(name, parameter):
    """Against 50 digits, within the bounds of the CPU kernels, which compute the same with fused multiply-adds."""
    assert_accurate(
        moments_and_gradients(with_parameter(name, parameter), *points(torch.float32)), name, parameter, "cpu"
    )


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_requirement_where_the_method_changes(alpha):
    """The kernel is weakest just above std = 0.5 with zero near; dense there, against the reference."""
    std = torch.cat([0.49 + 0.11 * torch.rand(20_000).double(), 0.05 + 0.44 * torch.rand(10_000).double()])
    mean = (std * (0.05 - 0.4 * torch.rand(30_000).double())).float()
    var = std.square().float()
    truth = moments_and_gradients(functools.partial(reference.elu_moments, alpha=alpha), mean.double(), var.double())
    got = moments_and_gradients(with_parameter("elu", alpha), mean, var)
    units = (got.double() - truth).abs() / scales(truth, var, alpha)
    # The requirement as it stands: 1e-6 for the mean, 1e-5 for the variance, 1e-4 for gradients.
    assert units[0].max() <= 1e-6
    assert units[1].max() <= 1e-5
    assert units[2:].max() <= 1e-4


@each_case
def test_extreme_inputs_stay_finite(name, parameter):
    sizes = [0.0, 1e-45, 1e-40, 1e-38, 1e-20, 1e-8, 1e-3, 0.1, 1, 10, 20, 87, 88, 89, 104, 300, 1e3, 1e4]
    mean = torch.tensor(sizes + [-size for size in sizes])
    tiny = torch.tensor([0.0, 1e-45, 1e-40, 1e-39, 1.2e-38])
    var = torch.cat([tiny, torch.logspace(-37, 8, 200)])
    mean, var = torch.meshgrid(mean, var, indexing="ij")
    got = moments_and_gradients(with_parameter(name, parameter), mean, var)
    assert got.isfinite().all()
    assert (got[1] >= 0).all()
    # |E f(x) − f(m)| ≤ L E|x − m| and Var f(x) ≤ L² Var x for a Lipschitz constant L, plus rounding.
    steepest, eps = max(1.0, parameter), 64 * torch.finfo(torch.float32).eps
    room = steepest * math.sqrt(2 / math.pi) * var.sqrt() + eps * (mean.abs() + var.sqrt() + 1e-30)
    assert ((got[0] - ACTIVATIONS[name][2](mean, parameter)).abs() <= room).all()
    resolved = (var == 0) | (var >= 1e-29)  # below a std of 1e-15, 1 / var would leave the range of float32
    assert (got[1] <= steepest**2 * var * (1 + eps))[resolved].all()


@each_case
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_variance_is_the_deterministic_limit(name, parameter, zero):
    size = torch.logspace(-6, 4, 101)
    mean = torch.cat([-size, torch.zeros(1), size])
    got = moments_and_gradients(with_parameter(name, parameter), mean, torch.full_like(mean, zero))
    x = mean.double().requires_grad_()
    f = ACTIVATIONS[name][2](x, parameter)
    (derivative,) = torch.autograd.grad(f.sum(), x)
    at_kink = mean == 0  # where the two sides differ, the gradient is the mean of both
    square = torch.where(at_kink, (1 + parameter**2) / 2, derivative.square())
    derivative = torch.where(at_kink, (1 + parameter) / 2, derivative)
    eps, tiny = 8 * torch.finfo(torch.float32).eps, torch.finfo(torch.float32).tiny
    torch.testing.assert_close(got[0].double(), f.detach(), rtol=eps, atol=0)
    assert (got[1] == 0).all()
    torch.testing.assert_close(got[2].double(), derivative, rtol=eps, atol=tiny)
    assert got[3].isfinite().all()
    assert got[4].abs().max() <= tiny**0.5  # 0 but for products with the smallest std
    torch.testing.assert_close(got[5].double(), square, rtol=2 * eps, atol=tiny)


@each_case
def test_nan_and_negative_variance_touch_only_their_elements(name, parameter):
    assert_nan_stays_in_its_element(with_parameter(name, parameter), torch.float32)
