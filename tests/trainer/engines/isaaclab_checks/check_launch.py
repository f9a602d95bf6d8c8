"""The launcher and the ways that lead to it: Hydra, our trainer, Isaac Lab's own wrapper with rsl_rl's runner."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_physx import make_env
from isaaclab.app import AppLauncher
from isaaclab_rl.rsl_rl import RslRlVecEnvWrapper
from isaaclab_tasks.utils.hydra import hydra_task_config
from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry
from rsl_rl.runners import OnPolicyRunner

from trainer.algorithms.presets import task_of
from trainer.engines.isaaclab import train as launcher
from trainer.engines.isaaclab.agent_cfg import flat_settings
from trainer.engines.isaaclab.env import IsaacLabEnv
from trainer.engines.mujoco.env import MujocoEnv
from trainer.runs.checkpoint import load_checkpoint
from trainer.runs.config_file import config_of
from trainer.runs.policy import acting_in, load_candidate
from trainer.tasks import make_task

SMALL = (
    *("agent.iterations=2", "agent.method=mm", "agent.model.hidden_dims=[16]", "agent.ppo.num_steps_per_env=4"),
    *("agent.ppo.num_learning_epochs=1", "agent.ppo.num_mini_batches=1", "agent.diagnose_interval=0"),
)


def _overridden(monkeypatch: pytest.MonkeyPatch, entry: str, *overrides: str) -> tuple[Any, Any]:
    found = []
    monkeypatch.setattr(sys, "argv", ["train", *overrides, *launcher._HYDRA])
    hydra_task_config("P3-Parkour-G1-v0", entry)(lambda env_cfg, agent: found.append((env_cfg, agent)))()
    return found[0]


def test_hydra_changes_environment_and_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    env_cfg, agent = _overridden(
        monkeypatch,
        "rsl_rl_cfg_entry_point",
        "env.scene.num_envs=12",
        "env.rewards.progress.weight=1.5",
        "env.events.added_mass.params.mass_distribution_params=[0.0,1.0]",
        "env.difficulty=0.2",
        "agent.algorithm.learning_rate=0.0005",
        "agent.actor.hidden_dims=[64,32]",
        "agent.max_iterations=7",
    )
    assert (env_cfg.scene.num_envs, env_cfg.rewards["progress"].weight, env_cfg.difficulty) == (12, 1.5, 0.2)
    assert list(env_cfg.events["added_mass"].params["mass_distribution_params"]) == [0.0, 1.0]
    assert (agent.algorithm["learning_rate"], agent.max_iterations) == (0.0005, 7)
    assert list(agent.actor["hidden_dims"]) == [64, 32]
    env_cfg.validate()
    assert list(tmp_path.iterdir()) == []  # Hydra keeps no records of its own


def test_hydra_takes_settings_of_the_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    given = 'agent.set=["rewards.progress=2.0","command_x=0.3,1.0"]'
    _, settings = _overridden(monkeypatch, "p3_cfg_entry_point", given, "agent.init_from=runs/flat")
    config = config_of(settings)
    assert config.set == ("rewards.progress=2.0", "command_x=0.3,1.0")
    assert config.init_from == "runs/flat"
    assert task_of(config).rewards["progress"] == 2.0


@pytest.mark.parametrize("wrong", ["env.rewards.progess.weight=1", "agent.ppo.gama=0.9", "env.scene.num_env=3"])
def test_hydra_refuses_what_there_is_not(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    with pytest.raises(SystemExit):
        _overridden(monkeypatch, "p3_cfg_entry_point", wrong)


def test_launcher_trains_resumes_and_its_policy_is_portable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From the command line to a checkpoint, with the app alone replaced; native MuJoCo then takes the policy."""
    started, closed = [], []

    class App:
        def __init__(self, options: Any) -> None:
            started.append(options)
            self.app = type("App", (), {"close": lambda self: closed.append(True)})()

        add_app_launcher_args = staticmethod(AppLauncher.add_app_launcher_args)

    monkeypatch.setattr("isaaclab.app.AppLauncher", App)
    monkeypatch.setattr(sys, "argv", sys.argv)
    run = tmp_path / "run"
    arguments = ["--task", "P3-Flat-G1-v0", "--headless", "--device", "cpu", "env.scene.num_envs=6", *SMALL]
    assert launcher.main([*arguments, f"agent.run_dir={run}"]) == 0
    assert started[0].headless
    assert closed == [True]
    content = load_checkpoint(run / "model_2.pt")
    assert content["contract"]["robot"] == "g1"
    assert set(content["environment"]["engine"]) == {"root", "joint_pos", "joint_vel", "tile_of", "dynamics"}
    assert launcher.main([*arguments, f"agent.run_dir={run}", "agent.resume=true", "agent.iterations=3"]) == 0
    assert load_checkpoint(run / "model_3.pt")["iter"] == 3
    assert len(closed) == 2
    native = MujocoEnv(make_task("g1-flat"), 2, num_threads=1)
    action = acting_in(load_candidate(run), native.task, "mean")(native.get_observations())
    assert action.shape == (2, 29)
    native.step(action)


def test_settings_of_the_task_reach_the_simulation(tmp_path: Path) -> None:
    """By the launcher's own way, from `agent.set` to managers, tiles and motors."""
    env_cfg = load_cfg_from_registry("P3-Flat-G1-v0", "env_cfg_entry_point")
    settings = flat_settings()
    env_cfg.scene.num_envs = 4
    changes = ("rewards.progress=2.5", "terrains=gaps", "num_levels=3", "episode_seconds=6")
    changes += ("dynamics.action_delay=0.01,0.01", "dynamics.added_mass=0.5,0.5")
    settings |= {
        "iterations": 1,
        "method": "mm",
        "run_dir": str(tmp_path),
        "set": list(changes),
        "diagnose_interval": 0,
    }
    settings["model"] |= {"hidden_dims": [16]}
    settings["ppo"] |= {"num_steps_per_env": 4, "num_learning_epochs": 1, "num_mini_batches": 1}
    assert launcher.train("P3-Flat-G1-v0", "cpu", env_cfg, settings) == 0
    assert env_cfg.rewards["progress"].weight == 2.5
    assert env_cfg.episode_length_s == 6.0
    assert env_cfg.scene.terrain.terrain_generator.num_rows == 3
    assert tuple(env_cfg.events["added_mass"].params["mass_distribution_params"]) == (0.5, 0.5)
    task = load_candidate(tmp_path).task
    assert task.terrains == ("gaps",)
    assert task.dynamics.action_delay == (0.01, 0.01)
    saved = load_checkpoint(tmp_path / "model_1.pt")
    assert torch.allclose(saved["environment"]["delay"]["delay"], torch.tensor(0.01))
    targets = saved["environment"]["delay"]["past"]
    assert targets.shape[:2] == (4, 2)


def test_state_of_an_environment_comes_back() -> None:
    env = IsaacLabEnv(make_env("P3-Parkour-G1-v0", 5, seed=1))
    with torch.inference_mode():
        for _ in range(3):
            extras = env.step(torch.randn(5, 29))[3]
    assert all(isinstance(value, float) for value in extras["log"].values())
    saved, observations = env.state_dict(), env.get_observations().clone()
    env.simulation.close()
    other = IsaacLabEnv(make_env("P3-Parkour-G1-v0", 5, seed=1))
    with torch.inference_mode():
        other.step(torch.randn(5, 29))
    other.load_state_dict(saved)
    again = other.state_dict()
    for name, value in saved["engine"].items():
        torch.testing.assert_close(again["engine"][name], value, msg=name)
    assert (other.episode_length_buf == env.episode_length_buf).all()
    for name, value in observations.items():
        torch.testing.assert_close(other.get_observations()[name], value)


def test_isaac_lab_s_own_wrapper_and_rsl_rl_s_runner_train(tmp_path: Path) -> None:
    agent = load_cfg_from_registry("P3-Flat-G1-v0", "rsl_rl_cfg_entry_point")
    agent.num_steps_per_env, agent.actor["hidden_dims"] = 4, [16]
    settings = {**agent.to_dict(), "multi_gpu": None}
    runner = OnPolicyRunner(RslRlVecEnvWrapper(make_env("P3-Flat-G1-v0", 6)), settings, str(tmp_path), "cpu")
    before = [parameter.clone() for parameter in runner.alg.actor.parameters()]
    runner.learn(1, init_at_random_ep_len=True)
    after = runner.alg.actor.parameters()
    assert any((new != old).any() for new, old in zip(after, before, strict=True))
