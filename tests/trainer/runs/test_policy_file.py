"""Policy files: small, usable wherever a checkpoint is, refused by name where they cannot be."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.trainer.small_runs import learned

from trainer import cli
from trainer.runs import policy_file
from trainer.runs.checkpoint import read_torch_file, write_torch_file
from trainer.runs.named_checkpoint import find_checkpoint, read_run_checkpoint
from trainer.runs.policy import load_candidate
from trainer.runs.policy_file import KEYS, pretrained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two iterations of the walker by P³, across the change of its estimator."""
    return learned(tmp_path_factory.mktemp("runs") / "walker", "mm+mc3", 2, switch_at=(1,), save_interval=1)


@pytest.fixture(scope="module")
def packed(run):
    path = run.parent / "my-walker.pt"
    assert cli.main(["pack", str(run), str(path)]) == 0
    return path


def test_the_policy_acts_as_the_checkpoint_does(run, packed):
    ours, theirs = load_candidate(packed), load_candidate(run)
    for name, value in theirs.actor.state_dict().items():
        assert torch.equal(ours.actor.state_dict()[name], value), name
    assert ours.contract == theirs.contract
    assert ours.task == theirs.task
    assert ours.name == "my-walker"


def test_only_what_acting_needs_is_in_it(run, packed):
    content = read_torch_file(packed)
    assert content.keys() == {"format", "version", *KEYS}
    assert content["algorithm"].keys() == {"actor_state_dict", "critic_state_dict", "p3_state"}
    assert content["settings"]["run_dir"] is None
    assert packed.stat().st_size < find_checkpoint(run).stat().st_size / 2


def test_commands_take_it_as_they_take_a_checkpoint(packed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["eval", str(packed), "--episodes", "2", "--seconds", "0.2", "--json", "rows.json"]) == 0
    assert {row["checkpoint"] for row in json.loads((tmp_path / "rows.json").read_text())["results"]} == {"my-walker"}
    assert cli.main(["export", str(packed)]) == 0
    assert (tmp_path / "my-walker-policy.onnx").exists()
    assert cli.main(["diagnose", str(packed), "--quick"]) == 0
    assert (tmp_path / "my-walker-diagnose").is_dir()
    begun = ["--task", "walker-parkour", "--method", "mm", "--num-envs", "4", "--iterations", "1", "--processes", "1"]
    assert cli.main(["train", *begun, "--init-from", str(packed), "--run-dir", "run", "--no-tensorboard"]) == 0


def test_a_policy_of_the_package_is_found_by_its_name(packed, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(policy_file, "_PRETRAINED", packed.parent)
    monkeypatch.chdir(tmp_path)
    assert pretrained() == {"my-walker": packed}
    assert read_run_checkpoint("my-walker").path == packed
    with pytest.raises(
        FileNotFoundError, match=r"no policy my-waker \(did you mean 'my-walker'\?\); .* carries my-walk"
    ):
        find_checkpoint("my-waker")
    assert cli.main(["export", "my-waker"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_what_cannot_be_used_is_named(packed, tmp_path, capsys):
    content = read_torch_file(packed)
    later, other = tmp_path / "later.pt", tmp_path / "other.pt"
    write_torch_file(later, {**content, "version": 2})
    with pytest.raises(ValueError, match="version 2; this trainer reads version 1"):
        read_run_checkpoint(later)
    write_torch_file(other, {**content, "settings": {**content["settings"], "gone": 1}})
    with pytest.raises(ValueError, match="no setting gone"):
        read_run_checkpoint(other)
    assert cli.main(["pack", str(packed), str(tmp_path / "policy.onnx")]) == 2
    assert "ending in .pt" in capsys.readouterr().err


def test_the_mean_of_checkpoints(run, tmp_path, capsys):
    path = tmp_path / "mean.pt"
    assert cli.main(["pack", str(run), str(path), "--average", "2"]) == 0
    assert "iteration 2, weights the mean of 2 checkpoints" in capsys.readouterr().out
    made, first, second = (load_candidate(one).actor for one in (path, run / "model_1.pt", run / "model_2.pt"))
    moved = 0
    for name, value in made.named_parameters():
        ends = first.get_parameter(name), second.get_parameter(name)
        torch.testing.assert_close(value, (ends[0] + ends[1]) / 2)
        moved += not torch.equal(*ends)
    assert moved > 10
    for name, value in made.named_buffers():
        assert torch.equal(value, second.get_buffer(name)), name


@pytest.mark.parametrize(
    ("source", "average", "message"),
    [
        ("run", "0", "--average: expected at least 1, got 0"),
        ("run", "3", "--average: expected at most 2, the checkpoints up to"),
        ("packed", "2", "--average: expected a run or a checkpoint in one, got the policy file"),
    ],
)
def test_a_mean_of_what_is_not_there_is_refused(run, packed, source, average, message, tmp_path, capsys):
    named = {"run": run, "packed": packed}[source]
    assert cli.main(["pack", str(named), str(tmp_path / "mean.pt"), "--average", average]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "mean.pt").exists()


@pytest.mark.parametrize("name", pretrained())
def test_every_policy_of_the_package_has_a_card_and_acts(name, tmp_path, monkeypatch):
    path = pretrained()[name]
    assert path.with_suffix(".md").read_text(encoding="utf-8").startswith(f"# `{name}`")
    assert path.stat().st_size < 8e6
    monkeypatch.chdir(tmp_path)
    assert cli.main(["eval", name, "--episodes", "4", "--seconds", "2", "--json", "rows.json"]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["results"]
    assert all(row["lifetime"]["value"] > 1.5 for row in rows), "an untrained robot falls within 1.2 s"
    assert cli.main(["export", name, "--std"]) == 0
