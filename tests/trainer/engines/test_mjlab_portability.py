"""Policies move between the engines: what one trains, the other judges the same, whatever order joints are in."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from helpers.trainer.permuted import permuted_checkpoint, permuted_contract
from helpers.trainer.small_runs import FEW_UPDATES

from trainer import cli
from trainer.runs.checkpoint import load_checkpoint, save_checkpoint
from trainer.tasks.contract import Contract

pytest.importorskip("mjlab")
SMALL = [
    *("--task", "g1-flat", "--num-envs", "2", "--iterations", "2", "--ppo.num-steps-per-env", "6"),
    *("--model.hidden-dims", "16", "16", "--no-tensorboard", "--diagnose-interval", "0", "--num-threads", "1"),
    *FEW_UPDATES,
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each engine, and a copy of mjlab's as an engine with another joint order would have saved it."""
    root = tmp_path_factory.mktemp("runs")
    for engine in ("mujoco", "mjlab"):
        assert cli.main(["train", *SMALL, "--engine", engine, "--run-dir", str(root / engine)]) == 0
    content = load_checkpoint(root / "mjlab" / "model_2.pt")
    ours = Contract.from_dict(content["contract"])
    theirs = permuted_contract(ours, order=ours.history.order, layout=ours.history.layout)
    theirs = dataclasses.replace(theirs, scan=ours.scan)  # which the network's convolution reads as a grid
    (root / "permuted").mkdir()
    (root / "permuted" / "config.json").write_bytes((root / "mjlab" / "config.json").read_bytes())
    save_checkpoint(root / "permuted" / "model_2.pt", permuted_checkpoint(content, theirs))
    return root


def numbers(runs, engine):
    path = runs / f"{engine}.json"
    paths = [str(runs / name) for name in ("mujoco", "mjlab", "permuted")]
    options = ["--episodes", "3", "--seconds", "0.5", "--strengths", "1", "--num-threads", "1", "--engine", engine]
    assert cli.main(["eval", *paths, *options, "--json", str(path)]) == 0
    return json.loads(path.read_text())["results"]


def test_every_engine_judges_every_engines_policies_alike(runs):
    native, mjlab = numbers(runs, "mujoco"), numbers(runs, "mjlab")
    for ours, theirs in zip(mjlab, native, strict=True):
        assert ours["checkpoint"] == theirs["checkpoint"]
        for measure in ("reward", "lifetime", "distance", "energy"):
            mean, expected = ours[measure]["value"], theirs[measure]["value"]
            assert mean == pytest.approx(expected, rel=2e-2, abs=2e-2), measure
    trained_native, trained_mjlab, permuted = native
    assert trained_native["reward"] != trained_mjlab["reward"]
    assert permuted["reward"]["value"] == pytest.approx(trained_mjlab["reward"]["value"], abs=1e-3)


def test_a_run_in_mjlab_goes_on(runs, capsys):
    run = runs / "mjlab"
    assert cli.main(["train", "--run-dir", str(run), "--resume", "--iterations", "3"]) == 0
    assert "continuing from" in capsys.readouterr().out
    before, after = (load_checkpoint(run / f"model_{iteration}.pt") for iteration in (2, 3))
    assert after["iter"] == 3
    assert after["totals"]["steps"] == 36
    weight = "actor_state_dict"
    changed = [
        not torch.equal(before["algorithm"][weight][name], after["algorithm"][weight][name])
        for name in before["algorithm"][weight]
    ]
    assert any(changed)
