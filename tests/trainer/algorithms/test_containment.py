"""Broken on purpose: NaN in every place it can come from, and a disk that is full."""

from __future__ import annotations

import dataclasses
import math
import resource

import pytest
import torch
from helpers.trainer.small_runs import FEW_UPDATES, SMALL_PPO, assert_same, small

from trainer import cli
from trainer.algorithms import losses, p3_ppo
from trainer.engines.mujoco.env import MujocoEnv
from trainer.runs.checkpoint import latest_checkpoint, load_checkpoint
from trainer.runs.directory import DIVERGED
from trainer.runs.metrics import read_metrics
from trainer.tasks import make_task
from trainer.tasks.locomotion import LocomotionTask
from trainer.training.recovery import Diverged

WALKER = ("--task", "walker-parkour", "--num-envs", "6", "--num-threads", "1", "--no-tensorboard")
SMALL = (*WALKER, *FEW_UPDATES, "--ppo.num-steps-per-env", "6", "--model.hidden-dims", "16", "16")

STEPS = SMALL_PPO.num_learning_epochs * SMALL_PPO.num_mini_batches
"""Optimiser steps of an update."""


def tensors(runner):
    """Every tensor that the training keeps, by its path."""
    networks = {"actor": runner.algorithm.actor, "critic": runner.algorithm.critic}
    found = {f"{net}.{name}": value for net, part in networks.items() for name, value in part.state_dict().items()}
    for index, state in enumerate(runner.algorithm.optimizer.state_dict()["state"].values()):
        found |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    found |= {f"observations.{name}": value for name, value in runner.env.get_observations().items()}
    found |= {f"episode.{name}": value for name, value in vars(runner.env.episode).items()}
    return found


def assert_all_finite(runner):
    for name, value in tensors(runner).items():
        assert torch.isfinite(value).all(), name


class TestEnvironment:
    def step(self, env):
        return env.step(torch.zeros(env.num_envs, env.num_actions))

    @pytest.fixture
    def pair(self):
        """Two environments that are the same, after a few steps."""
        envs = [MujocoEnv(make_task("walker-parkour"), 5, seed=3, num_threads=0) for _ in range(2)]
        for env in envs:
            for _ in range(4):
                self.step(env)
        return envs

    def assert_only(self, broken, whole, row, others, why):
        """`row` was reset, the others are as in the environment that nothing happened to."""
        observations, reward, done, extras = self.step(broken)
        expected, expected_reward, expected_done, _ = self.step(whole)
        assert extras["broken"].nonzero().flatten().tolist() == [row]
        assert why in extras["why_broken"]
        assert done[row]
        assert not extras["time_outs"][row]
        assert broken.episode.step[row] == 0
        assert reward[row] == 0
        for group in (observations, extras["final_observations"]):
            assert all(torch.isfinite(value).all() for value in group.values())
        assert torch.equal(reward[others], expected_reward[others])
        assert torch.equal(done[others], expected_done[others])
        assert torch.equal(broken.state.joint_pos[others], whole.state.joint_pos[others])
        assert torch.equal(observations["critic"][others], expected["critic"][others])
        for _ in range(10):
            observations, reward, *_ = self.step(broken)
            assert torch.isfinite(reward).all()
            assert all(torch.isfinite(value).all() for value in observations.values())

    @pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
    @pytest.mark.parametrize("column", [2, 8, 14])  # a position, velocities
    def test_simulator_state(self, pair, bad, column):
        broken, whole = pair
        broken.engine._state[2, column] = bad
        self.assert_only(broken, whole, 2, [0, 1, 3, 4], "The simulation is unstable")

    def test_observation(self, pair, monkeypatch):
        broken, whole = pair
        original, armed = LocomotionTask.proprio, [True]

        def proprio(self, state, episode):
            found = original(self, state, episode).clone()
            if self is broken.task and len(found) == 5 and armed:
                armed.clear()
                found[3, 1] = math.nan
            return found

        monkeypatch.setattr(LocomotionTask, "proprio", proprio)
        self.assert_only(broken, whole, 3, [0, 1, 2, 4], "observation 'proprio' is not finite")

    def test_reward(self, pair, monkeypatch):
        broken, whole = pair
        original, armed = LocomotionTask.reward_rates, [True]

        def reward_rates(self, state, episode):
            found = original(self, state, episode)
            if self is broken.task and armed:
                armed.clear()
                found[2, 1] = math.inf
            return found

        monkeypatch.setattr(LocomotionTask, "reward_rates", reward_rates)
        self.assert_only(broken, whole, 1, [0, 2, 3, 4], "reward/alive is not finite")

    def test_the_simulator_writes_no_log_of_its_own(self, pair, tmp_path, monkeypatch, capfd):
        monkeypatch.chdir(tmp_path)
        pair[0].engine._state[:, 8] = math.nan  # the last position
        self.step(pair[0])
        assert not list(tmp_path.iterdir())
        assert capfd.readouterr().err == ""
        assert "QPOS" in pair[0].engine.first_warning()
        self.step(pair[0])
        assert pair[0].engine.first_warning() is None


class TestRun:
    def test_simulator_state(self, tmp_path, capsys):
        runner = small(tmp_path, "mm", 3)
        runner.step()
        runner.env.engine._state[1, 9] = math.nan
        scalars = runner.step()
        assert scalars["steps/broken"] == 1
        assert scalars["loss/skipped_steps"] == 0
        error = capsys.readouterr().err
        assert "iteration 2: 1 broken environments began anew: Nan, Inf or huge value in Q" in error
        assert_all_finite(runner)

    def test_observations_of_any_environment(self, tmp_path, capsys):
        """The algorithm's own guard, for environments that are not ours: taken as 0, counted and named."""
        runner = small(tmp_path, "vae", 3)
        runner.step()
        with torch.inference_mode():
            runner.env.get_observations()["extero"][2, 5] = math.nan
        scalars = runner.step()
        assert scalars["steps/replaced_rows"] == 1
        assert scalars["loss/skipped_steps"] == 0
        assert "update 2: observations.extero was not finite in 1 rows" in capsys.readouterr().out
        assert_all_finite(runner)

    @pytest.mark.parametrize("method", ["mm", "vae", "spr"])
    def test_loss(self, tmp_path, capsys, monkeypatch, method):
        """One of the update's steps has a loss that is NaN: it is left out, the others are not."""
        runner = small(tmp_path, method, 3)
        runner.step()
        original, calls = losses.clipped_surrogate, []

        def surrogate(*arguments):
            calls.append(None)
            loss = original(*arguments)
            return loss * math.nan if len(calls) == 3 else loss

        monkeypatch.setattr(losses, "clipped_surrogate", surrogate)
        steps = runner.algorithm.optimizer.state_dict()["state"][0]["step"].item()
        scalars = runner.step()
        assert len(calls) == STEPS
        assert scalars["loss/skipped_steps"] == 1
        assert runner.algorithm.optimizer.state_dict()["state"][0]["step"].item() == steps + STEPS - 1
        assert capsys.readouterr().out == "update 2: surrogate has NaN; step left out\n"
        assert math.isfinite(scalars["loss/surrogate"])
        assert_all_finite(runner)

    def test_gradient(self, tmp_path, capsys):
        runner = small(tmp_path, "mm", 3)
        runner.step()
        calls = []

        def hook(gradient):
            calls.append(None)
            return gradient * math.nan if len(calls) == 3 else gradient

        handle = runner.algorithm.actor.encoder.scan_head.weight.register_hook(hook)
        scalars = runner.step()
        handle.remove()
        assert scalars["loss/skipped_steps"] == 1
        message = "update 2: the gradient of actor.encoder.scan_head.weight has NaN; step left out\n"
        assert capsys.readouterr().out == message
        assert_all_finite(runner)

    @pytest.mark.parametrize("method", ["mm", "spr"])
    def test_parameter(self, tmp_path, capsys, method):
        """Found before a rollout: the run goes on as if nothing had been."""
        broken, whole = (small(tmp_path / name, method, 3) for name in ("broken", "whole"))
        for runner in (broken, whole):
            torch.manual_seed(5)  # which both of them use
            runner.step()
        with torch.no_grad():
            broken.algorithm.actor.mlp[2].weight[1, 2] = math.nan
        torch.manual_seed(6)
        whole.step()
        torch.manual_seed(6)
        scalars = broken.step()
        assert scalars["steps/restored_weights"] == 1
        assert scalars["steps/broken"] == scalars["loss/skipped_steps"] == 0
        message = (
            "update 2, before the rollout: actor.mlp.2.weight has NaN; back to the weights of the last good update"
        )
        assert capsys.readouterr().out == f"{message}\n"
        assert_same(tensors(broken), tensors(whole))

    def test_parameter_within_an_update(self, tmp_path, capsys):
        """An optimiser step that breaks a weight costs the steps of that update and nothing else."""
        runner = small(tmp_path, "mm", 3)
        runner.step()
        before = {name: value.clone() for name, value in runner.algorithm.actor.mlp.state_dict().items()}
        step, calls = runner.algorithm.optimizer.step, []

        def breaking():
            step()
            calls.append(None)
            if len(calls) == STEPS:
                with torch.no_grad():
                    runner.algorithm.actor.mlp[0].bias[0] = math.inf

        runner.algorithm.optimizer.step = breaking
        runner.step()
        runner.algorithm.optimizer.step = step
        assert "update 2, after it: actor.mlp.0.bias has an infinity" in capsys.readouterr().out
        after = runner.algorithm.actor.mlp.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        scalars = runner.step()
        assert scalars["loss/skipped_steps"] == 0
        assert scalars["steps/restored_weights"] == 1
        assert_all_finite(runner)

    def test_optimizer_state(self, tmp_path, capsys):
        runner = small(tmp_path, "mm", 3)
        runner.step()
        parameter = runner.algorithm.actor.log_std
        runner.algorithm.optimizer.state[parameter]["exp_avg_sq"][0] = math.nan
        scalars = runner.step()
        assert "the optimiser's exp_avg_sq of actor.log_std has NaN" in capsys.readouterr().out
        assert scalars["loss/skipped_steps"] == 0
        assert_all_finite(runner)


class TestRollback:
    def breaking(self, runner, iterations):
        """Makes every loss of these iterations NaN, until the run has been rolled back."""
        update = runner.algorithm.update

        def broken():
            if runner.iteration + 1 in iterations and runner.rollbacks == 0:
                runner.algorithm.storage.advantages = runner.algorithm.storage.advantages * math.nan
            return update()

        runner.algorithm.update = broken

    def test_after_repeated_trouble(self, tmp_path, capsys):
        runner = small(tmp_path, "mm", 9, save_interval=2)
        self.breaking(runner, (5, 6, 7))
        runner.learn(quiet=True)
        message = f"iteration 7: trouble in 3 iterations in a row: back to {tmp_path / 'model_4.pt'}"
        assert message in capsys.readouterr().err
        assert runner.rollbacks == 1
        rows = read_metrics(tmp_path)
        assert [row["iteration"] for row in rows] == list(range(1, 10))
        assert [row["steps/rollbacks"] for row in rows] == [0] * 4 + [1] * 5
        assert sum(row["loss/skipped_steps"] for row in rows) == 0  # those were rolled back with the rest
        assert load_checkpoint(tmp_path / "model_8.pt")["totals"]["rollbacks"] == 1

    def test_other_random_numbers_and_smaller_steps(self, tmp_path):
        """What led into the trouble is not simply done again."""
        runner = small(tmp_path, "mm", 4, save_interval=2)
        runner.learn(quiet=True)
        before = load_checkpoint(tmp_path / "model_4.pt")
        runner._open_log()
        runner._roll_back()
        runner._log.close()
        assert runner.iteration == 4
        assert runner.algorithm.learning_rate == 0.5 * before["algorithm"]["p3_state"]["learning_rate"]
        assert runner.algorithm.optimizer.param_groups[0]["lr"] == runner.algorithm.learning_rate
        assert not torch.equal(torch.get_rng_state(), before["torch_rng"])
        assert not torch.equal(runner.env.generator.get_state(), before["environment"]["generator"])
        assert_same(runner.algorithm.save()["actor_state_dict"], before["algorithm"]["actor_state_dict"])

    def test_two_in_a_row_are_no_reason(self, tmp_path):
        runner = small(tmp_path, "mm", 6, save_interval=1)
        self.breaking(runner, (3, 4))
        runner.learn(quiet=True)
        assert runner.rollbacks == 0
        assert runner.algorithm.skipped_steps == 2 * STEPS
        saved = sorted(path.name for path in tmp_path.glob("model_*.pt"))
        assert saved == ["model_1.pt", "model_2.pt", "model_5.pt", "model_6.pt"]  # none of an iteration in trouble

    def test_without_a_checkpoint_it_ends(self, tmp_path):
        runner = small(tmp_path, "mm", 9)
        self.breaking(runner, range(1, 10))
        with pytest.raises(Diverged, match="iteration 3: trouble in 3 iterations in a row, and no checkpoint"):
            runner.learn(quiet=True)
        assert_all_finite(runner)

    def test_a_run_that_cannot_be_helped_ends_with_a_message(self, tmp_path, capsys, monkeypatch):
        original = p3_ppo.P3PPO.update

        def update(self):
            if self.iteration >= 2:
                self.storage.advantages = self.storage.advantages * math.nan
            return original(self)

        monkeypatch.setattr(p3_ppo.P3PPO, "update", update)
        arguments = ["train", *SMALL, "--method", "mm", "--iterations", "50", "--save-interval", "1"]
        assert cli.main([*arguments, "--run-dir", str(tmp_path)]) == 1
        output = capsys.readouterr()
        assert f"3 times after going back to {tmp_path / 'model_2.pt'}" in output.err
        assert f"the last checkpoint is {tmp_path / 'model_2.pt'}" in output.out
        assert "Traceback" not in output.err
        assert load_checkpoint(tmp_path / "model_2.pt")["iter"] == 2
        assert "3 times after going back to" in (tmp_path / DIVERGED).read_text()  # a study counts it as diverged
        monkeypatch.undo()
        assert cli.main(["train", "--run-dir", str(tmp_path), "--resume", "--iterations", "3"]) == 0
        assert not (tmp_path / DIVERGED).exists()


class TestFullDisk:
    @pytest.fixture
    def limit(self):
        """Files larger than so many bytes cannot be written: a real error of the operating system."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def test_training_goes_on_and_saves_when_there_is_room(self, tmp_path, capsys, limit):
        runner = small(tmp_path, "mm", 2, save_interval=2)
        runner.learn(quiet=True)
        whole = (tmp_path / "model_2.pt").read_bytes()
        runner.config = dataclasses.replace(runner.config, iterations=6)
        step = runner.step

        def stepping():
            scalars = step()
            limit(len(whole) // 2 if runner.iteration in (4, 5) else resource.RLIM_INFINITY)
            return scalars

        runner.step = stepping
        runner.learn(quiet=True)
        error = capsys.readouterr().err
        assert f"iteration 4: no checkpoint written to {tmp_path}: File too large; going on" in error
        assert sorted(path.name for path in tmp_path.glob("model_*")) == ["model_2.pt", "model_6.pt"]
        assert (tmp_path / "model_2.pt").read_bytes() == whole
        assert load_checkpoint(tmp_path / "model_6.pt")["iter"] == 6
        assert not list(tmp_path.glob(".model*"))

    def test_at_the_end_it_is_an_error_that_says_what_is_left(self, tmp_path, capsys, limit, monkeypatch):
        arguments = ["train", *SMALL, "--method", "mm", "--save-interval", "1", "--run-dir", str(tmp_path)]
        assert cli.main([*arguments, "--iterations", "1"]) == 0
        original = MujocoEnv.step

        def step(self, actions):
            limit(20_000)
            return original(self, actions)

        monkeypatch.setattr(MujocoEnv, "step", step)
        assert cli.main(["train", "--run-dir", str(tmp_path), "--resume", "--iterations", "2"]) == 1
        limit(resource.RLIM_INFINITY)
        output = capsys.readouterr()
        assert f"iteration 2: no checkpoint written to {tmp_path}: File too large; the earlier ones are" in output.err
        assert f"the last checkpoint is {tmp_path / 'model_1.pt'}" in output.out
        assert "Traceback" not in output.err
        assert latest_checkpoint(tmp_path) == tmp_path / "model_1.pt"
        assert load_checkpoint(tmp_path / "model_1.pt")["iter"] == 1

    def test_a_directory_that_cannot_be_made(self, tmp_path, capsys):
        (tmp_path / "file").touch()
        assert cli.main(["train", *SMALL, "--run-dir", str(tmp_path / "file" / "run")]) == 2
        error = capsys.readouterr().err
        assert "--run-dir: cannot make" in error
        assert "Traceback" not in error
