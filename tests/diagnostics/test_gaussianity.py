"""`gaussianity`: the test against published values, and its rate on actors that are and are not Gaussian."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.linear_policies import policy
from torch import nn

pytest.importorskip("scipy")

from p3kernels.diagnostics import LatentPolicy, gaussianity
from p3kernels.diagnostics.gaussianity import shapiro_wilk


def test_shapiro_and_wilks_own_example():
    """Weights of 11 men, Shapiro and Wilk (1965): W = 0.79; p = 0.0067 by Royston's AS R94."""
    w, p = shapiro_wilk(np.array([148, 154, 158, 160, 161, 162, 166, 170, 182, 195, 236], dtype=float))
    assert w == pytest.approx(0.79, abs=0.005)
    assert p == pytest.approx(0.0067, abs=0.0002)


def test_a_linear_actor_passes_as_often_as_a_gaussian():
    one = policy(rows=200, actions=3)
    found = gaussianity(*one, num_samples=100, seed=1)
    assert found.tests == 600
    error = math.sqrt(0.05 * 0.95 / 200)  # rows are independent, the actions of a row are not
    assert abs(found.pass_rate - 0.95) < 4 * error
    assert found.p == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / 200))
    assert 0.98 < found.w < 0.995
    assert found.pass_rate == pytest.approx(sum(found.pass_rate_per_action) / 3)


def half_normal(rows: int = 20) -> LatentPolicy:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
        network[0].bias.zero_()
        network[2].weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    zeros = torch.zeros(rows, 1, dtype=torch.float64)
    return LatentPolicy(network, zeros, zeros, zeros + 1, torch.ones(2, dtype=torch.float64))


def test_more_samples_find_what_few_do_not():
    rates = [gaussianity(*half_normal(), num_samples=count, seed=1).pass_rate for count in (5, 20, 200)]
    assert rates[0] > rates[1] > rates[2] == 0


def test_an_action_that_does_not_vary_is_not_tested():
    found = gaussianity(*half_normal(), num_samples=20, seed=1)
    assert found.tests == 20
    assert math.isnan(found.w_per_action[1])
    assert math.isfinite(found.w)


def test_mistakes_are_named():
    for options, message in (
        ({"num_samples": 2}, "num_samples: expected an integer >= 3"),
        ({"num_samples": 5001}, "num_samples: expected at most 5000"),
        ({"alpha": 1.0}, "alpha: expected a number between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            gaussianity(*policy(), **options)
