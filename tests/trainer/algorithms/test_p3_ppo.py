"""P3PPO on synthetic rollouts: ratios of unchanged weights, gradients, minibatches, learning."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from helpers.trainer.synthetic import (
    ACTIONS,
    PROPRIO_LATENT,
    TurningEnv,
    construct,
    rollout,
    same,
    statistics,
    trained,
    weights,
)
from torch import Tensor
from torch.distributions import Independent, Normal

from p3kernels import MonteCarlo
from trainer.algorithms.losses import clipped_surrogate
from trainer.models.actor import gaussian_kl

SIGMAS = 6
"""Standard errors allowed to a sampled number: a false alarm in 5e8; the seed is fixed besides."""


@pytest.mark.parametrize("method", ["mm", "mc(2)"])
def test_statistics_move_after_the_update_only(method):
    env = TurningEnv()
    algorithm = construct(method, env)
    before = statistics(algorithm)
    rollout(algorithm, env)
    assert same(statistics(algorithm), before)
    step, seen = algorithm.optimizer.step, []

    def spy() -> None:
        seen.append(same(statistics(algorithm), before))
        step()

    algorithm.optimizer.step = spy
    algorithm.update()
    assert seen == [True] * 4
    stored = algorithm.storage.observations.flatten(0, 1)
    # The first statistics are the first rollout's own: 128 rows in float32.
    proprio, scan = stored["proprio"], stored["extero"]
    critic = torch.cat([proprio, stored["critic"]], -1)
    for normalizer, values in (
        (algorithm.actor.proprio_normalizer, proprio),
        (algorithm.actor.scan_normalizer, scan),
        (algorithm.critic.obs_normalizer, critic),
    ):
        torch.testing.assert_close(normalizer.mean, values.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(normalizer.std, values.std(0, unbiased=False), rtol=1e-4, atol=1e-5)


class TestMomentMatchingRatio:
    def test_exactly_one_with_the_rollouts_batches(self):
        algorithm, _ = trained()
        storage = algorithm.storage
        for step in range(8):
            policy, _ = algorithm.actor.policy(storage.observations[step])
            assert torch.equal(policy.log_prob(storage.actions[step]), storage.actions_log_prob[step, :, 0])
            assert torch.equal(policy.mean, storage.distribution_params[0][step])
            assert torch.equal(policy.stddev, storage.distribution_params[1][step])

    def test_one_to_rounding_in_minibatches(self):
        """64 rows go through the scan's matrix, the rollout's 16 through the convolution."""
        algorithm, _ = trained()
        sizes = []
        for batch in algorithm._minibatches(algorithm._rollout()):
            policy, _ = algorithm.actor.policy(batch["observations"])
            ratio = (policy.log_prob(batch["actions"]) - batch["log_prob"]).exp()
            torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-5)
            sizes.append(len(ratio))
        assert sizes == [64, 64]

    def test_update_with_learning_rate_zero(self):
        algorithm, _ = trained(schedule="fixed", learning_rate=0.0)
        before = weights(algorithm)
        losses = algorithm.update()
        assert same(weights(algorithm), before)
        assert losses["clip_fraction"] == 0.0
        assert abs(losses["kl"]) < 1e-6
        # The mean of normalised advantages, over minibatches that cover them.
        assert abs(losses["surrogate"]) < 1e-4
        assert losses["skipped_steps"] == 0


@pytest.mark.parametrize("method", ["mm", "z-mean", "cm", "mc(3)", "mc3-common", "shared"])
def test_likelihood_entropy_and_kl_are_the_policys(method):
    """With weights moved away from those that acted, so that the KL is not 0."""
    algorithm, _ = trained(method)
    stored = next(algorithm._minibatches(algorithm._rollout()))
    for parameter in algorithm.actor.mlp.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    policy = algorithm.actor.recall(*algorithm.actor.encode(stored["observations"]), stored, algorithm._seed)
    log_prob, marginal, kls = policy.judge(stored["actions"], stored)
    entropy, kl = algorithm._entropy(marginal), kls.mean()
    torch.testing.assert_close(log_prob, policy.log_prob(stored["actions"]))
    if method.startswith("mc"):
        expected = (stored["log_prob"] - log_prob).mean()
    else:
        expected = gaussian_kl(stored["mean"], stored["scale"], *policy.params).mean()
        assert expected > 1e-3
    std = algorithm.actor.action_std
    torch.testing.assert_close(entropy, Independent(Normal(torch.zeros_like(std), std), 1).entropy())
    torch.testing.assert_close(kl, expected)
    algorithm.entropy = "marginal"
    torch.testing.assert_close(algorithm._entropy(marginal), policy.entropy().mean())


def log_ratios(method: str, rows: int = 2048) -> Tensor:
    """[B] of unchanged weights, as the update sees them before its first step."""
    torch.manual_seed(3)
    env = TurningEnv(rows // 2)
    algorithm = construct(method, env, steps=2)
    rollout(algorithm, env)
    data = algorithm._rollout()
    with torch.no_grad():
        policy, _ = algorithm.actor.policy(data["observations"])
        return policy.log_prob(data["actions"]) - data["log_prob"]


@pytest.mark.parametrize("method", ["shared", "mc1-common", "mc5-common", "mc4-sobol-common"])
def test_ratio_of_kept_noise_is_one_in_shuffled_minibatches(method):
    """Also after updates, whose statistics and weights have moved; two epochs, each with its own order."""
    algorithm, _ = trained(method)
    data = algorithm._rollout()
    for batch in (*algorithm._minibatches(data), *algorithm._minibatches(data)):
        policy = algorithm.actor.recall(*algorithm.actor.encode(batch["observations"]), batch, algorithm._seed)
        log_ratio = policy.log_prob(batch["actions"]) - batch["log_prob"]
        assert log_ratio.abs().max() <= 1e-5
    assert data["log_prob"].std() > 0


@pytest.mark.parametrize("method", ["shared", "mc5-common"])
def test_update_of_kept_noise_with_learning_rate_zero(method):
    algorithm, _ = trained(method, schedule="fixed", learning_rate=0.0)
    losses = algorithm.update()
    assert losses["clip_fraction"] == 0.0
    assert abs(losses["kl"]) < 1e-6
    assert abs(losses["surrogate"]) < 1e-4


def test_the_decoder_sees_the_shared_noise():
    algorithm, _ = trained("shared", schedule="fixed", learning_rate=0.0)
    actor, latents = algorithm.actor, []
    noise = algorithm.storage.distribution_params[2].flatten(0, 1).clone()
    with torch.no_grad():
        _, latent = actor.encode(algorithm.storage.observations.flatten(0, 1))
    actor.decoder.register_forward_pre_hook(lambda _, given: latents.append(given[0].detach()))
    algorithm.update()
    seen = torch.cat(latents)
    expected = latent.mean + latent.std * noise
    assert len(seen) == 2 * len(expected)  # two epochs
    distances = (seen[:, None] - expected).abs().amax(-1).amin(1)
    assert distances.max() < 1e-4


class TestMonteCarloRatio:
    def test_spread_falls_with_samples(self):
        spreads = [log_ratios(f"mc({samples})").std() for samples in (1, 16, 256)]
        assert spreads[0] > 2 * spreads[1] > 4 * spreads[2] > 0
        assert spreads[2] < 0.3

    @pytest.mark.parametrize("samples", [1, 4])
    def test_no_bias(self, samples):
        """Old and new likelihood are draws of the same distribution: the log-ratio's mean is 0."""
        log_ratio = log_ratios(f"mc({samples})", rows=8192)
        assert log_ratio.std() > 0
        assert abs(log_ratio.mean()) <= SIGMAS * log_ratio.std() / math.sqrt(len(log_ratio))

    @pytest.mark.parametrize("samples", [1, 4])
    def test_the_acting_latent_would_be_a_bias(self, samples):
        """What the test above excludes: with the acting latent among its samples the old likelihood is too high."""
        actor = construct("mc(1)").actor
        with torch.no_grad():
            context, latent = actor.encode(TurningEnv(8192).get_observations())
            noise = torch.randn(samples, *latent.mean.shape)
            mean = actor.mlp(torch.cat([context, latent.mean + latent.std * noise[0]], -1))
            action = mean + actor.action_std * torch.randn_like(mean)
            arguments = (actor.mlp, context, latent.mean, latent.std, actor.action_std)
            old = MonteCarlo(samples).policy(*arguments)
            old = dataclasses.replace(old, noise=noise)
            log_ratio = MonteCarlo(samples).policy(*arguments).log_prob(action) - old.log_prob(action)
        assert log_ratio.mean() < -SIGMAS * log_ratio.std() / math.sqrt(len(log_ratio))

    def test_the_old_likelihood_is_drawn_once_for_all_epochs(self):
        algorithm, _ = trained("mc(2)")
        minibatches, seen = algorithm._shuffled, []

        def spy(data: dict[str, Any]) -> Any:
            seen.append(data["log_prob"].clone())
            return minibatches(data)

        algorithm._shuffled = spy
        algorithm.update()
        assert len(seen) == 2
        assert same(seen[:1], seen[1:])
        assert seen[0].count_nonzero() > 0
        assert not seen[0].requires_grad


@pytest.mark.parametrize("method", ["mm", "vae", "mc(4)", "mc4-common", "shared", "vae-stored"])
def test_the_surrogate_trains_the_encoder(method):
    """Means, log-variances and velocity of the history, means and log-variances of the scan; and all below them."""
    algorithm, _ = trained(method)
    actor, batch = algorithm.actor, next(algorithm._minibatches(algorithm._rollout()))
    algorithm.optimizer.zero_grad()
    policy = actor.recall(*actor.encode(batch["observations"]), batch, algorithm._seed)
    log_ratio = policy.log_prob(batch["actions"]) - batch["log_prob"]
    clipped_surrogate(log_ratio, batch["advantages"], 0.2).backward()
    for gradient, rows in (
        (actor.encoder.history_head.weight.grad, (PROPRIO_LATENT, PROPRIO_LATENT, 3)),
        (actor.encoder.scan_head.weight.grad, (5, 5)),
    ):
        assert gradient.isfinite().all()
        assert all((part != 0).any(-1).all() for part in gradient.split(rows))
    for name, parameter in [*actor.encoder.named_parameters(), *actor.mlp.named_parameters()]:
        assert parameter.grad.count_nonzero() > 0, name
    assert actor.log_std.grad.count_nonzero() == ACTIONS


def test_with_one_sample_the_decoder_sees_the_policys_latent():
    algorithm, _ = trained("vae", schedule="fixed", learning_rate=0.0)
    actor, make_policy = algorithm.actor, algorithm.actor.recall
    policies, latents, actions = [], [], []

    def spy(*encoded: Any) -> Any:
        policies.append(make_policy(*encoded))
        return policies[-1]

    actor.recall = spy
    actor.decoder.register_forward_pre_hook(lambda _, given: latents.append(given[0]))
    actor.decoder.register_forward_pre_hook(lambda _, given: actions.append(given[2]))
    algorithm.update()
    del policies[0]  # the old likelihood's
    assert len(policies) == len(latents) == 4
    for policy, latent, action in zip(policies, latents, actions, strict=True):
        assert policy.noise.shape == (1, *latent.shape)
        assert torch.equal(latent, policy.latent_mean + policy.latent_std * policy.noise[0])
        assert not torch.equal(latent, policy.latent_mean)
        mean = actor.mlp(torch.cat([policy.context, latent], -1))
        expected = Independent(Normal(mean, policy.action_std), 1).log_prob(action)
        # Float32 sums of squares up to a few hundred.
        torch.testing.assert_close(policy.log_prob(action), expected, rtol=1e-4, atol=1e-4)


class TestMinibatches:
    def test_new_order_every_epoch(self):
        algorithm, _ = trained(num_learning_epochs=3, num_mini_batches=4)
        minibatches, orders, sizes = algorithm._shuffled, [], []

        def spy(data: dict[str, Any]) -> Any:
            rows = []
            for row in minibatches(data):
                rows.append(row)
                batch = algorithm._batch(data, row)
                for name in batch.keys() - {"rows"}:  # the parts of a batch belong together
                    value = data[name]
                    assert (batch[name] == value[row]).all(), name
                yield row
            sizes.append([len(row) for row in rows])
            orders.append(torch.cat(rows))

        algorithm._shuffled = spy
        algorithm.update()
        assert sizes == [[32] * 4] * 3
        for order in orders:
            assert order.sort().values.tolist() == list(range(128))
            assert order.tolist() != list(range(128))
        assert not torch.equal(orders[0], orders[1])
        assert not torch.equal(orders[1], orders[2])

    def test_a_rest_is_left_out(self):
        algorithm, _ = trained(num_mini_batches=5)
        assert [len(batch["actions"]) for batch in algorithm._minibatches(algorithm._rollout())] == [25] * 5


@pytest.mark.parametrize("method", ["mm", "vae", "mc(4)"])
def test_losses_fall_on_one_rollout(method):
    """The next proprioception is a rotation of the last frame, scan and velocity are functions of the same state."""
    env = TurningEnv()
    settings = {"num_learning_epochs": 5, "schedule": "fixed", "learning_rate": 2e-3, "use_clipped_value_loss": False}
    algorithm = construct(method, env, **settings)
    rollout(algorithm, env)
    history = [algorithm.update() for _ in range(10)]  # the storage keeps its content
    # The statistics move after the first update, and with them the scale of what is to be decoded.
    first, last = history[1], history[-1]
    for name in ("proprio", "scan", "velocity", "value"):
        assert last[name] < 0.6 * first[name], name
    if method == "mm":  # by Monte Carlo the ratio's noise is larger than what a few updates gain
        assert last["surrogate"] < first["surrogate"] - 0.03
    assert sum(losses["skipped_steps"] for losses in history) == 0
