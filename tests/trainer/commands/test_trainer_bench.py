"""`p3 bench --engine` and `--update`: they run, compare like with like, and write what they print."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from p3kernels import MonteCarlo
from trainer import cli
from trainer.commands.bench_run import ExpandedMonteCarlo, bench_update, profile_update


def test_engine_benchmark(tmp_path, capsys):
    out = tmp_path / "numbers.json"
    arguments = ["--engine", "--tasks", "walker-parkour", "--num-envs", "4", "--repeats", "1", "--out", str(out)]
    assert cli.main(["bench", *arguments]) == 0
    numbers = json.loads(out.read_text())["engine"]["walker-parkour"]
    assert numbers["share"] == pytest.approx(numbers["task"] / numbers["simulator"])
    assert 0 < numbers["share"] <= 1
    assert "walker-parkour" in capsys.readouterr().out


def test_update_benchmark_times_every_estimator(capsys):
    results = bench_update(num_envs=2, repeats=1)
    kinds = {"vae (N = 1)", "shared", "mm", "mm with the Σλ term", "mc(15)", "mc15-common", "mc(15), expanded eagerly"}
    assert set(results) == kinds | {"mm, half of it mirrored", "mm, all of it mirrored"}
    assert all(0 < seconds < float("inf") for seconds in results.values())
    printed = capsys.readouterr().out
    for ratio in ("shared / vae (N = 1)", "mm with the Σλ term / mm", "mc15-common / mc(15)"):
        assert ratio in printed


def test_the_expanded_likelihood_is_the_same_likelihood():
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(5, 16), nn.ELU(), nn.Linear(16, 2))
    arguments = (actor, torch.randn(40, 3), torch.randn(40, 2), torch.rand(40, 2), torch.full((2,), 0.8))
    action = torch.randn(40, 2)
    with torch.no_grad():
        ours = MonteCarlo(4000).policy(*arguments).log_prob(action)
        theirs = ExpandedMonteCarlo(4000).policy(*arguments).log_prob(action)
    assert torch.allclose(ours, theirs, atol=0.1)
    assert not torch.equal(ours, theirs)  # other samples


def test_profile_names_the_moments():
    assert "p3kernels::mlp_moments" in profile_update(num_envs=2, rows=60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-envs", "0"], "--num-envs, --repeats and --threads: expected at least 1"),
        (["--tasks", "g2-flat"], "--tasks: no task g2-flat; the tasks are g1-flat"),
    ],
)
def test_wrong_arguments_are_named_before_anything_runs(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "--engine", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named_before_anything_runs(capsys):
    assert cli.main(["bench", "--engine", "--out", "/nowhere/numbers.json"]) == 2
    assert "--out: no directory /nowhere" in capsys.readouterr().err
