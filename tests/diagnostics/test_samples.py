"""Sampled moments and the Jacobian of a linear actor are known."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.linear_policies import SIGMAS, exact_covariance, exact_mean, latent_weight, policy, twins

from p3kernels.diagnostics import actor_jacobian, sampled_moments
from p3kernels.diagnostics import samples as module


def test_moments_of_a_linear_actor():
    one, count = policy(), 4000
    found = sampled_moments(*one[:4], count, torch.Generator().manual_seed(1))
    exact = exact_covariance(one)
    std = exact.diagonal(dim1=1, dim2=2).sqrt()
    assert ((found.mean - exact_mean(one)).abs() < SIGMAS * std / math.sqrt(count)).all()
    # Var of a sample covariance: (c_ab² + v_a v_b) / n
    error = ((exact.square() + std.square()[:, :, None] * std.square()[:, None, :]) / count).sqrt()
    assert ((found.covariance - exact).abs() < SIGMAS * error).all()
    assert torch.equal(found.var, found.covariance.diagonal(dim1=1, dim2=2))


def test_the_parts_of_the_samples_do_not_show(monkeypatch):
    one = policy()
    whole = sampled_moments(*one[:4], 50, torch.Generator().manual_seed(1))
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 64 * 7)
    parts = sampled_moments(*one[:4], 50, torch.Generator().manual_seed(1))
    torch.testing.assert_close(parts.covariance, whole.covariance, rtol=1e-10, atol=1e-12)


def test_a_large_mean_does_not_cancel():
    one = policy()
    shifted = one._replace(context=one.context + 1e6)
    near, far = (sampled_moments(*p[:4], 100, torch.Generator().manual_seed(1)).var for p in (one, shifted))
    torch.testing.assert_close(far, near, rtol=1e-6, atol=0)


def test_the_jacobian_of_a_linear_actor_is_its_weight():
    one = policy()
    found = actor_jacobian(one.actor, one.context, one.latent_mean)
    torch.testing.assert_close(found, latent_weight(one).expand(64, -1, -1))
    assert not found.requires_grad


def test_the_jacobian_sees_the_activation():
    one = twins(bias=-1.0)
    found = actor_jacobian(one.actor, one.context, one.latent_mean)
    assert found[0, :, 0].tolist() == pytest.approx([2 * math.exp(-1), -math.exp(-1)])


def test_one_sample_has_no_variance():
    with pytest.raises(ValueError, match="num_samples: expected an integer >= 2, got 1"):
        sampled_moments(*policy()[:4], 1)
