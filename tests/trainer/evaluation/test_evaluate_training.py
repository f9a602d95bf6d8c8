"""Evaluation while training: fixed episodes that change nothing of the training, and the best policy by them."""

from __future__ import annotations

import errno

import pytest
import torch
from helpers.trainer.small_runs import FEW_UPDATES, assert_same, small

from trainer import cli
from trainer.evaluation.while_training import TrainingEvaluation
from trainer.runs.checkpoint import load_checkpoint
from trainer.runs.config_file import save_config
from trainer.runs.metrics import read_metrics
from trainer.runs.named_checkpoint import find_checkpoint
from trainer.runs.policy import load_candidate

EVALUATED = {"eval_interval": 2, "eval_episodes": 3, "eval_seconds": 0.3, "eval_difficulty": (0.0, 0.4)}


def test_a_training_is_the_same_with_and_without(tmp_path):
    for name, options in (("with", EVALUATED), ("without", {})):
        small(tmp_path / name, "p3(2)", 3, switch_at=2, **options).learn(quiet=True)
    ours, theirs = (load_checkpoint(tmp_path / name / "model_3.pt") for name in ("with", "without"))
    assert ours.pop("best")["iteration"] in (2, 3)
    assert theirs.pop("best") is None
    assert_same(ours, theirs)
    rows = read_metrics(tmp_path / "with")
    assert ["eval/success" in row for row in rows] == [False, True, True]  # every second, and the last
    assert {"eval/success_at_0", "eval/success_at_0.4", "eval/reward", "eval/lifetime", "eval/fell"} < rows[1].keys()
    for ours, theirs in zip(rows, read_metrics(tmp_path / "without"), strict=True):
        assert {k: v for k, v in ours.items() if k.startswith("loss/")}.items() <= theirs.items()


def test_the_same_policy_has_the_same_numbers(tmp_path):
    runner = small(tmp_path / "run", "mm", 2, **EVALUATED)
    actor, numbers = runner.algorithm.actor, []
    for evaluation in (runner.evaluation, runner.evaluation, TrainingEvaluation(runner.config, runner.ranks)):
        torch.manual_seed(len(numbers))
        before = torch.get_rng_state()
        numbers.append(evaluation.measure(actor))
        assert torch.equal(torch.get_rng_state(), before)
        assert numbers[-1].pop("seconds") > 0
    assert numbers[0] == numbers[1] == numbers[2]
    with torch.no_grad():
        actor.mlp[-1].bias.fill_(3.0)
    assert runner.evaluation.measure(actor)["reward"] != numbers[0]["reward"]


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """A run whose evaluations at iterations 1, 2, ... find these successes."""

    def train(successes, iterations, **options):
        found = iter(successes)
        monkeypatch.setattr(
            TrainingEvaluation, "measure", lambda *_: {"success": next(found), "reward": 1.0, "seconds": 0.0}
        )
        runner = small(tmp_path / "run", "mm", iterations, **{**EVALUATED, "eval_interval": 1, **options})
        notes = []
        runner._note = notes.append
        save_config(runner.config, tmp_path / "run" / "config.json")
        if any((tmp_path / "run").glob("model_*.pt")):
            runner.restore()
        runner.learn(quiet=True)
        return runner, notes

    return train


def test_the_best_is_kept_pruned_never_and_known_after_a_resume(judged, tmp_path):
    run = tmp_path / "run"
    _, notes = judged([0.1, 0.5, 0.5, 0.2], 4, save_interval=1, keep_checkpoints=1)
    assert notes == [
        "iteration 1: evaluated: success 10%, reward 1.0, the best so far: best.pt",
        "iteration 2: evaluated: success 50%, reward 1.0, the best so far: best.pt",
        "iteration 3: evaluated: success 50%, reward 1.0; the best is 50%, 1.0, of iteration 2",
        "iteration 4: evaluated: success 20%, reward 1.0; the best is 50%, 1.0, of iteration 2",
    ]
    assert sorted(path.name for path in run.glob("*.pt")) == ["best.pt", "model_4.pt"]
    best = load_checkpoint(run / "best.pt")
    assert best["iter"] == 2
    assert best["best"]["success"] == 0.5
    assert load_checkpoint(run / "model_4.pt")["best"] == best["best"]
    runner, _ = judged([0.4, 0.6], 6)
    assert runner.evaluation.best["iteration"] == 6
    assert load_checkpoint(run / "best.pt")["iter"] == 6


def test_a_best_that_is_newer_than_the_newest_checkpoint_stays(judged, tmp_path):
    """As after a kill between an evaluation and the next checkpoint."""
    judged([0.1, 0.9], 2, save_interval=1)
    (tmp_path / "run" / "model_2.pt").unlink()
    runner, notes = judged([0.3], 2)
    assert notes[-1].endswith("; the best is 90%, 1.0, of iteration 2")
    assert runner.evaluation.best["success"] == 0.9
    (tmp_path / "run" / "best.pt").write_bytes(b"")  # what a power cut can leave of a file system
    runner, notes = judged([0.2], 3)
    assert notes[-1].endswith("success 20%, reward 1.0, the best so far: best.pt")
    assert load_checkpoint(tmp_path / "run" / "best.pt")["iter"] == 3


def test_a_full_disk_costs_the_best_and_not_the_training(judged, tmp_path, monkeypatch):
    import trainer.training.runner

    save = trainer.training.runner.save_checkpoint

    def full(path, content):
        if path.name == "best.pt" and content["iter"] == 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(path, content)

    monkeypatch.setattr(trainer.training.runner, "save_checkpoint", full)
    runner, notes = judged([0.5, 0.4], 2)
    assert notes[0].endswith("the best so far, but best.pt could not be written: No space left on device")
    assert notes[1].endswith("the best so far: best.pt")
    assert runner.evaluation.best["iteration"] == 2


def test_commands_take_the_best_and_say_so(judged, tmp_path, capsys):
    judged([0.5, 0.25], 2, save_interval=1)
    run = tmp_path / "run"
    assert find_checkpoint(run) == run / "best.pt"
    assert find_checkpoint(run, newest=True) == run / "model_2.pt"
    short = ["--episodes", "1", "--seconds", "0.1", "--num-threads", "1"]
    assert cli.main(["eval", str(run), *short]) == 0
    output = capsys.readouterr()
    assert f"{run}: best.pt, of iteration 1, evaluated at 50% success" in output.err
    assert "run/best" in output.out
    assert load_candidate(run / "model_2.pt").choice == ""
    (run / "best.pt").unlink()
    assert cli.main(["eval", str(run), *short]) == 0
    assert f"{run}: no best.pt (it comes with --eval-interval), so the newest: model_2.pt" in capsys.readouterr().err
    assert cli.main(["report", str(run)]) == 0
    report = (run / "report.html").read_text()
    assert "<h2>Evaluation</h2>" in report
    assert "success 50% (iteration 1)" in report


def test_a_new_run_does_not_inherit_a_best(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "best.pt").write_bytes(b"of another run")
    small_run = ["--task", "walker-parkour", "--num-envs", "4", "--ppo.num-steps-per-env", "4", "--num-threads", "1"]
    small_run += [*FEW_UPDATES, "--model.hidden-dims", "8", "--no-tensorboard", "--iterations", "1", "--method", "mm"]
    assert cli.main(["train", *small_run, "--run-dir", str(run)]) == 0
    assert not (run / "best.pt").exists()
    for option, value, message in (
        ("--eval-interval", "-1", "expected at least 0, got -1"),
        ("--eval-episodes", "0", "expected at least 1, got 0"),
        ("--eval-seconds", "0", "expected a positive number, got 0"),
        ("--eval-difficulty", "1.5", "expected 0 to 1, got 1.5"),
    ):
        assert cli.main(["train", *small_run, "--run-dir", str(tmp_path / "other"), option, value]) == 2
        assert f"{option}: {message}" in capsys.readouterr().err
