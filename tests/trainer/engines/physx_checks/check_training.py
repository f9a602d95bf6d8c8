"""Training on PhysX, its resume, and policies that go from engine to engine, all by the commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.cli import main
from trainer.runs.checkpoint import load_checkpoint

Measured = Callable[..., None]
SMALL = ("--model.hidden-dims", "16", "--ppo.num-steps-per-env", "8", "--diagnose-interval", "0", "--seed", "1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of two iterations in each engine."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for engine in ("mujoco", "physx"):
        found[engine] = folder / engine
        arguments = ["--task", "g1-flat", "--method", "mm", "--engine", engine, "--num-envs", "8", "--iterations", "2"]
        assert main(["train", *arguments, *SMALL, "--run-dir", str(found[engine])]) == 0
    return found


def test_training_and_its_resume(runs: dict[str, Path], measured: Measured) -> None:
    """`p3 train --engine physx` runs moment matching, saves, and goes on where it ended."""
    run = runs["physx"]
    content = load_checkpoint(run / "model_2.pt")
    assert content["contract"]["robot"] == "g1"
    assert main(["train", "--run-dir", str(run), "--resume", "--iterations", "4"]) == 0
    after = load_checkpoint(run / "model_4.pt")
    assert after["iter"] == 4
    steps = after["environment"]["episode"]["step"]
    assert (steps >= 0).all()
    measured(iterations=after["iter"], robots=len(steps))


@pytest.mark.parametrize(("trained", "judged"), [("mujoco", "physx"), ("physx", "mujoco"), ("physx", "physx")])
def test_policies_go_from_engine_to_engine(
    runs: dict[str, Path], trained: str, judged: str, tmp_path: Path, measured: Measured
) -> None:
    """`p3 eval --engine` judges a policy of one engine in another."""
    found = tmp_path / "found.json"
    arguments = ["--engine", judged, "--episodes", "4", "--seconds", "2", "--strengths", "0", "1"]
    assert main(["eval", str(runs[trained]), *arguments, "--json", str(found)]) == 0
    content = json.loads(found.read_text())
    assert content["protocol"]["engine"] == [judged]
    assert [row["engine"] for row in content["results"]] == [judged] * 2
    assert [row["episodes"] for row in content["results"]] == [4, 4]
    lifetimes = [row["lifetime"]["value"] for row in content["results"]]
    assert all(0.2 < lifetime <= 2.0 for lifetime in lifetimes)
    measured(lifetimes_s=lifetimes)
