"""A policy as it is deployed, and as rsl_rl calls it."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from helpers.trainer.synthetic import (
    ACTIONS,
    EXTERO_LATENT,
    PROPRIO_LATENT,
    SIZES,
    make_actor,
    observations,
)
from torch import nn

from p3kernels import MomentMatching, MonteCarlo
from p3kernels.estimators import MonteCarloPolicy


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


class TestDeployment:
    def test_acts_at_the_mean(self):
        actor, obs = make_actor(), observations(5)
        proprio, history, scan = actor.normalised(obs).values()
        latent = actor.encoder(history, scan)
        expected = actor.mlp(torch.cat([proprio, latent.velocity, latent.mean], -1))
        for estimator in (MomentMatching(), MonteCarlo(1), MonteCarlo(4)):
            actor.estimator = estimator
            state = torch.get_rng_state()
            assert torch.equal(actor.act_at_mean(obs), expected)
            assert torch.equal(actor(obs), expected)
            assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn

    def test_the_latents_std_does_not_matter(self):
        actor, obs = make_actor(), observations(5)
        before, sampled = actor(obs), actor.act_at_sample(obs)
        assert (actor.act_at_sample(obs) != sampled).all()
        with torch.no_grad():
            actor.encoder.history_head.bias[PROPRIO_LATENT : 2 * PROPRIO_LATENT] = -30.0
            actor.encoder.scan_head.bias[EXTERO_LATENT:] = -30.0
        assert torch.equal(actor(obs), before)
        # The std is now e⁻⁶ at most: so is the difference of the actions, times the network's slope.
        torch.testing.assert_close(actor.act_at_sample(obs), before, rtol=0, atol=0.02)

    @pytest.mark.parametrize("rows", [1, 5, 200])
    @pytest.mark.parametrize("normalised", [True, False])
    @pytest.mark.parametrize("scripted", [True, False])
    def test_deployed_policy(self, rows, normalised, scripted):
        """On raw observations, with batches that go either way through the grid layer (35 pixels)."""
        actor, obs = make_actor(obs_normalization=normalised), observations(rows)
        policy = actor.as_jit()
        if scripted:
            file = io.BytesIO()
            torch.jit.save(torch.jit.script(policy), file)
            file.seek(0)
            policy = torch.jit.load(file)
        got = policy(obs["proprio"], obs["history"], obs["extero"])
        expected = actor.act_at_mean(obs)
        assert got.shape == (rows, ACTIONS)
        assert expected.count_nonzero() > 0
        # The same float32 operations in the same order, but for TorchScript's own kernels.
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("name", ["history.0", "history_head", "scan.0.convolution", "scan_head"])
    def test_the_encoder_is_in_it(self, name):
        actor, obs = make_actor(), observations(5)
        raw = obs["proprio"], obs["history"], obs["extero"]
        before = actor.as_jit()
        with torch.no_grad():
            actor.encoder.get_submodule(name).weight.mul_(2.0)
        after = actor.as_jit()
        assert (after(*raw) != before(*raw)).all()  # a copy, not shared; and it follows the encoder
        torch.testing.assert_close(after(*raw), actor.act_at_mean(obs), rtol=1e-5, atol=1e-6)

    def test_the_statistics_are_in_it(self):
        actor, obs = make_actor(), observations(5)
        raw = obs["proprio"], obs["history"], obs["extero"]
        before = actor.as_jit()
        actor.update_normalization(observations(500) + 1.0)
        assert (actor.as_jit()(*raw) != before(*raw)).all()

    def test_it_holds_no_decoder_and_no_exploration(self):
        actor = make_actor()
        left_out = count(actor.decoder) + actor.log_std.numel()
        assert count(actor.as_jit()) == count(actor) - left_out
        assert not any("decoder" in name for name, _ in actor.as_jit().named_parameters())

    def test_tracing(self):
        actor = make_actor()
        policy = actor.as_onnx(verbose=False)
        inputs = policy.get_dummy_inputs()
        assert policy.input_names == ["proprio", "history", "extero"]
        assert [tensor.shape[1] for tensor in inputs] == [SIZES[name] for name in policy.input_names]
        assert policy(*inputs).shape == (1, ACTIONS)
        assert len(policy.output_names) == 1


class TestRslRlContract:
    @pytest.mark.parametrize("estimator", [MomentMatching(), MonteCarlo(4)], ids=repr)
    def test_stochastic_call(self, estimator):
        actor, obs = make_actor(), observations(5)
        actor.estimator = estimator
        with pytest.raises(RuntimeError, match=r"stochastic_output=True first"):
            _ = actor.output_mean
        action = actor(obs, stochastic_output=True)
        policy = actor.current_policy
        assert action.shape == actor.output_mean.shape == (5, ACTIONS)
        assert not torch.equal(actor(obs, stochastic_output=True), action)
        policy = actor.current_policy
        assert torch.equal(actor.get_output_log_prob(action), policy.log_prob(action))
        assert torch.equal(actor.output_entropy, policy.entropy())
        assert torch.equal(actor.output_std, actor.action_std)
        if isinstance(policy, MonteCarloPolicy):
            assert actor.output_distribution_params == ()
        else:
            assert all(map(torch.equal, actor.output_distribution_params, (policy.mean, policy.stddev)))

    def test_the_estimator_is_no_weight(self):
        actor = make_actor()
        before = copy.deepcopy(actor.state_dict())
        actor.estimator = MonteCarlo(4)
        actor(observations(5), stochastic_output=True)
        after = actor.state_dict()
        assert list(after) == list(before)
        assert all(torch.equal(after[name], before[name]) for name in before)
