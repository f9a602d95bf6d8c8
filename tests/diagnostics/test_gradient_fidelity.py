"""Gradient fidelity: 1 where the likelihood is exact, lost where it is noise, and mistakes named."""

from __future__ import annotations

import pytest
import torch
from helpers.linear_policies import policy

from p3kernels import CovarianceMatching, MonteCarlo, SharedNoise
from p3kernels.diagnostics import gradient_fidelity
from p3kernels.estimators import StoredComponent

SETTINGS = {"redraws": 40, "reference_samples": 200, "seed": 3}


def test_exact_likelihoods_have_the_true_gradient():
    """CM is exact for a linear actor, and shared noise always: only the noise of 40 redraws is left."""
    one = policy(rows=256, std=0.5)
    for estimator in (CovarianceMatching(), SharedNoise(), MonteCarlo(64, common=True)):
        found = gradient_fidelity(estimator, *one, **SETTINGS)
        left = found.noise / SETTINGS["redraws"] ** 0.5
        assert abs(found.scale - 1) < 6 * left
        assert found.cosine > 0.9


def test_shared_noise_is_noisier_than_the_marginal():
    """Its score has the variance 1/σ² rather than 1/(σ² + v)."""
    one = policy(rows=256, std=0.5)
    marginal, shared = (gradient_fidelity(e, *one, **SETTINGS).noise for e in (CovarianceMatching(), SharedNoise()))
    assert shared > 1.1 * marginal


def test_a_latent_that_decides_the_ratio_hides_the_gradient():
    one = policy(rows=256, std=1.0)
    exact = gradient_fidelity(CovarianceMatching(), *one, **SETTINGS)
    assert gradient_fidelity(MonteCarlo(1), *one, **SETTINGS).cosine < 0.5 * exact.cosine
    assert gradient_fidelity(StoredComponent(), *one, **SETTINGS).scale < 0.1 * exact.scale  # nearly all is clipped


def test_a_dual_clip_bounds_the_noise():
    one = policy(rows=256, std=1.0)
    noises = [gradient_fidelity(MonteCarlo(1), *one, dual_clip=c, **SETTINGS).noise for c in (None, 3.0)]
    assert noises[1] < 0.1 * noises[0]


def test_a_seed_repeats_and_leaves_the_generator_alone():
    one, before = policy(), torch.get_rng_state()
    first = gradient_fidelity(SharedNoise(), *one, redraws=3, reference_samples=4, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert gradient_fidelity(SharedNoise(), *one, redraws=3, reference_samples=4, seed=5) == first
    assert all(parameter.grad is None for parameter in one.actor.parameters())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"estimator": object()}, TypeError, "estimator: expected MomentMatching"),
        ({"redraws": 1}, ValueError, "redraws: expected an integer >= 2, got 1"),
        ({"reference_samples": 0}, ValueError, "reference_samples: expected an integer >= 2, got 0"),
        ({"clip": 1.0}, ValueError, "clip: expected a number between 0 and 1, got 1.0"),
    ],
)
def test_mistakes_are_named(changes, error, message):
    arguments = {"estimator": SharedNoise(), **policy()._asdict(), **changes}
    with pytest.raises(error, match=message):
        gradient_fidelity(**arguments)
