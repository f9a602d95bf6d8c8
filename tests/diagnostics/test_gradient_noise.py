"""`gradient_noise`: nothing without noise, and the law where its expansion is exact."""

from __future__ import annotations

import pytest
import torch
from helpers.linear_policies import latent_weight, policy

from p3kernels import CovarianceMatching, LatentMean, MomentMatching, MonteCarlo
from p3kernels.diagnostics import gradient_noise, noise_law, noise_scaling, ratio_variance

ROWS = 300


def batch(rows: int = ROWS, **options):
    one = policy(rows, **options)
    torch.manual_seed(1)
    return one, MonteCarlo(1).policy(*one).sample(), torch.randn(rows).double()


@pytest.mark.parametrize("estimator", [MomentMatching(), CovarianceMatching(), LatentMean()], ids=repr)
@pytest.mark.parametrize("clip", [0.2, None])
def test_a_deterministic_estimator_has_no_noise_and_the_policy_gradient(estimator, clip):
    one, action, advantage = batch()
    found = gradient_noise(estimator, *one, action, advantage, clip=clip, redraws=3)
    assert found.noise == pytest.approx(0, abs=1e-20)
    assert found.alignment == pytest.approx(1)
    assert set(found.action_noise) == {0.0}
    # Where the ratio is 1 the surrogate's gradient is that of -mean A log π.
    loss = -(advantage * estimator.policy(*one).log_prob(action)).mean()
    exact = sum(g.square().sum().item() for g in torch.autograd.grad(loss, list(one.actor.parameters())))
    assert found.signal == pytest.approx(exact, rel=1e-9)
    assert exact > 0


def test_a_certain_latent_has_no_noise():
    one, action, advantage = batch()
    certain = one._replace(latent_std=torch.zeros_like(one.latent_std))
    assert gradient_noise(MonteCarlo(5), *certain, action, advantage, redraws=3).noise == pytest.approx(0, abs=1e-20)


def test_more_samples_have_less_noise_and_agree_more():
    one, action, advantage = batch(std=0.03)
    few, more = (gradient_noise(MonteCarlo(n), *one, action, advantage, redraws=20, seed=1) for n in (1, 20))
    assert more.noise + 3 * more.standard_error < few.noise - 3 * few.standard_error
    assert 0 < few.alignment < more.alignment < 1
    assert more.ratio < few.ratio


def test_common_latents_leave_only_the_scores_noise():
    one, action, advantage = batch(std=0.03)
    apart, common = (
        gradient_noise(MonteCarlo(1), *one, action, advantage, clip=None, common=flag, redraws=20, seed=1)
        for flag in (False, True)
    )
    assert 0 < common.noise < 0.5 * apart.noise


def test_clipping_cuts_gradients_off():
    one, action, advantage = batch()
    clipped, free = (
        gradient_noise(MonteCarlo(1), *one, action, advantage, clip=clip, redraws=5, seed=1) for clip in (0.2, None)
    )
    assert clipped != free


def test_ratio_variance_of_a_linear_actor():
    one = policy()
    exact = torch.einsum("az,bz,a->b", latent_weight(one).square(), one.latent_std.square(), one.action_std**-2)
    torch.testing.assert_close(ratio_variance(*one), exact)


@pytest.mark.parametrize("actions", [2, 6])
def test_the_law_up_to_what_it_leaves_out(actions):
    """For a linear actor, to first order in ρ = σ_vae² ‖J‖² / σ_act², with x = (a - m) / σ and C the covariance of δ:

    r̂ · score ≈ (1 + x·(δ₁ - δ₂)) (x - δ₁) / σ, of variance E[2 |x|² xᵀCx] - 2 E[xᵀCx] + tr C = (2 d + 3) ρ, in units
    of 1/σ²; the law has 2 d ρ: it leaves out the score's own noise and takes |x|² and xᵀCx as independent.
    """
    one, action, _ = batch(4000, actions=actions)
    std = torch.full_like(one.action_std, 0.4)
    small = one._replace(latent_std=0.005 * one.latent_std, action_std=std)
    torch.manual_seed(2)
    action = MonteCarlo(1).policy(*small).sample()
    ones = torch.ones(4000).double()
    found = gradient_noise(MonteCarlo(1), *small, action, ones, clip=None, redraws=40, seed=1)
    measured = torch.tensor(found.action_noise).mean().item()
    law = noise_law(*small, ones, 1).mean().item()
    assert measured / law == pytest.approx(1 + 3 / (2 * actions), rel=0.1)


def test_the_exponents_of_a_linear_actor():
    one, _, advantage = batch(300, actions=4)
    found = noise_scaling(*one, advantage, counts=(1, 4, 16), points=4, redraws=16, seed=1)
    for laws in (found.parameters, found.action_mean):
        assert laws.num_samples.exponent == pytest.approx(-1, abs=0.15)
        assert laws.latent_std.exponent == pytest.approx(2, abs=0.15)
        assert sum(laws.latent_std.in_range) >= 3
        assert not laws.latent_std.in_range[-1]  # as it is, the policy is far outside of the law's range
        assert (laws.num_samples.predicted, laws.latent_std.predicted, laws.action_std.predicted) == (-1, 2, -4)
    assert found.action_mean.action_std.exponent == pytest.approx(-4, abs=0.2)
    # In parameters the latent is itself an input of the weights: with σ_act² alone, not σ_act⁴.
    assert found.parameters.action_std.exponent == pytest.approx(-2, abs=0.5)
    assert found.ratio_variance == pytest.approx(ratio_variance(*one).mean().item())
    assert found.jacobian.exponent == pytest.approx(2, abs=4 * found.jacobian.exponent_error)


def test_a_policy_within_the_laws_range_is_not_shrunk():
    one, _, advantage = batch(50, std=0.003)
    found = noise_scaling(*one, advantage, counts=(1, 2), points=3, redraws=4, seed=1)
    assert found.shrink == 1
    assert found.parameters.latent_std.quantity == (0.25, 0.5, 1.0)
    assert all(found.parameters.latent_std.in_range)


def test_a_seed_repeats_and_gradients_are_left_alone():
    one, action, advantage = batch(20)
    before = torch.get_rng_state()
    first = gradient_noise(MonteCarlo(3), *one, action, advantage, redraws=3, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.inference_mode():
        assert gradient_noise(MonteCarlo(3), *one, action, advantage, redraws=3, seed=5) == first
    assert all(parameter.grad is None for parameter in one.actor.parameters())


def test_mistakes_are_named():
    one, action, advantage = batch(20)
    for changes, message in (
        ({"action": action[:5]}, r"action: expected shape \[20, 3\]"),
        ({"advantage": advantage[:5]}, r"advantage: expected shape \[20\]"),
        ({"redraws": 1}, "redraws: expected an integer >= 2"),
        ({"clip": 2.0}, "clip: expected None or a number between 0 and 1"),
    ):
        arguments = {"action": action, "advantage": advantage, **changes}
        with pytest.raises(ValueError, match=message):
            gradient_noise(MonteCarlo(1), *one, **arguments)
    with pytest.raises(ValueError, match="latent_std: expected a latent that changes the action"):
        noise_scaling(*one._replace(latent_std=torch.zeros_like(one.latent_std)), advantage)
