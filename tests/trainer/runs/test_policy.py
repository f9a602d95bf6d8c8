"""From a checkpoint to its actor: the same policy as the training's, with neither a simulator nor an optimiser."""

from __future__ import annotations

import pytest
import torch
from helpers.trainer.small_runs import small

from trainer.engines.mujoco.engine import MujocoEngine
from trainer.runs.config_file import save_config
from trainer.runs.policy import action_of, load_candidate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    runner = small(directory, "mm+mc3", 2, switch_at=(1,))
    save_config(runner.config, directory / "config.json")
    runner.learn(quiet=True)
    return runner


def test_the_actor_is_the_trained_one(run):
    candidate = load_candidate(run.run_dir)
    actor, trained = candidate.actor, run.algorithm.actor
    assert not actor.training
    assert actor.estimator == trained.estimator  # that of the last phase
    assert actor.state_dict().keys() == trained.state_dict().keys()
    for name, value in trained.state_dict().items():
        assert torch.equal(value, actor.state_dict()[name]), name
    observations = run.env.get_observations()
    trained.eval()
    assert torch.equal(action_of(actor, "mean")(observations), action_of(trained, "mean")(observations))


def test_no_simulator_and_no_optimiser_is_built(run, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("built to read weights")

    monkeypatch.setattr(MujocoEngine, "__init__", refused)
    monkeypatch.setattr(torch.optim.Adam, "__init__", refused)
    load_candidate(run.run_dir)
