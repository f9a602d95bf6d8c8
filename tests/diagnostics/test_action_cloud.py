"""`action_cloud`: the state, the actions and the Gaussians it shows."""

from __future__ import annotations

import pytest
import torch
from helpers.linear_policies import exact_covariance, exact_mean, policy

from p3kernels import CovarianceMatching, MomentMatching
from p3kernels.diagnostics import action_cloud


def test_of_a_linear_actor():
    one = policy(65)
    scale = torch.linspace(0.2, 3, 65)[torch.randperm(65, generator=torch.Generator().manual_seed(1))].double()
    one = one._replace(latent_std=scale[:, None] * torch.ones_like(one.latent_std))
    found = action_cloud({"MM": MomentMatching(), "CM": CovarianceMatching()}, *one, points=400, seed=1)
    assert scale.argsort().argsort()[found.state] == pytest.approx(32, abs=12)  # the median, as far as 50 samples tell
    covariance = exact_covariance(one)[found.state]
    first, second = found.actions
    assert covariance.diagonal().argsort()[0] not in found.actions
    pair = torch.tensor(found.actions)
    plane = covariance[pair][:, pair]
    assert torch.tensor(found.estimators["CM"].covariance).double() == pytest.approx(plane, rel=1e-5)
    assert found.estimators["MM"].covariance[0][1] == 0
    assert found.estimators["MM"].covariance[1][1] == pytest.approx(plane[1, 1].item())
    assert torch.tensor(found.sampled.covariance).double() == pytest.approx(plane, rel=0.2)
    mean = exact_mean(one)[found.state]
    assert found.estimators["CM"].mean == pytest.approx((mean[first].item(), mean[second].item()))
    assert len(found.points) == 400
    assert torch.tensor(found.points).std(0).tolist() == pytest.approx(plane.diagonal().sqrt().tolist(), rel=0.2)
    assert found.action_std == pytest.approx(one.action_std[pair].tolist())


def test_given_actions_are_shown():
    found = action_cloud({}, *policy(actions=4), actions=(3, 1), points=10, seed=1)
    assert found.actions == (3, 1)
    with pytest.raises(ValueError, match=r"actions: expected two of 0 to 3, got \(1, 4\)"):
        action_cloud({}, *policy(actions=4), actions=(1, 4))


def test_one_action_is_no_plane():
    with pytest.raises(ValueError, match="actor: expected at least two actions"):
        action_cloud({}, *policy(actions=1))
