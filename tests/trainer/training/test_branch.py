"""`--branch-from`: a branch is its trunk continued, but for what was asked to change."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.trainer.small_runs import assert_same, small

from trainer import cli
from trainer.algorithms import parse_method
from trainer.algorithms.presets import resolve
from trainer.runs.checkpoint import load_checkpoint
from trainer.runs.config_file import load_config, save_config
from trainer.runs.metrics import read_metrics
from trainer.training.branch import settings_of_trunk

AT, END = 3, 5


def train(run_dir, method="mm", iterations=END, source=None, **options):
    """A run by hand; a branch where `source` is given."""
    runner = small(run_dir, method, iterations, branch_from=None if source is None else str(source), **options)
    save_config(runner.config, run_dir / "config.json")
    if source is not None:
        assert runner.branch().parent == source
    runner.learn(quiet=True)
    return runner


def logged(run_dir):
    """What does not depend on the clock or the machine."""
    return [
        {key: value for key, value in row.items() if not key.startswith(("speed", "time", "memory"))}
        for row in read_metrics(run_dir)
    ]


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    """Three iterations of moment matching."""
    run_dir = tmp_path_factory.mktemp("trunk") / "mm"
    train(run_dir, iterations=AT)
    return run_dir


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """The same with the Σλ term held at a target, whose weight has moved from where it began."""
    run_dir = tmp_path_factory.mktemp("held") / "mm"
    train(run_dir, iterations=AT, model={"latent_noise_coef": 0.02, "latent_noise_target": 1e-6})
    return run_dir


def test_with_nothing_changed_it_is_the_run_continued(trunk, tmp_path):
    train(tmp_path / "whole")
    train(tmp_path / "branch", source=trunk)
    whole, branch = (load_checkpoint(tmp_path / name / f"model_{END}.pt") for name in ("whole", "branch"))
    assert_same(whole, branch)
    assert [row["iteration"] for row in logged(tmp_path / "branch")] == [AT + 1, END]
    assert logged(tmp_path / "branch") == logged(tmp_path / "whole")[AT:]


@pytest.mark.parametrize("then", ["mc2", "mc2-common", "shared", "cm", "vae-stored"])
def test_with_another_estimator_it_is_a_run_in_phases(trunk, tmp_path, then):
    train(tmp_path / "whole", f"mm+{then}", switch_at=AT)
    train(tmp_path / "branch", then, source=trunk)
    whole, branch = (load_checkpoint(tmp_path / name / f"model_{END}.pt") for name in ("whole", "branch"))
    for content in (whole, branch):  # only the story that they tell of themselves differs
        for name in ("method", "switched_at"):
            del content[name]
        del content["algorithm"]["p3_state"]["estimators"]
    assert_same(whole, branch)
    assert [row["estimator"] for row in logged(tmp_path / "branch")] == [then] * 2


def test_a_resumed_branch_is_the_branch(trunk, tmp_path):
    train(tmp_path / "whole", "mc2", source=trunk)
    train(tmp_path / "part", "mc2", AT + 1, source=trunk)
    rest = small(tmp_path / "part", "mc2", END, branch_from=str(trunk))
    assert rest.restore() == tmp_path / "part" / f"model_{AT + 1}.pt"
    rest.learn(quiet=True)
    assert_same(*(load_checkpoint(tmp_path / name / f"model_{END}.pt") for name in ("whole", "part")))
    assert logged(tmp_path / "whole") == logged(tmp_path / "part")


def test_settings_that_are_given_take_effect(trunk, held, tmp_path):
    moved = load_checkpoint(held / f"model_{AT}.pt")["algorithm"]["p3_state"]["latent_noise_coef"]
    assert moved > 0.02
    for source, target, coef in ((held, 1e-6, moved), (held, 0.5, 0.02), (trunk, 0.5, 0.02)):
        model = {"latent_noise_coef": 0.02, "latent_noise_target": target}
        runner = small(tmp_path / f"{source.parent.name}-{target}", "mm", END, branch_from=str(source), model=model)
        runner.branch()
        assert runner.algorithm.actor.latent_noise.coef == coef
        assert runner.iteration == AT
    config = runner.config
    slow = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, learning_rate=3e-4, dual_clip=3.0))
    runner = type(runner)(slow)
    runner.branch()
    assert runner.algorithm.learning_rate == 3e-4
    assert runner.algorithm.optimizer.param_groups[0]["lr"] == 3e-4
    assert runner.algorithm.dual_clip == 3.0


def test_another_method_brings_its_own_weight_of_the_term(trunk, held):
    """What the trunk was given stays; what was its method's own is the branch's method's."""
    for source, method, coef in ((trunk, "quiet", None), (trunk, "mc2", None), (held, "mc2", 0.02)):
        given = dataclasses.replace(settings_of_trunk(str(source)), method=method, iterations=END)
        assert given.model.latent_noise_coef == coef
        resolved = resolve(given).model.latent_noise_coef
        assert resolved == (parse_method(method).latent_noise_coef if coef is None else coef)


def command(source, run_dir, *options):
    return ["train", "--branch-from", str(source), "--run-dir", str(run_dir), *options]


def test_the_command_takes_everything_else_from_the_trunk(trunk, tmp_path, capsys):
    run_dir = tmp_path / "branch"
    assert cli.main(command(trunk, run_dir, "--method", "mc2", "--iterations", str(AT + 1))) == 0
    assert f"going on from {trunk / f'model_{AT}.pt'}, at iteration {AT}" in capsys.readouterr().out
    ours, theirs = (load_config(path / "config.json") for path in (run_dir, trunk))
    changed = {"method": "mc2", "iterations": AT + 1, "branch_from": str(trunk), "run_dir": run_dir}
    assert ours == dataclasses.replace(theirs, **changed)
    # it goes on as any run does, without its trunk
    assert cli.main(["train", "--run-dir", str(run_dir), "--resume", "--iterations", str(END)]) == 0
    assert [row["iteration"] for row in read_metrics(run_dir)] == [AT + 1, END]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "g1-flat"], "--task: {} is of walker-parkour, a branch of it cannot be of g1-flat"),
        (["--set", "max_tilt=0.5"], "expected no change: max_tilt 0.9 -> 0.5"),
        (["--num-envs", "12"], "--num-envs: {} has 6, expected the same of a branch, got 12"),
        (["--seed", "7"], "--seed: {} has 1, expected the same of a branch, got 7"),
        (["--iterations", str(AT)], f"--iterations: {{}} is of iteration {AT}, expected more, got {AT}"),
        (["--method", "spr"], "--branch-from: {} (walker-parkour, mm): actor: layer"),
        (["--model.hidden-dims", "8", "8"], "actor: layer 'mlp.0.weight' is 16"),
        (["--init-from", "g1-flat"], "--init-from and --branch-from exclude each other"),
    ],
)
def test_what_cannot_go_on_is_refused_by_name(trunk, tmp_path, capsys, options, message):
    end = [] if "--iterations" in options else ["--iterations", str(END)]
    assert cli.main(command(trunk, tmp_path / "branch", *end, *options)) == 2
    assert message.format(trunk / f"model_{AT}.pt") in capsys.readouterr().err


def test_a_policy_file_or_nothing_is_refused(tmp_path, capsys):
    assert cli.main(command("g1-flat", tmp_path / "branch")) == 2
    assert "is a policy without optimiser and environments; --init-from begins with one" in capsys.readouterr().err
    assert cli.main(command(tmp_path / "nowhere", tmp_path / "branch")) == 2
    assert "--branch-from: CHECKPOINT: no run directory, no file and no policy" in capsys.readouterr().err
    assert not (tmp_path / "branch").exists()
