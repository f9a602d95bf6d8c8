"""P3PPO over a run: construction, the change of estimator, checkpoints, steps left out, rsl_rl's own runner."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from helpers.trainer.synthetic import (
    TurningEnv,
    adam_state,
    config,
    construct,
    observations,
    rollout,
    same,
    statistics,
    trained,
    weights,
)
from rsl_rl.runners import OnPolicyRunner
from torch import Tensor

from p3kernels import MomentMatching, MonteCarlo, SharedNoise
from trainer.algorithms import P3PPO, parse_method


class TestSwitch:
    @pytest.mark.parametrize(("rate", "expected"), [(8e-3, 1e-3), (2e-4, 2e-4)])
    def test_only_the_likelihood_changes(self, rate, expected):
        env = TurningEnv()
        algorithm = construct("p3(3)", env, switch_at=2, learning_rate=1e-3)
        finish, pairs = algorithm._finish, []

        def spy() -> None:
            if algorithm.iteration == 1:
                algorithm.set_learning_rate(rate)
            before = weights(algorithm), adam_state(algorithm)
            finish()
            pairs.append((before, (weights(algorithm), adam_state(algorithm))))

        algorithm._finish = spy
        optimizer, parameters = algorithm.optimizer, [id(p) for p in algorithm.actor.parameters()]
        rollout(algorithm, env)
        algorithm.update()
        assert algorithm.actor.estimator == MomentMatching()
        assert algorithm.storage.distribution_params is not None
        rollout(algorithm, env)
        algorithm.update()

        assert algorithm.actor.estimator == MonteCarlo(3)
        assert algorithm.storage.distribution_params is None
        assert algorithm.optimizer is optimizer
        assert [id(p) for p in algorithm.actor.parameters()] == parameters
        before, after = pairs[1]
        assert same(before[0], after[0])
        assert same(before[1], after[1])
        assert len(before[1]) > 0
        assert algorithm.learning_rate == optimizer.param_groups[0]["lr"] == expected

        rollout(algorithm, env)
        assert algorithm.storage.distribution_params == ()
        losses = algorithm.update()
        assert all(math.isfinite(value) for value in losses.values())
        assert losses["skipped_steps"] == 0
        assert not same(weights(algorithm), after[0])
        assert algorithm.actor.estimator == MonteCarlo(3)

    def test_difficulty_and_plateau(self):
        """Flat progress, for a learning rate of 0 leaves the policy as it is; the difficulty decides."""
        env = TurningEnv()
        algorithm = construct("p3(2)", env, plateau_window=2, schedule="fixed", learning_rate=0.0)
        algorithm.estimators.plateau.tolerance = math.inf
        for difficulty, estimator in ((0.8, MomentMatching()), (0.8, MomentMatching()), (0.9, MonteCarlo(2))):
            with torch.inference_mode():
                obs = env.get_observations()
                for _ in range(8):
                    obs, reward, done, extras = env.step(algorithm.act(obs))
                    extras["log"] = {"curriculum/difficulty": difficulty}
                    algorithm.process_env_step(obs, reward, done, extras)
                algorithm.compute_returns(obs)
            algorithm.update()
            assert algorithm.actor.estimator == estimator


class TestCheckpoint:
    @pytest.mark.parametrize(
        ("method", "settings"),
        [
            ("mm", {}),
            ("vae", {}),
            ("p3(2)", {"switch_at": 1}),
            ("p3(2)", {"switch_at": 3}),
            ("p3(2)", {"plateau_window": 3}),
            ("shared", {}),
            ("mm+mc2-common+shared", {"switch_at": [1, 3]}),
        ],
    )
    def test_continues_identically(self, method, settings):
        """Two iterations, saved; the third and fourth of the saved one and of a restored other one are the same."""
        env = TurningEnv()
        first = construct(method, env, **settings)
        first.estimators.plateau.tolerance = math.inf  # the plateau comes as soon as the window is full
        for _ in range(2):
            rollout(first, env)
            first.update()
        first.skipped_steps = 3
        first.set_learning_rate(0.9 * first.learning_rate)
        file = io.BytesIO()
        torch.save(first.save(), file)
        file.seek(0)
        torch.manual_seed(99)
        second = construct(method, TurningEnv(seed=5), **settings)
        second.estimators.plateau.tolerance = math.inf
        rollout(second, TurningEnv(seed=5))  # a storage that has been used
        second.storage.clear()
        assert not same(weights(second), weights(first))
        assert second.load(torch.load(file, weights_only=True), None, True)

        assert same(weights(second), weights(first))
        assert same(statistics(second), statistics(first))
        assert (second.iteration, second.skipped_steps) == (2, 3)
        assert second.learning_rate == first.learning_rate == second.optimizer.param_groups[0]["lr"]
        for seed in (7, 8):
            results = []
            for algorithm in (first, second):
                env = TurningEnv(seed=seed)
                torch.manual_seed(seed)
                rollout(algorithm, env)
                results.append(algorithm.update())
            assert results[0] == results[1]
            assert same(weights(second), weights(first))
            assert same(adam_state(second), adam_state(first))
            assert second.actor.estimator == first.actor.estimator
        assert second.iteration == 4
        assert first.actor.estimator == parse_method(method).phases[-1]

    def test_weights_alone(self):
        first, _ = trained()
        second = construct()
        assert not second.load(first.save(), {"actor": True, "critic": True}, True)
        assert same(weights(second), weights(first))
        assert second.iteration == 0
        foreign = {name: value for name, value in first.save().items() if name != "p3_state"}
        third = construct()
        third.load(foreign, None, True)
        assert same(weights(third), weights(first))
        assert third.iteration == 0


class TestNotFinite:
    @pytest.mark.parametrize("method", ["mm", "mc(2)"])
    def test_loss(self, method, capsys):
        algorithm, env = trained(method)
        before, moments = weights(algorithm), adam_state(algorithm)
        algorithm.storage.advantages = torch.full_like(algorithm.storage.advantages, math.nan)
        losses = algorithm.update()
        assert same(weights(algorithm), before)
        assert same(adam_state(algorithm), moments)
        assert losses["skipped_steps"] == algorithm.skipped_steps == 4
        assert capsys.readouterr().out == "update 2: advantages has NaN; step left out\n"
        rollout(algorithm, env)
        assert algorithm.update()["skipped_steps"] == 0
        assert algorithm.skipped_steps == 4
        after = weights(algorithm)
        assert not same(after, before)
        assert all(value.isfinite().all() for value in after.values())

    def test_one_row(self):
        """One minibatch of two has it, in each epoch; the others train."""
        algorithm, _ = trained()
        before = weights(algorithm)
        poisoned = algorithm.storage.advantages.clone()
        poisoned[3, 4] = math.inf
        algorithm.storage.advantages = poisoned
        assert algorithm.update()["skipped_steps"] == 2
        after = weights(algorithm)
        assert not same(after, before)
        assert all(value.isfinite().all() for value in after.values())

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    @pytest.mark.parametrize("name", ["actor.decoder.proprio.2.weight", "actor.log_std", "critic.mlp.2.weight"])
    def test_gradient(self, name, bad, capsys):
        algorithm, env = trained()
        before, moments = weights(algorithm), adam_state(algorithm)
        network, _, path = name.partition(".")
        parameter = getattr(algorithm, network).get_parameter(path)
        hook = parameter.register_hook(lambda gradient: torch.full_like(gradient, bad))
        losses = algorithm.update()
        assert same(weights(algorithm), before)
        assert same(adam_state(algorithm), moments)
        assert losses["skipped_steps"] == 4
        hook.remove()
        rollout(algorithm, env)
        assert algorithm.update()["skipped_steps"] == 0
        assert not same(weights(algorithm), before)
        assert capsys.readouterr().out.count("step left out") == 1

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    @pytest.mark.parametrize("name", ["actor.decoder.proprio.2.weight", "actor.log_std", "critic.mlp.2.weight"])
    def test_the_gradient_is_named(self, name, bad, capsys):
        algorithm, _ = trained()
        network, _, path = name.partition(".")
        parameter = getattr(algorithm, network).get_parameter(path)
        parameter.register_hook(lambda gradient: torch.full_like(gradient, bad))
        algorithm.update()
        kind = "NaN" if math.isnan(bad) else "an infinity"
        assert capsys.readouterr().out == f"update 2: the gradient of {name} has {kind}; step left out\n"

    def test_one_step(self):
        algorithm, _ = trained()
        before, calls = weights(algorithm), []

        def hook(gradient: Tensor) -> Tensor:
            calls.append(None)
            return torch.full_like(gradient, math.nan) if len(calls) == 2 else gradient

        algorithm.actor.encoder.scan_head.weight.register_hook(hook)
        losses = algorithm.update()
        assert len(calls) == 4
        assert losses["skipped_steps"] == 1
        after = weights(algorithm)
        assert not same(after, before)
        assert all(value.isfinite().all() for value in after.values())


class TestLearningRate:
    @pytest.mark.parametrize(
        ("kl", "rate"),
        [(0.03, 1e-3 / 1.5), (0.015, 1e-3), (0.004, 1.5e-3), (0.0, 1e-3), (-0.1, 1e-3), (math.nan, 1e-3)],
    )
    def test_follows_the_kl(self, kl, rate):
        algorithm = construct(desired_kl=0.01)
        algorithm._adapt_learning_rate(torch.tensor(kl))
        assert algorithm.learning_rate == algorithm.optimizer.param_groups[0]["lr"] == pytest.approx(rate)

    @pytest.mark.parametrize(("start", "kl", "end"), [(1.2e-5, 1.0, 1e-5), (9e-3, 1e-6, 1e-2)])
    def test_bounds(self, start, kl, end):
        algorithm = construct(learning_rate=start)
        for _ in range(3):
            algorithm._adapt_learning_rate(torch.tensor(kl))
        assert algorithm.learning_rate == end

    def test_fixed(self):
        algorithm, _ = trained(schedule="fixed")
        algorithm.update()
        assert algorithm.learning_rate == 1e-3


class TestConstruction:
    def test_unsupported(self):
        with pytest.raises(ValueError, match="rnd_cfg: not supported by P3PPO, expected None"):
            construct(rnd_cfg={"weight": 1.0})

    def test_no_velocity(self):
        env, given = TurningEnv(), config()
        given["actor"]["velocity_group"] = "speed"
        with pytest.raises(ValueError, match=r"observations: expected the group 'speed' with the true velocity"):
            P3PPO.construct_algorithm(env.get_observations(), env, given, "cpu")

    def test_no_observation_set(self):
        env, given = TurningEnv(), config()
        given["obs_groups"]["critic"] = ["proprio", "secret"]
        with pytest.raises(ValueError, match=r"obs_groups\['critic'\]: the environment has no group \['secret'\]"):
            P3PPO.construct_algorithm(env.get_observations(), env, given, "cpu")
        del given["obs_groups"]["critic"]
        with pytest.raises(ValueError, match=r"obs_groups: expected the observation set 'critic', got \['actor'\]"):
            P3PPO.construct_algorithm(env.get_observations(), env, given, "cpu")

    def test_the_callers_config_stays(self):
        env, given = TurningEnv(), config("p3(2)", switch_at=1)
        before = copy.deepcopy(given)
        P3PPO.construct_algorithm(env.get_observations(), env, given, "cpu")
        assert given == before

    @pytest.mark.parametrize(
        ("method", "estimator"), [("mm", MomentMatching()), ("vae", MonteCarlo(1)), ("p3", MomentMatching())]
    )
    def test_first_estimator(self, method, estimator):
        assert construct(method).actor.estimator == estimator

    def test_one_optimiser_for_everything(self):
        algorithm = construct()
        (group,) = algorithm.optimizer.param_groups
        everything = [*algorithm.actor.parameters(), *algorithm.critic.parameters()]
        assert {id(p) for p in group["params"]} == {id(p) for p in everything}
        assert len(group["params"]) == len(everything)
        assert group["lr"] == 1e-3

    def test_advantages_normalised_per_minibatch(self):
        """rsl_rl's option: the stored advantages are then raw, each minibatch normalises its own."""
        algorithm, _ = trained(normalize_advantage_per_mini_batch=True, schedule="fixed", learning_rate=0.0)
        algorithm.storage.advantages = 100.0 + algorithm.storage.advantages
        assert abs(algorithm.update()["surrogate"]) < 1e-3


class TestRunner:
    """Inside rsl_rl's own runner, found by name."""

    @pytest.mark.parametrize("with_final", [True, False])
    @pytest.mark.parametrize(
        ("method", "settings"), [("mm", {}), ("vae", {}), ("p3(2)", {"switch_at": 1}), ("shared", {})]
    )
    def test_learns(self, method, settings, with_final, tmp_path):
        given = config(method, **settings)
        runner = OnPolicyRunner(TurningEnv(with_final=with_final), given, log_dir=None)
        assert type(runner.alg) is P3PPO
        before = weights(runner.alg)
        runner.learn(2, init_at_random_ep_len=True)
        after = weights(runner.alg)
        assert runner.alg.iteration == 2
        assert runner.alg.skipped_steps == 0
        for name, value in after.items():
            assert value.isfinite().all(), name
            assert not torch.equal(value, before[name]), name
        expected = {"mm": MomentMatching(), "vae": MonteCarlo(1), "shared": SharedNoise()}
        assert runner.alg.actor.estimator == expected.get(method, MonteCarlo(2))

        path = str(tmp_path / "model.pt")
        runner.save(path)
        other = OnPolicyRunner(TurningEnv(), config(method, **settings), log_dir=None)
        other.load(path)
        assert same(weights(other.alg), after)
        assert other.alg.iteration == 2
        obs = observations(5)
        policy = other.get_inference_policy()
        assert torch.equal(policy(obs), policy(obs))
        assert torch.equal(policy(obs), runner.alg.actor.act_at_mean(obs))

    def test_export(self, tmp_path):
        runner = OnPolicyRunner(TurningEnv(), config(), log_dir=None)
        runner.learn(1)
        runner.export_policy_to_jit(str(tmp_path))
        obs = observations(5)
        got = torch.jit.load(tmp_path / "policy.pt")(obs["proprio"], obs["history"], obs["extero"])
        torch.testing.assert_close(got, runner.alg.actor.act_at_mean(obs), rtol=1e-5, atol=1e-6)
