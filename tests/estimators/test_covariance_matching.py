"""`CovarianceMatching`: its policy as a distribution, and its accuracy on an actor that was trained."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.trained_actor import SAMPLES, TrainedActor, correlation, load, total
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from p3kernels import CovarianceMatching, MomentMatching
from p3kernels.estimators import CorrelatedGaussianPolicy, GaussianPolicy

G1_ACTOR = Path(__file__).parents[1] / "data" / "g1_actor.npz"
"""Actor of `p3 train --task g1-flat`, 440 iterations of MM; see trained_actor.py."""


def small_policy(**settings) -> tuple[CorrelatedGaussianPolicy | GaussianPolicy, dict[str, Tensor]]:
    torch.manual_seed(3)
    actor = nn.Sequential(nn.Linear(7, 16), nn.ELU(), nn.Linear(16, 12), nn.ELU(), nn.Linear(12, 4)).double()
    inputs = {
        "context": torch.randn(5, 3, dtype=torch.float64),
        "latent_mean": torch.randn(5, 4, dtype=torch.float64),
        "latent_std": 0.2 + torch.rand(5, 4, dtype=torch.float64),
        "action_std": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
    }
    leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
    return CovarianceMatching(**settings).policy(actor, *leaves.values()), leaves


@pytest.mark.parametrize("transform", ["linear", "unscented"])
class TestFullPolicy:
    def test_likelihood_and_entropy_are_torchs(self, transform):
        policy, leaves = small_policy(transform=transform)
        action = torch.randn(5, 4, dtype=torch.float64)
        expected = MultivariateNormal(policy.mean, policy.covariance)
        values = (policy.log_prob(action), policy.entropy())
        for value, other in zip(values, (expected.log_prob(action), expected.entropy()), strict=True):
            torch.testing.assert_close(value, other, rtol=1e-12, atol=1e-12)
        gradients = torch.autograd.grad(values[0].sum() + values[1].sum(), list(leaves.values()), retain_graph=True)
        others = torch.autograd.grad(expected.log_prob(action).sum() + expected.entropy().sum(), list(leaves.values()))
        for gradient, other in zip(gradients, others, strict=True):
            assert gradient.count_nonzero() > 0
            torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-10)

    def test_exploration_is_on_the_diagonal(self, transform):
        policy, leaves = small_policy(transform=transform)
        exploration = policy.covariance - policy.latent_covariance
        expected = torch.diag_embed(leaves["action_std"].square().expand(5, 4))
        torch.testing.assert_close(exploration, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(policy.stddev, policy.covariance.diagonal(dim1=1, dim2=2).sqrt())

    def test_samples_have_the_moments(self, transform):
        policy, _ = small_policy(transform=transform)
        samples = torch.stack([policy.sample() for _ in range(SAMPLES)])
        assert not samples.requires_grad
        # 5 standard errors: σ / √n of a mean, at most σ_i σ_j √(2 / n) of a covariance.
        assert ((samples.mean(0) - policy.mean).abs() <= 5 * policy.stddev / math.sqrt(SAMPLES)).all()
        scale = policy.stddev[:, :, None] * policy.stddev[:, None]
        for row in range(5):
            error = (torch.cov(samples[:, row].t()) - policy.covariance[row]).abs()
            assert (error <= 5 * math.sqrt(2 / SAMPLES) * scale[row]).all()


def test_latent_is_drawn_anew_and_differentiable():
    policy, leaves = small_policy()
    first, second = policy.latent(), policy.latent()
    assert not torch.equal(first, second)
    gradient = torch.autograd.grad(first.sum(), leaves["latent_mean"])[0]
    assert torch.equal(gradient, torch.ones_like(gradient))


def test_diagonal_likelihood_has_the_same_variances():
    full, _ = small_policy()
    diagonal, _ = small_policy(likelihood="diagonal")
    assert isinstance(diagonal, GaussianPolicy)
    torch.testing.assert_close(diagonal.mean, full.mean)
    torch.testing.assert_close(diagonal.stddev, full.stddev)
    assert torch.equal(diagonal.covariance, torch.diag_embed(diagonal.stddev.square()))


@pytest.mark.parametrize("action_std", [1e-2, 1e-4, 1e-8, 0.0])
def test_nearly_singular_covariances_have_a_likelihood(action_std):
    """Twenty actions of one latent: rank 1 beside the exploration, in float32."""
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(2, 8), nn.ELU(), nn.Linear(8, 20))
    latent_mean = torch.randn(64, 1).requires_grad_()
    std = torch.full((20,), action_std)
    policy = CovarianceMatching().policy(actor, torch.randn(64, 1), latent_mean, torch.full((64, 1), 0.7), std)
    log_prob = policy.log_prob(policy.sample())
    assert log_prob.isfinite().all()
    assert policy.entropy().isfinite().all()
    (gradient,) = torch.autograd.grad(log_prob.sum(), latent_mean)
    assert gradient.isfinite().all()
    assert gradient.count_nonzero() > 0
    # What the factor is of differs from latent and exploration by a share of the diagonal alone.
    share = policy.covariance.diagonal(dim1=1, dim2=2) / (
        policy.latent_covariance.diagonal(dim1=1, dim2=2) + std.square()
    )
    assert (share - 1).abs().max() <= 1e-4


def test_rows_that_are_not_finite_stay_by_themselves():
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(3, 8), nn.ELU(), nn.Linear(8, 3))
    mean = torch.randn(4, 2)
    mean[2, 0] = math.nan
    policy = CovarianceMatching().policy(actor, torch.randn(4, 1), mean, torch.ones(4, 2), torch.ones(3))
    log_prob = policy.log_prob(torch.zeros(4, 3))
    assert log_prob.isnan().tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"likelihood": "none"}, r"likelihood: expected one of full, diagonal, got 'none'"),
        ({"transform": "sampled"}, r"transform: expected one of linear, unscented, got 'sampled'"),
        ({"rank": 0}, r"rank: expected an integer >= 1, got 0"),
        ({"rank": 2.0}, r"rank: expected an integer >= 1, got 2\.0"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        CovarianceMatching(**settings)


@pytest.fixture(scope="module")
def trained() -> TrainedActor:
    actor = load(G1_ACTOR)
    assert actor.inputs[1].shape == (8, 110)
    return actor


class TestTrainedActor:
    """Against 10,000 samples, on a G1's actor and on states that it met."""

    def test_moment_matching_is_off_by_a_factor_of_tens(self, trained):
        assert trained.share_of_variance(trained.policy(MomentMatching()).covariance).max() < 0.05

    @pytest.mark.parametrize(("transform", "tolerance"), [("linear", 0.2), ("unscented", 0.1)])
    def test_total_variance(self, trained, transform, tolerance):
        policy = trained.policy(CovarianceMatching(transform=transform))
        assert (trained.share_of_variance(policy.covariance) - 1).abs().max() <= tolerance

    @pytest.mark.parametrize("transform", ["linear", "unscented"])
    def test_correlations(self, trained, transform):
        policy = trained.policy(CovarianceMatching(transform=transform))
        assert trained.worst_correlation(policy.covariance) <= 0.1

    def test_mean_is_nearer_than_moment_matchings(self, trained):
        std = total(trained.covariance)[:, None].sqrt()
        errors = [
            ((trained.policy(estimator).mean - trained.mean).abs() / std).max()
            for estimator in (CovarianceMatching(), MomentMatching())
        ]
        assert errors[0] < 0.5 * errors[1]

    def test_few_directions_are_as_good_as_all(self, trained):
        few, every = (trained.policy(CovarianceMatching(rank=rank)) for rank in (8, 110))
        ratio = total(few.covariance) / total(every.covariance)
        assert (ratio - 1).abs().max() <= 0.02
        assert (correlation(few.covariance) - correlation(every.covariance)).abs().max() <= 0.02
