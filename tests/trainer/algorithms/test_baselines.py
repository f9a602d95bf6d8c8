"""The baselines against the paper's description: sizes, what trains what, and that they learn."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers.trainer.synthetic import ACTIONS, SCAN_SHAPE, TurningEnv, config, construct, observations, rollout, trained
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from p3kernels import LatentMean
from trainer.algorithms import P3PPO, parse_method
from trainer.algorithms.baselines.ae import AutoEncoderActor
from trainer.algorithms.baselines.simple_actor_critic import SimpleActor
from trainer.algorithms.baselines.spr import SprActor
from trainer.algorithms.presets import resolve
from trainer.algorithms.rsl_rl_config import rsl_rl_config
from trainer.config import ModelConfig, TrainConfig

METHODS = ("p3(3)", "mm", "vae", "mc3", "mc3-common", "shared", "z-mean", "ae", "spr", "simple-actor-critic")
ENCODED = METHODS[:-1]
COVERED = ("mc3", "mc3-common", "shared", "z-mean")
"""Learn as others do, p3(3) with its Monte Carlo among them: in `make test-all`."""
PARTS = {"ae": {"proprio", "scan", "velocity"}, "spr": {"prediction"}, "simple-actor-critic": set()}
"""What trains the representation; of all others the VAE's."""


def dense(*sizes: int) -> int:
    """Parameters of linear layers of these widths."""
    return sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(sizes))


def trainable(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


CONVOLUTIONS = (4 * 9 + 4) + (8 * 4 * 9 + 8)
DECODER = dense(13 + 29, 256, 256, 96) + dense(100, 128, 120) + (8 * 4 * 9 + 4) + (4 * 9 + 1)
VAE = dense(480, 256, 256, 23) + CONVOLUTIONS + dense(120, 128, 200) + DECODER + dense(209, 512, 256, 128, 29) + 29
SIZES = {
    **dict.fromkeys(("p3(3)", "mm", "vae", "mc3", "mc3-common", "shared", "z-mean"), VAE),
    # No variances: 10 + 100 outputs fewer.
    "ae": VAE - 257 * 10 - 129 * 100,
    # One frame in place of five, no velocity, no decoder; 110 latents and 29 actions to 110 latents.
    "spr": (
        dense(96, 256, 256, 10)
        + CONVOLUTIONS
        + dense(120, 128, 100)
        + dense(139, 256, 256, 110)
        + dense(96 + 110, 512, 256, 128, 29)
        + 29
    ),
    "simple-actor-critic": dense(96 + 187, 512, 256, 128, 29) + 29,
}


@pytest.mark.parametrize("method", METHODS)
def test_parameters_are_those_of_the_papers_tables(method):
    sizes = {"proprio": 96, "history": 480, "extero": 187, "velocity": 3, "critic": 298}
    obs = TensorDict({name: torch.zeros(2, size) for name, size in sizes.items()}, batch_size=[2])
    env = TurningEnv(2)
    env.num_actions = 29
    settings = rsl_rl_config(resolve(TrainConfig(task="g1-parkour", method=method, preset="paper", num_envs=2)))
    algorithm = P3PPO.construct_algorithm(obs, env, settings, "cpu")
    assert trainable(algorithm.actor) == SIZES[method]
    assert trainable(algorithm.critic) == dense(298, 512, 256, 128, 1)


def test_hyper_parameters_are_the_same_for_all():
    made = [rsl_rl_config(resolve(TrainConfig(method=method, switch_at=5))) for method in METHODS]
    for settings in made:
        for name in ("method", "switch_at"):  # which only methods of several phases have
            settings["algorithm"].pop(name)
        settings.pop("actor")
    assert all(settings == made[0] for settings in made)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.sweep] if name in COVERED else []) for name in METHODS]
)
def test_learns(method):
    """On a world where the action has to follow the state: rewards rise, the representation's losses fall."""
    env = TurningEnv(64)
    schedule = "fixed" if method == "vae" else "adaptive"  # the KL of one sample is noise: the rate would only fall
    switch = {"switch_at": 15} if method.startswith("p3") else {}
    algorithm = construct(method, env, schedule=schedule, **switch)
    history, rewards = [], []
    for _ in range(30):
        rollout(algorithm, env)
        rewards.append(algorithm._rewards.item() / 8)  # without what time-outs add
        history.append(algorithm.update())
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 1.0
    assert all(losses["skipped_steps"] == 0 for losses in history)
    parts = PARTS.get(method, {"proprio", "scan", "velocity", "latent_kl"})
    assert history[0].keys() - {"skipped_steps"} == parts | {
        *("surrogate", "value", "entropy", "kl", "clip_fraction", "learning_rate")
    }
    for name in parts - {"latent_kl"}:  # which may well rise while the latent comes to mean something
        # The target of spr is its own latent, which the policy makes richer once it is predicted well.
        last = min(losses[name] for losses in history) if name == "prediction" else history[-1][name]
        assert last < 0.7 * history[0][name], name


@pytest.mark.parametrize("method", ENCODED)
def test_the_policy_gradient_trains_the_encoder(method):
    algorithm, _ = trained(method)
    algorithm.optimizer.zero_grad()
    batch = algorithm._rollout()
    policy, _ = algorithm.actor.policy(batch["observations"])
    policy.log_prob(batch["actions"]).sum().backward()
    for part in (algorithm.actor.encoder.history, algorithm.actor.encoder.scan):
        gradients = [parameter.grad for parameter in part.parameters()]
        assert all(gradient is not None and gradient.count_nonzero() > 0 for gradient in gradients)


@pytest.mark.parametrize("method", METHODS)
def test_deployed_policy_acts_at_the_mean(method):
    algorithm, _ = trained(method)
    actor, obs = algorithm.actor, observations(5)
    deployed = torch.jit.script(actor.as_jit())
    raw = [obs[name] for name in actor.as_jit().input_names]
    torch.testing.assert_close(deployed(*raw), actor.act_at_mean(obs))
    assert [tensor.shape[1] for tensor in actor.as_jit().get_dummy_inputs()] == [tensor.shape[1] for tensor in raw]


@pytest.mark.parametrize("method", ["z-mean", "ae", "spr", "simple-actor-critic"])
def test_without_a_latent_distribution_the_policy_is_a_plain_gaussian(method):
    algorithm, _ = trained(method)
    actor, obs = algorithm.actor, observations(7)
    assert algorithm.actor.estimator == LatentMean()
    policy, _ = actor.policy(obs)
    expected = Independent(Normal(actor.act_at_mean(obs), actor.action_std), 1)
    action = torch.randn(7, ACTIONS)
    torch.testing.assert_close(policy.log_prob(action), expected.log_prob(action))
    torch.testing.assert_close(policy.entropy(), expected.entropy())
    assert policy.latent_var.count_nonzero() == 0


def test_a_method_needs_its_own_actor():
    env, settings = TurningEnv(), config("spr")
    settings["algorithm"]["method"] = "vae"
    message = r"actor: method 'vae' trains a P3Actor \(class_name 'trainer.models:P3Actor'\), got a SprActor"
    with pytest.raises(ValueError, match=message):
        P3PPO.construct_algorithm(env.get_observations(), env, settings, "cpu")


def test_settings_that_a_method_does_not_have_are_refused():
    for method, option in (("ae", "beta"), ("spr", "beta"), ("simple-actor-critic", "extero_latent")):
        given = TrainConfig(method=method, model=ModelConfig(**{option: 7}))
        message = f"--model.{option.replace('_', '-')}: the networks of {method} have no such setting"
        with pytest.raises(ValueError, match=message):
            resolve(given)


class TestLatentMean:
    def test_the_policy_does_not_see_the_variance(self):
        """Only the VAE's loss trains the variance's head."""
        algorithm, _ = trained("z-mean")
        algorithm.optimizer.zero_grad()
        batch = algorithm._rollout()
        actor = algorithm.actor
        policy, latent = actor.policy(batch["observations"])
        policy.log_prob(batch["actions"]).sum().backward(retain_graph=True)
        split = actor.encoder.extero_latent
        assert actor.encoder.scan_head.weight.grad[split:].count_nonzero() == 0
        assert actor.encoder.scan_head.weight.grad[:split].count_nonzero() > 0
        actor.representation_loss(policy, latent, batch, batch).total.backward()
        assert actor.encoder.scan_head.weight.grad[split:].count_nonzero() > 0


class TestAutoEncoder:
    def test_decodes_the_latent_itself(self):
        algorithm, _ = trained("ae")
        actor, batch = algorithm.actor, algorithm._rollout()
        assert isinstance(actor, AutoEncoderActor)
        policy, latent = actor.policy(batch["observations"])
        assert latent.std.count_nonzero() == 0
        loss = actor.representation_loss(policy, latent, batch, batch)
        decoded, scan = actor.decoder(latent.mean, latent.velocity, batch["actions"])
        error = (decoded - batch["next_proprio"]).square().mean(-1)
        expected = (
            (error * batch["next_valid"]).sum() / batch["next_valid"].sum()
            + (scan - batch["scan"]).square().mean()
            + (latent.velocity - batch["velocity"]).square().mean()
        )
        torch.testing.assert_close(loss.total, expected)
        assert "latent_kl" not in loss.parts


class TestSpr:
    def test_loss_by_hand(self):
        """Every prediction one at a time, from the stored steps, episodes and rollout's end looked at one by one."""
        algorithm, _ = trained("spr", num_envs=5)
        actor, storage = algorithm.actor, algorithm.storage
        assert isinstance(actor, SprActor)
        with torch.no_grad():  # apart, so that it matters which of the two encodes
            for parameter in actor.target_encoder.parameters():
                parameter.mul_(1.1)
        steps, envs = storage.num_transitions_per_env, storage.num_envs
        assert storage.dones.sum() >= 2
        rollout_data = algorithm._rollout()
        frames = actor.proprio_normalizer(storage.observations["proprio"])
        scans = actor.scan_normalizer(storage.observations["extero"])
        errors: dict[int, list[Tensor]] = {1: [], 2: [], 3: []}
        for step, env in itertools.product(range(steps), range(envs)):
            predicted = actor.encoder(frames[step, env][None], scans[step, env][None]).mean
            for ahead in (1, 2, 3):
                last = step + ahead - 1
                if storage.dones[last, env] or step + ahead >= steps:
                    break
                predicted = actor.dynamics(torch.cat([predicted, storage.actions[last, env][None]], -1))
                target = actor.target_encoder(frames[step + ahead, env][None], scans[step + ahead, env][None]).mean
                errors[ahead].append((predicted - target).square().mean())
        expected = sum(torch.stack(found).mean() for found in errors.values())
        order = torch.randperm(steps * envs)
        batch = {name: value[order] for name, value in rollout_data.items() if not isinstance(value, int)}
        policy, latent = actor.policy(batch["observations"])
        loss = actor.representation_loss(policy, latent, {**batch, "rows": order}, rollout_data)
        torch.testing.assert_close(loss.parts["prediction"], expected)
        torch.testing.assert_close(loss.total, 0.5 * expected)

    def test_no_gradient_reaches_the_target(self):
        algorithm, _ = trained("spr")
        algorithm.optimizer.zero_grad()
        actor, data = algorithm.actor, algorithm._rollout()
        policy, latent = actor.policy(data["observations"])
        rows = torch.arange(len(data["actions"]))
        actor.representation_loss(policy, latent, {**data, "rows": rows}, data).total.backward()
        assert all(parameter.grad is None for parameter in actor.target_encoder.parameters())
        assert all(parameter.grad.count_nonzero() > 0 for parameter in actor.dynamics.parameters())
        assert all(parameter.grad.count_nonzero() > 0 for parameter in actor.encoder.parameters())

    def test_the_target_follows_at_every_step(self):
        """EMA: target ← 0.99 target + 0.01 online, after each of the update's four steps."""
        algorithm, _ = trained("spr")
        actor = algorithm.actor
        target = [parameter.clone() for parameter in actor.target_encoder.parameters()]
        step = algorithm.optimizer.step

        def spy() -> None:
            step()
            for mine, online in zip(target, actor.encoder.parameters(), strict=True):
                mine.mul_(0.99).add_(0.01 * online.detach())

        algorithm.optimizer.step = spy
        algorithm.update()
        for mine, theirs in zip(target, actor.target_encoder.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
        assert not torch.equal(target[0], next(actor.encoder.parameters()))

    @pytest.mark.parametrize(
        ("option", "value", "message"),
        [
            ("prediction_steps", 0, "prediction_steps: expected at least 1, got 0"),
            ("ema_decay", 1.0, "ema_decay: expected 0 <= ema_decay < 1, got 1.0"),
        ],
    )
    def test_bad_settings(self, option, value, message):
        groups = {"actor": ["proprio", "extero"]}
        with pytest.raises(ValueError, match=message):
            SprActor(observations(3), groups, "actor", ACTIONS, scan_shape=SCAN_SHAPE, **{option: value})


class TestSimpleActorCritic:
    def test_sees_one_frame_and_the_scan(self):
        algorithm, _ = trained("simple-actor-critic")
        actor, obs = algorithm.actor, observations(4)
        assert isinstance(actor, SimpleActor)
        before = actor.act_at_mean(obs)
        obs["history"] += 1.0
        assert torch.equal(actor.act_at_mean(obs), before)
        for name in ("proprio", "extero"):
            changed = obs.clone()
            changed[name] += 1.0
            assert (actor.act_at_mean(changed) != before).any()


def test_every_method_is_a_name_of_the_command_line():
    assert {parse_method(name).name for name in METHODS} == set(METHODS)
