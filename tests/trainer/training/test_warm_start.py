"""`--init-from`: what a new training takes of another one, and what it refuses by name."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.trainer.small_runs import FEW_UPDATES, learned, small

from trainer import cli
from trainer.runs.checkpoint import load_checkpoint
from trainer.runs.config_file import load_config, save_config
from trainer.training.warm_start import SCAN_STD, read_weights

SMALL = [
    *("--task", "walker-parkour", "--num-envs", "6", "--ppo.num-steps-per-env", "6", "--num-threads", "1"),
    *(*FEW_UPDATES, "--no-tensorboard", "--iterations", "1"),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two iterations of the walker on a plane, by MM."""
    return learned(tmp_path_factory.mktemp("source") / "plane", "mm", 2, set=("terrains=",), save_interval=1)


def networks(runner):
    return {
        f"{name}.{key}": value
        for name, part in (("actor", runner.algorithm.actor), ("critic", runner.algorithm.critic))
        for key, value in part.state_dict().items()
    }


def saved(source):
    weights = read_weights(str(source))
    return {f"{name}.{key}": value for name, part in weights.networks.items() for key, value in part.items()}


@pytest.mark.parametrize("method", ["mm", "mc(2)", "p3"])
def test_networks_and_statistics_are_taken_and_nothing_else(source, tmp_path, method):
    runner = small(tmp_path / "run", method, 2, init_from=str(source), seed=2, set=("terrains=",))
    before = networks(runner)
    assert not torch.equal(before["actor.mlp.0.weight"], saved(source)["actor.mlp.0.weight"])
    assert runner.initialise() == source / "model_2.pt"
    theirs = saved(source)
    for name, value in networks(runner).items():
        assert torch.equal(value, theirs[name]), name
    assert theirs["actor.proprio_normalizer.count"] == 2 * (36 + 18)  # half of the rows are mirrored
    assert runner.iteration == 0
    assert not runner.algorithm.optimizer.state
    rate = read_weights(str(source)).learning_rate
    assert rate is not None
    assert runner.algorithm.learning_rate == min(rate, runner.config.ppo.learning_rate)
    assert runner.algorithm.estimators.phase == 0
    with torch.no_grad():  # broken weights come back as those that were taken
        runner.algorithm.actor.mlp[0].weight[0, 0] = torch.nan
    with torch.inference_mode():
        runner.algorithm.act(runner.env.get_observations())
    assert torch.equal(networks(runner)["actor.mlp.0.weight"], theirs["actor.mlp.0.weight"])
    runner.learn(quiet=True)
    assert runner.iteration == 2


def test_a_plane_s_scan_is_widened_on_terrains(source, tmp_path):
    notes = []
    runner = small(tmp_path / "run", "mm", 1, init_from=str(source))
    runner._note = notes.append
    runner.initialise()
    assert notes == ["--init-from: the height scan hardly varied there: it is scaled by at least 0.1 m here"]
    theirs, task = saved(source), runner.env.task
    assert (theirs["actor.scan_normalizer._std"] < SCAN_STD).all()
    actor, critic = runner.algorithm.actor, runner.algorithm.critic
    assert (actor.scan_normalizer.std == SCAN_STD).all()
    torch.testing.assert_close(actor.scan_normalizer._var.sqrt(), actor.scan_normalizer._std)
    changed = critic.obs_normalizer.std != theirs["critic.obs_normalizer._std"][0]
    inside = torch.zeros_like(changed)
    inside[task.critic_scan] = True
    assert torch.equal(changed, inside)
    clean = runner.env.get_observations()["critic"][:, task.critic_scan]
    torch.testing.assert_close(clean, task.scan(runner.env.state))


def test_exploration_noise_is_taken_unless_it_is_given(source, tmp_path):
    assert (
        cli.main(["train", *SMALL, "--method", "mm", "--init-from", str(source), "--run-dir", str(tmp_path / "a")]) == 0
    )
    config = load_config(tmp_path / "a" / "config.json")
    assert config.init_from == str(source)
    assert config.model.init_std is None
    assert config.model.hidden_dims == (16, 16)  # not given: those of the checkpoint
    arguments = ["--model.init-std", "0.25", "--ppo.learning-rate", "1e-9", "--run-dir", str(tmp_path / "b")]
    assert cli.main(["train", *SMALL, "--method", "mm", "--init-from", str(source / "model_1.pt"), *arguments]) == 0
    actor = load_checkpoint(tmp_path / "b" / "model_1.pt")["algorithm"]["actor_state_dict"]
    torch.testing.assert_close(actor["log_std"].exp(), torch.full((6,), 0.25), rtol=1e-5, atol=0.0)
    first = load_checkpoint(source / "model_1.pt")["algorithm"]["actor_state_dict"]
    torch.testing.assert_close(actor["mlp.0.weight"], first["mlp.0.weight"], rtol=0, atol=1e-6)
    assert cli.main(["train", "--run-dir", str(tmp_path / "a"), "--resume", "--iterations", "2"]) == 0
    assert cli.main(["eval", str(tmp_path / "a"), "--episodes", "1", "--seconds", "0.1", "--num-threads", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--model.hidden-dims", "32", "16"], ["actor: layer 'mlp.0.weight' is 16 × ", "here it is 32 × "]),
        (["--model.hidden-dims", "32", "16"], ["its run has --model.hidden-dims 16 16"]),
        (["--method", "ae"], ["layer 'encoder.", "(its actor is a P3Actor, that of ae a "]),
        (["--method", "simple-actor-critic"], ["(its actor is a P3Actor, that of simple-actor-critic a SimpleActor"]),
        (["--set", "proprio=gravity,joint_pos,command,action,clock"], ["proprio: there 'command', here 'joint_pos'"]),
        (["--set", "history=3"], ["history: there History(length=5"]),
        (["--task", "g1-flat"], ["does not fit g1-flat: robot: there 'walker', here 'g1'"]),
    ],
)
def test_what_does_not_fit_is_named(source, tmp_path, capsys, arguments, messages):
    given = [*SMALL, "--method", "mm", "--init-from", str(source), "--run-dir", str(tmp_path / "run"), *arguments]
    assert cli.main(["train", *given]) == 2
    error = capsys.readouterr().err
    assert "--init-from: " in error
    assert "Traceback" not in error
    for message in messages:
        assert message in error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "--init-from: CHECKPOINT: no run directory, no file and no policy"),
        ("plane/config.json", "not a torch file"),
    ],
)
def test_what_is_no_checkpoint_is_named(source, tmp_path, capsys, name, message):
    given = [*SMALL, "--init-from", str(source.parent / name), "--run-dir", str(tmp_path / "run")]
    assert cli.main(["train", *given]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_with_them_again(source, tmp_path, capsys):
    run_dir = tmp_path / "run"
    runner = small(run_dir, "mm", 1, init_from=str(source))
    save_config(runner.config, run_dir / "config.json")
    assert cli.main(["train", "--run-dir", str(run_dir), "--resume"]) == 0
    assert f"beginning with the networks of {source / 'model_2.pt'}" in capsys.readouterr().out
    assert json.loads((run_dir / "config.json").read_text())["init_from"] == str(source)
    assert cli.main(["train", "--run-dir", str(run_dir), "--resume", "--init-from", str(source)]) == 2
    assert "--init-from: a resumed run keeps its own" in capsys.readouterr().err
