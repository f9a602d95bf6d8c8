"""A study is interrupted, killed, resumed and damaged; runs fail and diverge; the others come to their end."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import tyro
from helpers import forked
from helpers.trainer.small_runs import small

import trainer
from trainer import cli
from trainer.commands.study import StudyConfig
from trainer.commands.study_run import planned_of
from trainer.runs.checkpoint import latest_checkpoint
from trainer.runs.config_file import load_config, save_config
from trainer.runs.directory import DIVERGED, locked
from trainer.runs.metrics import read_metrics
from trainer.study.arms import PLANS
from trainer.study.campaign import Campaign
from trainer.study.conduct import complete, remaining_seconds
from trainer.study.judge import read_judged
from trainer.study.planned import Planned
from trainer.study.records import record_path
from trainer.study.state import SESSIONS, OtherSettings, in_use, state_of

PATIENCE = 300.0
"""Seconds after which something that should happen never will."""
TARGET = 16


def arguments(directory, *arms, num_envs=8, iterations=TARGET):
    return [
        *("--dir", str(directory), "--records", str(directory / "records"), "--jobs", "1"),
        *("--arms", *arms, "--seeds", "101", "--num-envs", str(num_envs), "--iterations", str(iterations)),
        *("--trunk", "1", "--save-interval", "1", "--eval-checkpoints", "2", "--eval-interval", "0"),
        *("--eval-difficulties", "0", "--eval-seconds", "0.2", "--eval-episodes", "2"),
    ]


def planned(directory, *arms, **size) -> Planned:
    line = arguments(directory, *arms, **size)
    return planned_of(PLANS["preregistered"], tyro.cli(StudyConfig, args=line, default=StudyConfig(arms=(), seeds=())))


def conduct(directory, *arms, report=print, **size):
    return complete(Campaign(planned(directory, *arms, **size)), 1, report)


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def logged(run_dir):
    return len(read_metrics(run_dir)) if (run_dir / "metrics.jsonl").exists() else 0


class Story:
    """A study that is interrupted, then killed, and comes to its end beside a run that cannot."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.run_dir = directory, directory / "walker-parkour-vae-101"
        self.codes: dict[str, int] = {}
        self.reached: dict[str, int] = {}
        self.errors, self.output = "", ""

    def interrupt(self) -> None:
        def press_ctrl_c():
            wait_for(lambda: logged(self.run_dir) >= 2)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=press_ctrl_c)
        thread.start()
        self.codes["interrupted"] = cli.main(["study", "preregistered", *arguments(self.directory, "vae")])
        thread.join()
        self.reached["interrupted"] = self.newest()

    def kill(self) -> None:
        root = str(Path(trainer.__file__).parents[1])
        command = ("-m", "trainer.cli", "study", "preregistered", *arguments(self.directory, "vae"))
        with open(os.devnull, "w") as nothing:
            study = forked.Program(*command, env=os.environ | {"PYTHONPATH": root}, stdout=nothing, stderr=nothing)
        before = logged(self.run_dir)
        wait_for(lambda: logged(self.run_dir) > before)
        study.kill()
        study.wait()
        wait_for(lambda: in_use(self.run_dir) is None)  # the training was told, saved and left
        self.reached["killed"] = self.newest()

    def finish(self) -> None:
        """With a second run, whose checkpoint is of another method: its training refuses it."""
        other = self.directory / "walker-parkour-vae-stored-101"
        shutil.copytree(self.run_dir, other)
        config = load_config(other / "config.json")
        save_config(dataclasses.replace(config, method="vae-stored"), other / "config.json")
        with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()) as output:
            self.codes["finished"] = cli.main(
                ["study", "preregistered", *arguments(self.directory, "vae", "vae-stored")]
            )
        self.errors, self.output = errors.getvalue(), output.getvalue()

    def newest(self) -> int:
        path = latest_checkpoint(self.run_dir)
        return 0 if path is None else int(path.stem.removeprefix("model_"))


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    story = Story(tmp_path_factory.mktemp("study"))
    story.interrupt()
    story.kill()
    story.finish()
    return story


def test_an_interrupted_and_killed_study_goes_on_where_it_was(story):
    assert story.codes["interrupted"] == 128 + signal.SIGINT
    assert 2 <= story.reached["interrupted"] < story.reached["killed"] < TARGET
    sessions = json.loads((story.run_dir / SESSIONS).read_text())
    assert ["--resume" in session["command"] for session in sessions] == [False, True, True]
    assert all(session["versions"]["torch"] == torch.__version__ for session in sessions)
    assert [row["iteration"] for row in read_metrics(story.run_dir)] == list(range(1, TARGET + 1))


def test_a_failed_run_does_not_stop_the_others(story):
    assert story.codes["finished"] == 1
    plan = planned(story.directory, "vae", "vae-stored")
    done, failed = plan.runs()
    assert state_of(done) == "trained"
    assert list(read_judged(done, plan.size)) == ["15", "16"]
    assert "walker-parkour-vae-stored-101: failed: training ended with exit code 2" in story.errors
    assert "of method 'vae', this run is 'vae-stored'" in story.errors
    assert state_of(failed) == "unfinished"
    assert "left out, not finished: walker-parkour-vae-stored-101" in story.errors
    assert "| `vae` | 1 |" in story.output
    assert json.loads((story.directory / "preregistered.json").read_text())["runs"]["vae"]["101"]


def test_a_run_in_use_is_waited_for(story, tmp_path):
    (tmp_path / story.run_dir.name).symlink_to(story.run_dir)
    notes = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(story.run_dir))
        assert in_use(story.run_dir) == str(os.getpid())

        def note(line):
            notes.append(line)
            if f"in use by process {os.getpid()}" in line:
                stack.close()

        assert conduct(tmp_path, "vae", report=note) == []
    assert "in use" in notes[0]
    assert notes[-1].startswith("1 of 1 runs done")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("num_envs", 16, "--num-envs: {} was trained with 8, this study has 16"),
        ("iterations", 9, "--iterations: {} was trained with 16, this study has 9"),
    ],
)
def test_other_settings_are_an_error_before_anything_starts(story, tmp_path, option, value, message):
    run_dir = tmp_path / story.run_dir.name
    run_dir.symlink_to(story.run_dir)
    with pytest.raises(OtherSettings) as error:
        conduct(tmp_path, "vae", **{option: value})
    assert str(error.value) == message.format(run_dir)


def test_a_damaged_final_checkpoint_is_trained_again_from_the_one_before(story, tmp_path):
    shutil.copytree(story.run_dir, tmp_path / story.run_dir.name)
    (run,) = planned(tmp_path, "vae").runs()
    newest = latest_checkpoint(run.path)
    newest.write_bytes(newest.read_bytes()[:1000])
    assert state_of(run) == "unfinished"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run_dir: (run_dir / "config.json").unlink(), "it has checkpoints, but no config.json"),
        (lambda run_dir: (run_dir / "config.json").write_text("{"), "expected the settings of a run as JSON"),
        (lambda run_dir: (run_dir / "metrics.jsonl").write_text("no\nmetrics\n"), "expected a JSON object"),
        (lambda run_dir: (run_dir / "metrics.jsonl").unlink(), "no metrics here"),
    ],
)
def test_a_corrupt_run_is_named_and_left_out(story, tmp_path, damage, message, capsys):
    run_dir = tmp_path / story.run_dir.name
    shutil.copytree(story.run_dir, run_dir)
    damage(run_dir)
    assert cli.main(["study", "preregistered", *arguments(tmp_path, "vae")]) == 1
    output = capsys.readouterr().err
    assert message in output
    assert run_dir.name in output


def test_a_training_that_diverges_is_no_failure(tmp_path, monkeypatch):
    gives_up = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('iteration 1: trouble'); sys.exit(1)"
    (run,) = planned(tmp_path, "vae").runs()
    line = [sys.executable, "-c", gives_up, str(run.path / DIVERGED)]
    monkeypatch.setattr("trainer.study.conduct.python_command", lambda *_: line)
    notes = []
    assert conduct(tmp_path, "vae", report=notes.append) == []
    assert notes[0] == "walker-parkour-vae-101: diverged: iteration 1: trouble"
    assert json.loads((tmp_path / "records" / f"{run.name}.json").read_text())["diverged"] == "iteration 1: trouble"
    assert conduct(tmp_path, "vae") == []  # and is not trained again


def test_the_remaining_time_counts_a_branch_from_its_trunk_on(tmp_path):
    trunk, mm, mc15 = runs = planned(tmp_path, "mm", "mm+mc15").runs()
    assert remaining_seconds(runs, runs, 1) is None
    for run, iterations, seconds in ((trunk, 1, 10.0), (mm, 3, 14.0), (mc15, 2, 20.0)):
        run.path.mkdir()
        line = json.dumps({"iteration": iterations, "time/total_seconds": seconds})
        (run.path / "metrics.jsonl").write_text(line + "\n")
    # mm: 10 s an iteration of the trunk, 2 of the branch; mc15: 10; left are 13 iterations of mm and 14 of mc15
    assert remaining_seconds(runs, [mm, mc15], 1) == 13 * 6 + 14 * 10
    assert remaining_seconds(runs, [mm, mc15], 2) == 14 * 10
    assert remaining_seconds(runs, [], 2) == 0


def test_a_record_of_the_first_version_is_refused_by_it(tmp_path):
    plan = planned(tmp_path, "vae")
    path = record_path(plan.runs()[0], plan.records)
    path.parent.mkdir()
    path.write_text(json.dumps({"settings": {}, "evaluation_settings": {"level": 0}, "curves": {}}))
    with pytest.raises(OtherSettings, match=r"vae-101\.json: a record of version 0\.1\.0, of another study"):
        conduct(tmp_path, "vae")


def test_what_a_seed_shares(tmp_path):
    """Seeds are pairs: the first observations, and among methods on the VAE's network the initial weights."""
    runners = {name: small(tmp_path / name, name) for name in ("vae", "mm", "p3", "z-mean", "spr")}
    first = runners.pop("vae")
    for name, runner in runners.items():
        ours, theirs = (each.env.get_observations() for each in (first, runner))
        assert all(torch.equal(ours[group], theirs[group]) for group in ours.keys())  # noqa: SIM118
        if name != "spr":
            weights = first.algorithm.actor.state_dict()
            other = runner.algorithm.actor.state_dict()
            assert all(torch.equal(weights[key], other[key]) for key in weights)
