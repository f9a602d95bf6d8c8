"""Covariance matching as a training method: stored likelihoods, ratios of unchanged weights, KL, an update."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.trainer.synthetic import TurningEnv, construct, rollout, same, weights
from torch.distributions import MultivariateNormal, kl_divergence

from p3kernels import CovarianceMatching
from trainer.algorithms.methods import parse_method
from trainer.models.actor import gaussian_kl
from trainer.report.page import _estimator_changes

METHODS = {
    "cm": CovarianceMatching(),
    "cm-diagonal": CovarianceMatching(likelihood="diagonal"),
    "cm-unscented": CovarianceMatching(transform="unscented"),
}


@pytest.mark.parametrize("name", METHODS)
def test_method_by_name(name):
    method = parse_method(name)
    assert (method.name, method.phases) == (name, (METHODS[name],))


@pytest.mark.parametrize("method", METHODS)
class TestUpdate:
    def filled(self, method, **settings):
        torch.manual_seed(0)
        env = TurningEnv()
        algorithm = construct(method, env, **settings)
        rollout(algorithm, env)
        return algorithm

    def test_unchanged_weights_have_ratio_one(self, method):
        algorithm = self.filled(method)
        for batch in algorithm._minibatches(algorithm._rollout()):
            policy, _ = algorithm.actor.policy(batch["observations"])
            ratio = (policy.log_prob(batch["actions"]) - batch["log_prob"]).exp()
            torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-4)

    def test_learning_rate_zero_changes_nothing(self, method):
        algorithm = self.filled(method, schedule="fixed", learning_rate=0.0)
        before = weights(algorithm)
        losses = algorithm.update()
        assert same(weights(algorithm), before)
        assert losses["clip_fraction"] == 0.0
        assert abs(losses["kl"]) < 1e-5

    def test_update_moves_every_weight_of_the_actor(self, method):
        algorithm = self.filled(method)
        before = weights(algorithm)
        losses = algorithm.update()
        assert losses["skipped_steps"] == 0
        assert losses["kl"] > 0
        assert all(math.isfinite(value) for value in losses.values())
        after = weights(algorithm)
        assert all(not torch.equal(after[name], value) for name, value in before.items() if name.startswith("actor"))


def test_kl_of_correlated_gaussians_is_that_of_torch():
    torch.manual_seed(0)
    means = torch.randn(2, 7, 5).double()
    factors = torch.randn(2, 7, 5, 5).double().tril(-1) + torch.diag_embed(0.2 + torch.rand(2, 7, 5).double())
    old, new = (MultivariateNormal(mean, scale_tril=tril) for mean, tril in zip(means, factors, strict=True))
    got = gaussian_kl(means[0], factors[0], means[1], factors[1])
    torch.testing.assert_close(got, kl_divergence(old, new), rtol=1e-10, atol=1e-12)
    assert (got > 0).all()


def test_name_in_the_report():
    """Lines with a name have it, and those that an earlier version wrote with a number get one."""
    names = ["cm", CovarianceMatching(transform="unscented").label]
    records = [{"iteration": index + 1, "estimator": name} for index, name in enumerate(names)]
    records += [{"iteration": index + 3, "estimator/num_samples": code} for index, code in enumerate((-2, 0, 15))]
    assert _estimator_changes(records) == [(1, "cm"), (2, "cm-unscented"), (3, "cm"), (4, "mm"), (5, "mc15")]
