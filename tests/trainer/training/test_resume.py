"""A run that was interrupted and resumed is the run that was not; a seed is a run."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers.trainer.small_runs import assert_same, small, whole_and_parts

from trainer.runs.checkpoint import load_checkpoint, save_checkpoint
from trainer.runs.metrics import read_metrics

METHODS = (
    *("mm", "vae", "spr", "p3(2)"),
    *(pytest.param(name, marks=pytest.mark.sweep) for name in ("mc(3)", "z-mean", "ae", "simple-actor-critic")),
)
"""`make test` has one of each kind: without noise, drawn noise, a loss of its own, a change of the estimator."""


def changes():
    """Every way to sample and every moment of the interruption; each with each in `make test-all`."""
    for (i, saved_at), (j, then) in itertools.product(
        enumerate((1, 2, 3)), enumerate(("mc2-common", "shared", "vae-stored"))
    ):
        yield pytest.param(saved_at, then, marks=[pytest.mark.sweep] if i != j else [])
    yield from (pytest.param(saved_at, "mc2", marks=pytest.mark.sweep) for saved_at in (1, 2, 3))  # which p3(2) is


def options_of(method):
    return {"switch_at": 3} if method.startswith("p3") else {}  # after the interruption


def logged(run_dir):
    """What does not depend on the clock or the machine."""
    return [
        {key: value for key, value in row.items() if not key.startswith(("speed", "time", "memory"))}
        for row in read_metrics(run_dir)
    ]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_equals_its_two_halves(tmp_path, method):
    half = 5 if method == "mm" else 2  # by then episodes have ended, which no method has to do with
    whole = small(tmp_path / "whole", method, 2 * half, **options_of(method))
    whole.learn(quiet=True)
    part = small(tmp_path / "part", method, half, **options_of(method))
    part.learn(quiet=True)
    rest = small(tmp_path / "part", method, 2 * half, **options_of(method))
    torch.manual_seed(999)  # what the process did before must not matter
    assert rest.restore() == tmp_path / "part" / f"model_{half}.pt"
    rest.learn(quiet=True)
    ours, theirs = (load_checkpoint(tmp_path / name / f"model_{2 * half}.pt") for name in ("whole", "part"))
    assert_same(ours, theirs)
    assert ours["iter"] == 2 * half
    assert logged(tmp_path / "whole") == logged(tmp_path / "part")
    assert len(logged(tmp_path / "part")) == 2 * half


@pytest.mark.parametrize(("saved_at", "then"), list(changes()))
def test_across_the_change_of_the_estimator(tmp_path, saved_at, then):
    """Saved before, at and after the switch from moment matching to what samples, in each of its ways."""
    whole_and_parts(tmp_path, f"mm+{then}", saved_at, 4, switch_at=2)
    assert_same(*(load_checkpoint(tmp_path / name / "model_4.pt") for name in ("whole", "part")))
    assert [row["estimator"] for row in logged(tmp_path / "part")] == ["mm"] * 2 + [then] * 2


def test_across_several_changes(tmp_path):
    """Each phase begins at its own iteration, and a run that was saved between them goes on in the right one."""
    _, runner = whole_and_parts(tmp_path, "z-mean+mm+shared", 3, 5, 7, switch_at=(2, 5))
    assert_same(*(load_checkpoint(tmp_path / name / "model_7.pt") for name in ("whole", "part")))
    phases = [row["estimator"] for row in logged(tmp_path / "part")]
    assert phases == ["z-mean"] * 2 + ["mm"] * 3 + ["shared"] * 2
    assert runner.algorithm.estimators.changed_at == [2, 5]


def test_across_a_plateau(tmp_path):
    """The window of the criterion is part of the checkpoint."""

    def prepare(runner):
        runner.algorithm.estimators.plateau.min_difficulty = 0.0
        runner.algorithm.estimators.plateau.tolerance = 10.0  # any four iterations are a plateau

    plateau = {"switch_on_plateau": True, "plateau_window": 4}
    whole_and_parts(tmp_path, "p3(2)", 3, 8, prepare=prepare, **plateau)
    phases = [row["estimator"] for row in logged(tmp_path / "part")]
    assert phases == [row["estimator"] for row in logged(tmp_path / "whole")] == ["mm"] * 4 + ["mc2"] * 4
    assert_same(*(load_checkpoint(tmp_path / name / "model_8.pt") for name in ("whole", "part")))


def test_a_seed_is_a_run(tmp_path):
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        small(tmp_path / name, "p3(2)", 3, switch_at=2, seed=seed).learn(quiet=True)
    one, same, other = (load_checkpoint(tmp_path / name / "model_3.pt") for name in ("one", "same", "other"))
    assert_same(one, same)
    assert logged(tmp_path / "one") == logged(tmp_path / "same")
    weight = "mlp.0.weight"
    assert not torch.equal(one["algorithm"]["actor_state_dict"][weight], other["algorithm"]["actor_state_dict"][weight])


def test_diagnostics_do_not_change_the_training(tmp_path):
    small(tmp_path / "with", "vae", 4, diagnose_interval=1).learn(quiet=True)
    small(tmp_path / "without", "vae", 4, diagnose_interval=0).learn(quiet=True)
    assert_same(*(load_checkpoint(tmp_path / name / "model_4.pt") for name in ("with", "without")))
    assert all(0 <= row["d_eff/n1"] <= 1 for row in logged(tmp_path / "with"))
    assert not any("d_eff/n1" in row for row in logged(tmp_path / "without"))


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, capsys):
    small(tmp_path, "mm", 4, save_interval=2).learn(quiet=True)
    newest = tmp_path / "model_4.pt"
    whole = load_checkpoint(newest)
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    runner = small(tmp_path, "mm", 4, save_interval=2)
    assert runner.restore() == tmp_path / "model_2.pt"
    assert f"passed over: {newest}" in capsys.readouterr().err
    runner.learn(quiet=True)
    assert_same(load_checkpoint(newest), whole)
    assert [row["iteration"] for row in logged(tmp_path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("task", "g1-flat", "of task 'g1-flat', this run is 'walker-parkour'"),
        ("method", "vae", "of method 'vae', this run is 'p3'"),
    ],
)
def test_another_runs_checkpoint_is_refused(tmp_path, key, value, message):
    runner = small(tmp_path / "run")
    path = runner.save()
    save_checkpoint(path, {**load_checkpoint(path), key: value})
    with pytest.raises(ValueError, match=message):
        runner.restore()


def test_old_checkpoints_go_but_not_that_of_the_switch(tmp_path):
    small(tmp_path, "p3(2)", 8, save_interval=1, keep_checkpoints=2, switch_at=3).learn(quiet=True)
    kept = sorted(path.name for path in tmp_path.glob("model_*.pt"))
    assert kept == ["model_3.pt", "model_7.pt", "model_8.pt"]


@pytest.mark.gpu
def test_noise_goes_on_where_it_was_on_a_gpu(tmp_path):
    options = {"engine": "mjlab", "device": "cuda", "task": "g1-flat"}
    runner = small(tmp_path, "mm", 1, **options)
    runner.learn(quiet=True)
    drawn = torch.randn(5, device="cuda")
    again = small(tmp_path, "mm", 2, **options)
    again.restore()
    assert torch.equal(torch.randn(5, device="cuda"), drawn)
