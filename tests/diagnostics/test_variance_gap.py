"""`variance_gap`: none for a linear actor, known for units that vary together."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.linear_policies import SIGMAS, exact_covariance, policy, twins

from p3kernels import CovarianceMatching, LatentMean, MomentMatching, MonteCarlo
from p3kernels.diagnostics import variance_gap

ESTIMATORS = {"MM": MomentMatching(), "CM": CovarianceMatching(), "mean": LatentMean()}


def test_a_linear_actor_has_no_gap():
    one, count = policy(rows=200), 2000
    gap = variance_gap(ESTIMATORS, *one, num_samples=count, seed=1)
    var = exact_covariance(one).diagonal(dim1=1, dim2=2)
    error = math.sqrt(2 / count)  # of a row's variance; the rows only make it better
    for name in ("MM", "CM"):
        found = gap.estimators[name]
        assert found.std == pytest.approx(var.mean(0).sqrt().tolist(), rel=1e-9)
        assert found.variance_ratio == pytest.approx(1, abs=SIGMAS * error / math.sqrt(200 / 3))
        assert found.ratio_low < 1 < found.ratio_high
        assert 0 < found.mean_error < 2 * (var / one.action_std.square()).mean().sqrt().item() * gap.noise
    assert gap.sampled_std == pytest.approx(var.mean(0).sqrt().tolist(), rel=SIGMAS * error)
    assert gap.latent_share == pytest.approx((var / one.action_std.square()).sum(-1).mean().item(), rel=0.02)
    assert gap.estimators["mean"].variance_ratio == 0


def test_units_that_vary_together():
    gap = variance_gap(ESTIMATORS, *twins(), num_samples=2000, seed=1)
    assert gap.estimators["MM"].variance_ratio == pytest.approx(0.5, rel=0.02)
    assert gap.estimators["CM"].variance_ratio == pytest.approx(1.0, rel=0.02)
    assert gap.sampled_std == pytest.approx([1.0, 0.5], rel=0.02)


def test_a_mean_that_is_wrong_shows():
    """ELU is curved at 0: the latent's mean alone is off by E[ELU(z)] - ELU(E[z]) for each of two units."""
    one = twins(bias=0.0)
    gap = variance_gap(ESTIMATORS, *one, num_samples=4000, seed=1)
    std = 0.5
    mean = std / math.sqrt(2 * math.pi) + math.exp(std**2 / 2) * 0.5 * math.erfc(std / math.sqrt(2)) - 0.5
    off = [2 * mean / 0.4, -mean / 0.4]
    expected = math.sqrt((off[0] ** 2 + off[1] ** 2) / 2)
    assert gap.estimators["mean"].mean_error == pytest.approx(expected, rel=0.05)
    assert gap.estimators["MM"].mean_error < 0.2 * expected


def test_sampled_estimators_have_a_row_too():
    gap = variance_gap({"MC": MonteCarlo(500)}, *policy(), num_samples=500, seed=1)
    assert gap.estimators["MC"].variance_ratio == pytest.approx(1, abs=0.1)


def test_a_certain_latent_has_nothing_to_gap():
    one = policy()
    gap = variance_gap({"MM": MomentMatching()}, *one._replace(latent_std=torch.zeros_like(one.latent_std)), seed=1)
    assert gap.latent_share == pytest.approx(0, abs=1e-20)
    assert gap.estimators["MM"].ratio_low == gap.estimators["MM"].ratio_high == 1


def test_a_seed_repeats_and_leaves_the_generator_alone():
    one, before = policy(), torch.get_rng_state()
    first = variance_gap(ESTIMATORS, *one, num_samples=20, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert variance_gap(ESTIMATORS, one, num_samples=20, seed=3) == first  # the policy as one record
    assert variance_gap(ESTIMATORS, **one._asdict(), num_samples=20, seed=3) == first
    assert variance_gap(ESTIMATORS, *one, num_samples=20, seed=4) != first


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="wrong: expected MomentMatching"):
        variance_gap({"wrong": object()}, *policy())
    with pytest.raises(ValueError, match="num_samples: expected an integer >= 2"):
        variance_gap({}, *policy(), num_samples=1)
