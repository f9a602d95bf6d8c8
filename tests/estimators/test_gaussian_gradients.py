"""What a Gaussian policy keeps of itself keeps its gradient, whatever was asked for first."""

from __future__ import annotations

import pytest
import torch

import p3kernels

ESTIMATORS = {
    "mm": p3kernels.MomentMatching(),
    "cm": p3kernels.CovarianceMatching(),
    "cm-diagonal": p3kernels.CovarianceMatching(likelihood="diagonal"),
}


def gradients(estimator, first):
    """Gradients of the log-likelihood in exploration std and latent std, after `first` was asked for."""
    torch.manual_seed(0)
    actor = torch.nn.Sequential(torch.nn.Linear(7, 16), torch.nn.ELU(), torch.nn.Linear(16, 3)).double()
    context, mean = torch.randn(8, 4).double(), torch.randn(8, 3).double()
    latent_std = torch.rand(8, 3).double().add(0.1).requires_grad_()
    action_std = torch.full((3,), 0.6, dtype=torch.float64, requires_grad=True)
    action = torch.randn(8, 3).double()
    policy = estimator.policy(actor, context, mean, latent_std, action_std)
    old = estimator.policy(actor, context, mean, latent_std, action_std).remember(action)
    log_prob = policy.judge(action, old)[0] if first == "judge" else None
    if first == "sample":
        policy.sample()
    if log_prob is None:
        log_prob = policy.log_prob(action)
    return torch.autograd.grad(log_prob.sum(), (action_std, latent_std))


@pytest.mark.parametrize("first", ["sample", "judge"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_likelihood_has_its_gradient_whatever_came_before(name, first):
    """Float64, the same numbers another way: 1e-10."""
    expected, got = gradients(ESTIMATORS[name], "nothing"), gradients(ESTIMATORS[name], first)
    for one, other in zip(expected, got, strict=True):
        assert one.abs().max() > 1e-3
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)
