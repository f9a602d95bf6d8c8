"""Properties that hold for every mean and variance, for all three activations."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.accuracy import CONFIGURATIONS, OPS
from helpers.battery import BACKENDS
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

PLAIN = {"elu": torch.nn.functional.elu, "leaky_relu": torch.nn.functional.leaky_relu}

means = st.floats(-50, 50, width=32)
variances = st.floats(0, 400, width=32, allow_subnormal=False)
steps = st.floats(0, 10, width=32)


def number(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.parametrize(("activation", "parameter"), CONFIGURATIONS),
]


@given(mean=means, var=variances)
def test_variance_is_non_negative_and_at_most_lipschitz_squared_times_the_inputs(
    activation, parameter, backend, mean, var
):
    _, out_var = OPS[activation](number(mean), number(var), parameter, backend=backend)
    # 1e-11 covers the reference's relative error in float64 (tests/helpers/accuracy.py).
    assert 0 <= out_var <= max(1.0, parameter) ** 2 * var * (1 + 1e-11)


@given(mean=means, step=steps, var=variances)
def test_mean_grows_with_the_input_mean(activation, parameter, backend, mean, step, var):
    low, high = (OPS[activation](number(m), number(var), parameter, backend=backend)[0] for m in (mean, mean + step))
    assert low <= high + 1e-12 * (abs(mean) + step + math.sqrt(var))


@given(mean=means, var=variances)
def test_mean_stays_within_the_deterministic_limit_and_its_spread(activation, parameter, backend, mean, var):
    """|E f(x) − f(m)| ≤ L E|x − m|, so the limit var → 0 is continuous; Jensen for the convex ones (parameter ≤ 1)."""
    out_mean, _ = OPS[activation](number(mean), number(var), parameter, backend=backend)
    at_mean = PLAIN[activation](number(mean), parameter)
    rounding = 1e-12 * (abs(mean) + math.sqrt(var))
    assert (out_mean - at_mean).abs() <= max(1.0, parameter) * math.sqrt(2 * var / math.pi) + rounding
    if parameter <= 1:
        assert out_mean >= at_mean - rounding


@given(mean=means, var=variances, step=steps)
def test_mean_of_a_convex_activation_grows_with_the_variance(activation, parameter, backend, mean, var, step):
    """∂E/∂var = ½ E[f″] ≥ 0 for a convex f (parameter ≤ 1); for another, the derivative's own sign is checked."""
    low, high = (number(v).requires_grad_() for v in (var, var + step))
    out_low, out_high = (OPS[activation](number(mean), v, parameter, backend=backend)[0] for v in (low, high))
    if parameter <= 1:
        assert out_low <= out_high + 1e-12 * (abs(mean) + math.sqrt(var + step))
        assert torch.autograd.grad(out_low, low)[0] >= 0
    else:
        assert out_high <= number(mean).relu() + math.sqrt((var + step) / (2 * math.pi)) + 1e-9
