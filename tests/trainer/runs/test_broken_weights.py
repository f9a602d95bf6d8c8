"""Weights that are not finite are never saved, never judged and never continued."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch
from helpers.trainer.small_runs import small

from trainer import cli
from trainer.runs.checkpoint import latest_checkpoint, load_checkpoint, write_torch_file
from trainer.runs.policy_file import pretrained, read_policy
from trainer.training.recovery import Diverged


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    runner = small(tmp_path_factory.mktemp("run"), "mm", iterations=1)
    runner.learn(quiet=True)
    return runner.run_dir


def test_never_saved(tmp_path):
    runner = small(tmp_path, "mm", iterations=1)
    with torch.no_grad():
        runner.algorithm.actor.log_std[0] = float("nan")
    with pytest.raises(Diverged, match=r"iteration 0: actor.log_std has NaN; it is not saved"):
        runner.save()
    assert latest_checkpoint(tmp_path) is None


def spoilt(run, folder, network="actor", name="log_std", value=float("nan")):
    """A copy of the run whose newest checkpoint has a tensor that is not finite, and its file."""
    shutil.copytree(run, folder)
    path = latest_checkpoint(folder)
    content = load_checkpoint(path)
    content["algorithm"][f"{network}_state_dict"][name].view(-1)[0] = value
    newest = folder / "model_7.pt"
    write_torch_file(newest, content)
    return newest


@pytest.mark.parametrize("command", ["eval", "export", "diagnose", "play"])
def test_every_command_refuses(run, command, tmp_path, capsys):
    path = spoilt(run, tmp_path / "run")
    assert cli.main([command, str(path), *(["--viewer", "none"] if command == "play" else [])]) == 2
    assert f"{path}: actor.log_std has NaN: of a training that broke, of no use" in capsys.readouterr().err


def test_infinite_critic(run, tmp_path):
    path = spoilt(run, tmp_path / "run", "critic", "mlp.0.weight", float("inf"))
    with pytest.raises(ValueError, match=r"model_7.pt: critic.mlp.0.weight has an infinity"):
        load_checkpoint(path)


def test_a_resume_passes_it_over(run, tmp_path, capsys):
    spoilt(run, tmp_path / "run")
    runner = small(tmp_path / "run", "mm", iterations=2)
    assert runner.restore().name == "model_1.pt"
    assert "passed over" in capsys.readouterr().err


def test_policy_file(tmp_path):
    source = next(iter(pretrained().values()))
    content, _ = read_policy(source)
    content["algorithm"]["actor_state_dict"]["log_std"][0] = float("nan")
    write_torch_file(tmp_path / "policy.pt", content)
    with pytest.raises(ValueError, match=r"actor.log_std has NaN"):
        read_policy(tmp_path / "policy.pt")
    assert dataclasses.is_dataclass(read_policy(source)[1])
