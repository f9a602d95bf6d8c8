"""`correlation`: of a linear actor it is that of W diag(s²) Wᵀ."""

from __future__ import annotations

import pytest
import torch
from helpers.linear_policies import SIGMAS, exact_covariance, policy, twins

from p3kernels import CovarianceMatching, MomentMatching
from p3kernels.diagnostics import correlation
from p3kernels.diagnostics.moments import correlation_of

ESTIMATORS = {"MM": MomentMatching(), "CM": CovarianceMatching()}
COUNT = 4000


def test_of_a_linear_actor():
    one = policy()
    found = correlation(ESTIMATORS, *one, num_samples=COUNT, seed=1)
    exact = correlation_of(exact_covariance(one))
    off = ~torch.eye(3, dtype=torch.bool)
    sampled = torch.tensor(found.sampled, dtype=torch.float64)
    assert ((sampled - exact[found.state]).abs() < SIGMAS / COUNT**0.5).all()
    torch.testing.assert_close(torch.tensor(found.estimators["CM"], dtype=torch.float64), exact[found.state])
    assert found.estimators["MM"] == ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    assert found.mean_absolute == pytest.approx(exact[:, off].abs().mean().item(), abs=0.005)
    assert found.largest == pytest.approx(exact[:, off].abs().amax(1).mean().item(), abs=0.005)
    assert found.error["MM"] == pytest.approx(exact[:, off].square().mean().sqrt().item(), abs=0.005)
    assert 0 < found.error["CM"] < 2 / COUNT**0.5


def test_actions_of_one_and_the_same_unit():
    found = correlation(ESTIMATORS, *twins(), num_samples=100, seed=1)
    assert found.mean_absolute == pytest.approx(1)
    assert found.sampled[0][1] == pytest.approx(-1)
    assert found.estimators["CM"][0][1] == pytest.approx(-1)


def test_an_action_that_does_not_vary_has_none():
    one = policy()
    with torch.no_grad():
        one.actor[0].weight[1] = 0
    found = correlation(ESTIMATORS, *one, num_samples=100, seed=1)
    assert found.sampled[1] == (0.0, 1.0, 0.0)


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="wrong: expected MomentMatching"):
        correlation({"wrong": object()}, *policy())
