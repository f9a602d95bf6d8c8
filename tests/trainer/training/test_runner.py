"""A run from the command line: trains, saves, continues exactly, reports, and says what is wrong."""

from __future__ import annotations

import json
import math
import os
import pathlib
import signal
import sys

import pytest
from helpers.trainer.small_runs import FEW_UPDATES, small

from trainer import cli
from trainer.algorithms.presets import filled, resolve
from trainer.algorithms.rsl_rl_config import rsl_rl_config
from trainer.config import TrainConfig
from trainer.engines.mujoco.env import MujocoEnv
from trainer.evaluation.episodes import terrain_difficulty
from trainer.runs.checkpoint import latest_checkpoint
from trainer.runs.config_file import load_config, save_config
from trainer.runs.directory import locked
from trainer.runs.metrics import read_metrics
from trainer.tasks import make_task

SMALL = [
    *("--task", "walker-parkour", "--num-envs", "8", "--ppo.num-steps-per-env", "8", "--num-threads", "1"),
    *(*FEW_UPDATES, "--model.hidden-dims", "16", "16", "--no-tensorboard"),
]


def train(run_dir, *arguments):
    return cli.main(["train", *SMALL, "--run-dir", str(run_dir), *arguments])


def test_training_from_the_command_line(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(run, "--iterations", "3", "--method", "p3", "--switch-at", "2", "--save-interval", "2") == 0
    output = capsys.readouterr()
    assert f"report: {run / 'report.html'}" in output.out
    assert "iteration 3/3" in output.err
    assert "iteration 2: from mm to mc15" in output.err
    assert sorted(path.name for path in run.iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "model_2.pt",
        "model_3.pt",
        "report.html",
    ]
    rows = read_metrics(run)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert [row["estimator"] for row in rows] == ["mm", "mm", "mc15"]
    for name in ("loss/kl", "loss/surrogate", "loss/proprio", "curriculum/difficulty", "speed/steps_per_second"):
        assert all(math.isfinite(row[name]) for row in rows), name
    assert json.loads((run / "config.json").read_text())["ppo"]["mirror_share"] == 0.5
    assert train(run, "--resume", "--switch-at", "2") == 0  # of the run's method, which has two phases


def test_resume_from_the_command_line_counts_iterations_from_the_beginning(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(run, "--iterations", "2") == 0
    assert cli.main(["train", "--run-dir", str(run), "--resume", "--iterations", "4"]) == 0
    assert "continuing from" in capsys.readouterr().out
    assert latest_checkpoint(run).name == "model_4.pt"
    assert [row["iteration"] for row in read_metrics(run)] == [1, 2, 3, 4]
    assert cli.main(["train", "--run-dir", str(run), "--resume"]) == 0  # nothing left to do
    assert latest_checkpoint(run).name == "model_4.pt"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves_a_report(tmp_path, capsys, monkeypatch, number):
    run, original = tmp_path / "run", MujocoEnv.step

    def step(self, actions):
        if algorithm_steps(self) == 20:  # in the middle of the third rollout of eight steps
            signal.raise_signal(number)
        return original(self, actions)

    def algorithm_steps(env):
        env.taken = getattr(env, "taken", 0) + 1
        return env.taken

    before = signal.getsignal(number)
    monkeypatch.setattr(MujocoEnv, "step", step)
    assert train(run, "--iterations", "5") == 128 + number
    assert latest_checkpoint(run).name == "model_3.pt"  # the iteration was finished
    assert signal.getsignal(number) is before
    assert (run / "report.html").exists()
    assert "--resume" in capsys.readouterr().out
    assert [row["iteration"] for row in read_metrics(run)] == [1, 2, 3]


def test_resume_before_the_first_checkpoint_begins_anew(tmp_path, capsys, monkeypatch):
    """As after a kill in the first minutes: a script that always says --resume goes on."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(MujocoEnv, "step", lambda *_: signal.raise_signal(signal.SIGINT))
        patch.setattr(
            "trainer.training.interrupt.Interrupt._handle", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt())
        )
        assert train(run, "--iterations", "2") == 130
    assert latest_checkpoint(run) is None
    assert cli.main(["train", "--run-dir", str(run), "--resume"]) == 0
    assert f"no checkpoint yet in {run}: beginning anew" in capsys.readouterr().out
    assert latest_checkpoint(run).name == "model_2.pt"


def test_one_process_trains_in_a_directory(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(run, "--iterations", "1") == 0
    with locked(run):
        assert cli.main(["train", "--run-dir", str(run), "--resume"]) == 2
    assert f"--run-dir: {run} is in use by process {os.getpid()}" in capsys.readouterr().err


def test_weights_and_biases_that_cannot_start_are_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train(tmp_path / "run", "--iterations", "1", "--wandb-project", "p") == 2
    assert "--wandb-project: wandb cannot be imported" in capsys.readouterr().err


def test_settings_of_another_version_are_named(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(run, "--iterations", "1") == 0
    saved = json.loads((run / "config.json").read_text())
    saved["ppo"]["beta"] = 0.1
    (run / "config.json").write_text(json.dumps(saved))
    assert cli.main(["train", "--run-dir", str(run), "--resume"]) == 2
    assert "written by another version; this one has no setting beta" in capsys.readouterr().err
    (run / "config.json").write_text("{")
    assert cli.main(["eval", str(run)]) == 2
    assert "config.json: expected the settings of a run as JSON" in capsys.readouterr().err


def test_a_second_ctrl_c_leaves_at_once(tmp_path, monkeypatch):
    def step(self, actions):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("trainer.training.interrupt._SAME_REQUEST", 0.0)
    monkeypatch.setattr(MujocoEnv, "step", step)
    runner = small(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        runner.learn(quiet=True)
    assert latest_checkpoint(tmp_path / "run") is None


def test_time_limit_stops_with_everything_saved(tmp_path):
    run = tmp_path / "run"
    assert train(run, "--iterations", "500", "--max-minutes", "0.0001") == 0
    assert latest_checkpoint(run).name == "model_1.pt"


def test_a_run_is_not_overwritten(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(run, "--iterations", "1") == 0
    assert train(run, "--iterations", "1") == 2
    assert "holds a run; add --resume to continue it" in capsys.readouterr().err


def test_report_of_a_run(tmp_path):
    run = tmp_path / "run"
    assert train(run, "--iterations", "1") == 0
    (run / "report.html").unlink()
    assert cli.main(["report", str(run)]) == 0
    assert (run / "report.html").exists()


def test_difficulties_are_for_tasks_with_terrains():
    assert terrain_difficulty(make_task("walker-parkour"), None) == 0
    assert terrain_difficulty(make_task("walker-parkour"), 0.3) == 0.3
    assert terrain_difficulty(make_task("g1-flat"), None) is None
    with pytest.raises(ValueError, match="--difficulty: g1-flat has no terrains"):
        terrain_difficulty(make_task("g1-flat"), 0)
    with pytest.raises(ValueError, match=r"--difficulty: expected numbers in \[0, 1\], got 3"):
        terrain_difficulty(make_task("walker-parkour"), 3)


def test_config_round_trip_and_presets(tmp_path):
    config = resolve(TrainConfig(task="g1-parkour", preset="paper"))
    assert (config.num_envs, config.iterations, config.switch_at) == (4096, 8000, (7000,))
    assert (config.ppo.entropy_coef, config.model.hidden_dims) == (0.01, (512, 256, 128))
    save_config(config, tmp_path / "config.json")
    assert filled(load_config(tmp_path / "config.json")) == config
    cpu = resolve(TrainConfig())
    assert cpu.num_envs == 256
    assert (config.method, cpu.method) == ("p3", "quiet")
    assert (cpu.run_dir, cpu.model.latent_noise_coef) == (pathlib.Path("runs/g1-flat-quiet-1"), 0.005)
    assert rsl_rl_config(cpu)["algorithm"]["class_name"] == "trainer.algorithms:P3PPO"
    unresolved = TrainConfig()
    resolve(unresolved)
    assert unresolved == TrainConfig()  # the caller's is left alone
    assert resolve(TrainConfig(method="p3")).switch_at == (1020,)
    assert resolve(TrainConfig(method="p3", switch_on_plateau=True)).switch_at is None
    assert resolve(TrainConfig(method="mm")).switch_at is None
    assert resolve(TrainConfig(method="mm+cm+mc5", iterations=100)).switch_at == (42, 85)


def test_settings_of_one_change_alone(tmp_path):
    """An earlier version had one iteration, and none of the newer settings."""
    path = tmp_path / "config.json"
    save_config(resolve(TrainConfig(method="p3", switch_at=(7,))), path)
    values = json.loads(path.read_text())
    values["switch_at"] = 7
    del values["ppo"]["dual_clip"], values["ppo"]["entropy"], values["model"]["latent_noise_coef"]
    path.write_text(json.dumps(values))
    assert load_config(path).switch_at == (7,)


def test_settings_from_before_there_were_engines_mean_native_mujoco(tmp_path):
    path = tmp_path / "config.json"
    save_config(resolve(TrainConfig()), path)
    values = json.loads(path.read_text())
    del values["engine"], values["device"]
    path.write_text(json.dumps(values))
    config = load_config(path)
    assert (config.engine, config.device) == ("mujoco", "cpu")
