"""The 50-digit oracle itself, against quadrature and finite differences: nothing of its formulas is used here."""

from __future__ import annotations

import mpmath as mp
import pytest

from helpers import oracle

POINTS = [(0.3, 0.7), (-2.0, 1.5), (4.0, 0.2), (-6.0, 2.5), (0.0, 3.0), (-0.8, 0.05)]  # mean, std
ELU_ALPHAS = (0.5, 1, 1.7)
SLOPES = (0, 0.01, 0.2)


def elu(x, alpha):
    return x if x > 0 else alpha * mp.expm1(x)


def leaky_relu(x, slope):
    return x if x > 0 else slope * x


def quadrature(function, mean, std):
    """E and Var of function(x), x ~ N(mean, std²); the kink at 0 is an end of an interval."""

    def expectation(integrand):
        ends = sorted({mean + k * std for k in (-20, -8, -3, 0, 3, 8, 20)} | {mp.mpf(0)})
        density = lambda x: mp.exp(-(((x - mean) / std) ** 2) / 2) / (std * mp.sqrt(2 * mp.pi))  # noqa: E731
        return mp.quad(lambda x: integrand(x) * density(x), ends)

    first = expectation(function)
    return first, expectation(lambda x: (function(x) - first) ** 2)


@pytest.mark.parametrize(("mean", "std"), POINTS)
@pytest.mark.parametrize(
    ("function", "plain", "parameter"),
    [(oracle.elu, elu, alpha) for alpha in ELU_ALPHAS] + [(oracle.leaky_relu, leaky_relu, slope) for slope in SLOPES],
)
def test_moments_against_quadrature(function, plain, parameter, mean, std):
    with mp.workdps(30):
        mean, std = mp.mpf(mean), mp.mpf(std)
        expected = quadrature(lambda x: plain(x, mp.mpf(parameter)), mean, std)
        moments = function(mean, std**2, parameter)[:2]
        for got, value in zip(moments, expected, strict=True):
            # Gauss-Legendre over smooth pieces at 30 digits; 20 are left of the smallest variances here.
            assert abs(got - value) <= mp.mpf(10) ** -20 * (abs(value) + std**2)


@pytest.mark.parametrize(("mean", "std"), POINTS)
@pytest.mark.parametrize(
    ("function", "parameter"),
    [(oracle.elu, alpha) for alpha in ELU_ALPHAS] + [(oracle.leaky_relu, slope) for slope in SLOPES],
)
def test_gradients_against_finite_differences(function, parameter, mean, std):
    with mp.workdps(60):
        mean, var = mp.mpf(mean), mp.mpf(std) ** 2
        step = mp.mpf(10) ** -15  # central differences: error of the order of step² = 1e-30
        gradients = function(mean, var, parameter)[2:]
        by_mean = [function(mean + sign * step, var, parameter)[:2] for sign in (1, -1)]
        by_var = [function(mean, var + sign * step, parameter)[:2] for sign in (1, -1)]
        differences = [(up - down) / (2 * step) for pair in (by_mean, by_var) for up, down in zip(*pair, strict=True)]
        expected = [differences[0], differences[2], differences[1], differences[3]]
        for got, value in zip(gradients, expected, strict=True):
            assert abs(got - value) <= mp.mpf(10) ** -22


def test_enough_digits_are_left_where_the_variance_cancels_most():
    few, many = oracle.elu(-20, 1e-8, 1), None
    with mp.workdps(50):
        before, oracle.WORKING_DIGITS = oracle.WORKING_DIGITS, 200
        try:
            many = oracle.elu(-20, 1e-8, 1)
        finally:
            oracle.WORKING_DIGITS = before
        assert abs(few[1] / many[1] - 1) < mp.mpf(10) ** -50
