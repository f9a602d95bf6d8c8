"""A rollout step of the policies that act at one latent: the actor, noise included, is one launch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import p3kernels
from p3kernels.cuda import one_launch
from p3kernels.reference.latent_noise import latent_noise


def policy(rows: int = 19, num_samples: int = 5, backend: str | None = "cuda"):
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(24, 17), nn.ELU(0.7), nn.Linear(17, 9), nn.ELU(0.7), nn.Linear(9, 3))
    latent = torch.randn(rows, 11), torch.rand(rows, 11)
    estimator = p3kernels.MonteCarlo(num_samples, backend=backend)
    return estimator.policy(actor, torch.randn(rows, 13), *latent, torch.full((3,), 1e-30))


def test_a_sample_is_one_launch_and_the_actor_at_the_seeds_noise(count_launches):
    of = policy()
    torch.manual_seed(3)
    actions = []
    assert count_launches(lambda: actions.append(of.sample())) == 1
    torch.manual_seed(3)
    noise = latent_noise(torch.randint(2**62, (1,)), 1, 19, 11)[0]
    with torch.no_grad():
        expected = of.actor(torch.cat([of.context, of.latent_mean + of.latent_std * noise], -1))
    torch.testing.assert_close(actions[0], expected, rtol=1e-5, atol=1e-5)  # sums in another order
    assert not torch.equal(of.sample(), actions[0]), "the next is another"


def test_the_actor_at_the_latents_mean_is_one_launch_without_a_gradient(count_launches):
    of = policy()
    estimator = p3kernels.LatentMean(backend="cuda")
    arguments = (of.actor, of.context, of.latent_mean, of.latent_std, of.action_std)
    expected = of.actor(torch.cat([of.context, of.latent_mean], -1))
    means = []
    before = torch.get_rng_state()
    with torch.no_grad():
        assert count_launches(lambda: means.append(estimator.policy(*arguments).mean)) == 1
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(means[0], expected, rtol=1e-5, atol=1e-5)  # sums in another order
    assert count_launches(lambda: means.append(estimator.policy(*arguments).mean)) == 0
    assert torch.equal(means[1], expected)
    assert means[1].requires_grad


def test_what_does_not_fit_runs_in_torch(monkeypatch, count_launches):
    monkeypatch.setattr(one_launch, "ONE_LAUNCH_ROWS", 18)
    actions = []
    assert count_launches(lambda: actions.append(policy().sample())) == 0
    assert actions[0].shape == (19, 3)


@pytest.mark.parametrize("backend", [None, "cpu", "reference"])
def test_other_backends_draw_from_torchs_generator(backend, count_launches):
    of = policy(backend=backend)
    torch.manual_seed(3)
    action = of.sample()
    torch.manual_seed(3)
    with torch.no_grad():
        expected = of.actor(torch.cat([of.context, of.latent_mean + of.latent_std * torch.randn(19, 11)], -1))
    torch.testing.assert_close(action, expected)
    assert count_launches(of.sample) == 0


def test_float64_is_refused():
    of = policy()
    of.actor.double()
    with pytest.raises(TypeError, match=r"weights\[0\]: the cuda backend expects float32 or bfloat16, got float64"):
        of.sample()
