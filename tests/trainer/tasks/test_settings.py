"""Settings of a task: from the command line and from files, checked by type, saved with the run and honoured after."""

from __future__ import annotations

import dataclasses
import json
import re
import sys

import pytest
from helpers.trainer.small_runs import FEW_UPDATES, small

from trainer import cli
from trainer.algorithms.presets import filled, resolve, task_of
from trainer.config import TrainConfig
from trainer.runs.checkpoint import load_checkpoint
from trainer.runs.config_file import load_config, save_config
from trainer.runs.named_checkpoint import read_run_checkpoint
from trainer.runs.policy import load_candidate
from trainer.tasks import TASKS
from trainer.tasks.settings import BOUNDS, FIXED, assigned, changed, differences, from_file, plain, restored

WALKER = TASKS["walker-parkour"]


@pytest.mark.parametrize("name", list(TASKS))
def test_what_is_saved_is_plain_and_comes_back(name):
    config = TASKS[name]
    saved = json.loads(json.dumps(plain(config)))
    assert saved.keys() == {field.name for field in dataclasses.fields(config)} - set(FIXED)
    assert restored(config, saved) == config
    assert list(restored(config, saved).rewards) == list(config.rewards)  # sums are in this order
    assert differences(config, restored(config, saved)) == []


def test_assignments_are_of_the_setting_s_type():
    config = assigned(
        WALKER,
        [
            "rewards.progress=2",
            "rewards.energy=none",
            "command_x=0.3, 0.9",
            "command_seconds=[1, 2]",
            "terrains=stairs,gaps",
            "keep_heading=True",
            "history=3",
            "noise.scan=0",
            "dynamics.friction=0.5,0.6",
            "posture.left_(hip|knee)=0.5",
        ],
    )
    assert config.rewards["progress"] == 2.0
    assert "energy" not in config.rewards
    assert config.rewards["alive"] == WALKER.rewards["alive"]
    assert config.command_x == (0.3, 0.9)
    assert config.command_seconds == (1.0, 2.0)
    assert config.terrains == ("stairs", "gaps")
    assert config.keep_heading is True
    assert config.history == 3
    assert config.noise == dataclasses.replace(WALKER.noise, scan=0.0)
    assert config.dynamics == dataclasses.replace(WALKER.dynamics, friction=(0.5, 0.6))
    assert config.posture == {"left_(hip|knee)": 0.5}
    assert assigned(WALKER, ["terrains="]).terrains == ()
    assert restored(WALKER, json.loads(json.dumps(plain(config)))) == config


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("rewards.progres=1", "rewards: no 'progres' (did you mean 'progress'?)"),
        ("reward.progress=1", "reward.progress: no such setting (did you mean 'rewards'?)"),
        ("rewards.progress=nan", "rewards.progress: expected a finite number, got 'nan'"),
        ("rewards=1", "rewards: expected a table"),
        ("command_x=1", "command_x: expected 2 values, got 1"),
        ("command_x=1,0", "command_x: expected a range, the smaller end first, got 1,0"),
        ("command_x=a,b", "command_x: expected a finite number, got 'a'"),
        ("terrains=stair", "terrains: no 'stair' (did you mean 'stairs'?)"),
        ("proprio=gravity,comand", "proprio: no 'comand' (did you mean 'command'?)"),
        ("max_tilt=2", "max_tilt: expected 0 to 1, got 2"),
        ("noise.scan=-1", "noise.scan: expected at least 0, got -1"),
        ("noise.scn=1", "noise.scn: no such setting (did you mean 'scan'?)"),
        ("history=2.5", "history: expected a whole number, got '2.5'"),
        ("keep_heading=1", "keep_heading: expected true or false, got '1'"),
        ("dynamics=3", "dynamics: expected one of its settings, such as dynamics.friction"),
        ("robot=g1", "robot: no such setting"),
        ("history", "expected SETTING=VALUE"),
    ],
)
def test_wrong_assignments_are_named(assignment, message):
    with pytest.raises(ValueError, match="--set") as error:
        assigned(WALKER, [assignment])
    assert str(error.value).startswith(f"--set {assignment}: ")
    assert message in str(error.value)


def test_bounds_are_of_settings_that_there_are():
    for path in BOUNDS:
        config = WALKER
        for name in path.split("."):
            config = getattr(config, name)


def test_settings_from_files(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"rewards": {"progress": 2, "energy": None}, "noise": {"scan": 0.05}, "history": 3}))
    config = from_file(WALKER, path)
    assert (config.rewards["progress"], config.noise.scan, config.history) == (2.0, 0.05, 3)
    assert "energy" not in config.rewards
    assert "alive" in config.rewards
    path.write_text(json.dumps({"noise": {"scan": "much"}}))
    with pytest.raises(ValueError, match=r"mine.json: noise.scan: expected a finite number, got 'much'"):
        from_file(WALKER, path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="expected a table of settings, got list"):
        from_file(WALKER, path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"--settings .*mine.json: Expecting"):
        from_file(WALKER, path)
    with pytest.raises(FileNotFoundError, match="--settings: no file"):
        from_file(WALKER, tmp_path / "other.json")
    with pytest.raises(ValueError, match="string"):  # true is no number, and 1.0 no whole one
        changed(WALKER, {"history": "string"})
    with pytest.raises(ValueError, match="history: expected a whole number"):
        changed(WALKER, {"history": True})


def test_settings_from_toml(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('history = 3\nterrains = ["stairs"]\n[rewards]\nprogress = 2\n[dynamics]\nfriction = [0.5, 0.6]\n')
    if sys.version_info < (3, 11):
        with pytest.raises(ValueError, match=r"needs Python 3\.11"):
            from_file(WALKER, path)
        return
    config = from_file(WALKER, path)
    assert (config.history, config.terrains, config.dynamics.friction) == (3, ("stairs",), (0.5, 0.6))


def test_a_file_comes_before_the_command_line(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"history": 3, "max_tilt": 0.9}))
    config = resolve(TrainConfig(task="walker-parkour", settings=path, set=("history=4",)))
    assert (config.task_settings["history"], config.task_settings["max_tilt"]) == (4, 0.9)
    assert (config.set, config.settings) == ((), None)
    path.unlink()  # what is resolved needs it no more
    assert resolve(config) == config
    assert task_of(config) == dataclasses.replace(WALKER, history=4, max_tilt=0.9)
    save_config(config, tmp_path / "config.json")
    assert filled(load_config(tmp_path / "config.json")) == config


def test_settings_of_a_version_that_had_more_are_named():
    config = resolve(TrainConfig(task="walker-parkour"))
    config.task_settings["gravity"] = 9.81
    with pytest.raises(ValueError, match=r"written by another version\? gravity: no such setting"):
        task_of(config)
    del config.task_settings["gravity"], config.task_settings["history"]
    assert task_of(config) == WALKER  # what it did not know has its default


SMALL = [
    *("--task", "walker-parkour", "--num-envs", "6", "--ppo.num-steps-per-env", "6", "--num-threads", "1"),
    *(*FEW_UPDATES, "--model.hidden-dims", "16", "16", "--no-tensorboard", "--method", "mm", "--iterations", "1"),
]
CHANGES = ["--set", "rewards.progress=2.5", "history=3", "terrains=gaps", "noise.scan=0", "command_x=0.5,0.6"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("settings") / "run"
    assert cli.main(["train", *SMALL, *CHANGES, "--run-dir", str(run_dir)]) == 0
    return run_dir


def _expected():
    return assigned(WALKER, CHANGES[1:])


def test_a_run_is_trained_with_them_and_keeps_them(run, capsys):
    for settings in (
        load_config(run / "config.json").task_settings,
        load_checkpoint(run / "model_1.pt")["task_settings"],
    ):
        assert restored(WALKER, settings) == _expected()
    assert cli.main(["train", "--run-dir", str(run), "--resume", "--iterations", "2"]) == 0
    assert "set: rewards.progress 1.0 -> 2.5" in capsys.readouterr().out
    content = load_checkpoint(run / "model_2.pt")
    assert restored(WALKER, content["task_settings"]) == _expected()
    assert content["environment"]["episode"]["history"].shape[1] == 3
    assert content["contract"]["history"]["length"] == 3
    assert ((content["environment"]["episode"]["command"][:, 0] - 0.55).abs() <= 0.05 + 1e-6).all()
    assert (content["environment"]["curriculum"]["terrain_type"] == 0).all()


def test_a_resumed_run_keeps_its_own(run, capsys):
    assert cli.main(["train", "--run-dir", str(run), "--resume", "--set", "history=2"]) == 2
    assert "--set: a resumed run keeps its own; not together with --resume" in capsys.readouterr().err


def test_what_looks_at_a_run_honours_them(run, tmp_path, capsys):
    assert load_candidate(run).task == _expected()
    assert load_candidate(run).actor.frames == 3
    assert read_run_checkpoint(run).task == _expected()
    short = ["--episodes", "2", "--seconds", "0.1", "--strengths", "1", "--num-threads", "1", "--terrains", "gaps"]
    assert cli.main(["eval", str(run), *short]) == 0
    other = small(tmp_path / "other", "mm", 1)
    other.learn(quiet=True)
    save_config(other.config, tmp_path / "other" / "config.json")
    capsys.readouterr()
    assert cli.main(["eval", str(run), str(tmp_path / "other"), *short]) == 2
    error = capsys.readouterr().err
    assert re.search(r"has other settings than run/model_\d \(rewards.progress 2.5 -> 1.0\)", error)
    assert "with --task walker-parkour" in error
    assert cli.main(["diagnose", str(run), "--quick", "--num-envs", "4", "--num-threads", "1"]) == 0


def test_errors_are_one_line(tmp_path, capsys):
    assert cli.main(["train", *SMALL, "--run-dir", str(tmp_path / "x"), "--set", "rewards.progres=2"]) == 2
    error = capsys.readouterr().err
    assert "--set rewards.progres=2: rewards: no 'progres' (did you mean 'progress'?)" in error
    assert "Traceback" not in error
    assert not (tmp_path / "x").exists()
