"""`p3 study`: the plan, what interrupts it, and what it makes of finished runs."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from helpers.trainer.small_runs import small

import trainer
from trainer import cli
from trainer.algorithms.presets import resolve
from trainer.config import TrainConfig
from trainer.engines.env import one_thread
from trainer.runs.checkpoint import latest_checkpoint
from trainer.runs.config_file import load_config, save_config
from trainer.runs.directory import locked
from trainer.runs.metrics import read_metrics
from trainer.study import cost
from trainer.study.analysis import PRIMARY, analyse, converged_at, summary
from trainer.study.conduct import conduct
from trainer.study.evaluation import FILE_NAME as EVALUATION
from trainer.study.evaluation import read_evaluation
from trainer.study.plan import STUDIES, EvalSettings, Settings
from trainer.study.section import merge
from trainer.study.state import SESSIONS, OtherSettings, in_use, state_of

PATIENCE = 300.0
"""Seconds after which something that should happen never will."""
TARGET = 16
EVALUATED = EvalSettings(difficulty=0.0, seconds=0.2, episodes=2, seed=1000)


def settings(directory, methods=("vae", "mm"), seeds=(1,), iterations=TARGET, **options):
    values = {"task": "walker-parkour", "num_envs": 8, "evaluation": EVALUATED, "reference": "vae"} | options
    return Settings(STUDIES["estimators"], directory, methods=methods, seeds=seeds, iterations=iterations, **values)


def arguments(directory, *methods, seeds=(1,)):
    chosen = ["--methods", *methods, "--seeds", *map(str, seeds), "--num-envs", "8", "--iterations", str(TARGET)]
    return ["estimators", "--dir", str(directory), *chosen, "--eval-seconds", "0.2", "--eval-episodes", "2"]


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
        self.directory, self.run_dir = directory, directory / "walker-parkour-vae-1"
        self.codes: dict[str, int] = {}
        self.reached: dict[str, int] = {}
        self.errors, self.output = "", ""

    def interrupt(self) -> None:
        def press_ctrl_c():
            wait_for(lambda: logged(self.run_dir) >= 2)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=press_ctrl_c)
        thread.start()
        self.codes["interrupted"] = cli.main(["study", *arguments(self.directory, "vae")])
        thread.join()
        self.reached["interrupted"] = self.newest()

    def kill(self) -> None:
        root = str(Path(trainer.__file__).parents[1])
        command = [sys.executable, "-m", "trainer.cli", "study", *arguments(self.directory, "vae")]
        study = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": root}, stderr=subprocess.DEVNULL)
        before = logged(self.run_dir)
        wait_for(lambda: logged(self.run_dir) > before)
        study.kill()
        study.wait()
        wait_for(lambda: in_use(self.run_dir) is None)  # the training was told, saved and left
        self.reached["killed"] = self.newest()

    def finish(self) -> None:
        """With a second run, whose checkpoint is of another method: its training refuses it."""
        other = self.directory / "walker-parkour-mm-1"
        shutil.copytree(self.run_dir, other)
        config = load_config(other / "config.json")
        save_config(dataclasses.replace(config, method="mm"), other / "config.json")
        with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()) as output:
            self.codes["finished"] = cli.main(["study", *arguments(self.directory, "vae", "mm")])
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
    done, failed = settings(story.directory).runs()
    assert state_of(done) == "trained"
    assert read_evaluation(done, EVALUATED)["mean"]["episodes"] == 2
    assert "walker-parkour-mm-1: failed: training ended with exit code 2" in story.errors
    assert "of method 'vae', this run is 'mm'" in story.errors
    assert state_of(failed) == "unfinished"
    assert "left out, not finished: mm (seed 1)" in story.errors
    assert "| `vae` | 1 |" in story.output
    assert json.loads((story.directory / "estimators.json").read_text())["runs"]["vae"]["1"]["eval_reward_mean"]


def test_what_is_done_is_not_done_again(story):
    before = {path: path.stat().st_mtime_ns for path in story.run_dir.iterdir()}
    assert conduct(settings(story.directory, methods=("vae",)), 1, print) == []
    assert {path: path.stat().st_mtime_ns for path in story.run_dir.iterdir()} == before


def test_a_run_in_use_is_waited_for(story):
    plan, notes = settings(story.directory, methods=("vae",)), []
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(story.run_dir))
        assert in_use(story.run_dir) == str(os.getpid())
        assert conduct(plan, 1, print, train=False) == []  # left alone

        def note(line):
            notes.append(line)
            if f"in use by process {os.getpid()}" in line:
                stack.close()

        assert conduct(plan, 1, note) == []
    assert "in use" in notes[0]
    assert notes[-1].startswith("1 of 1 runs done")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("num_envs", 16, "--num-envs: {} was trained with 8, this study has 16"),
        ("iterations", 9, "--iterations: {} was trained with 16, this study has 9"),
    ],
)
def test_other_settings_are_an_error_before_anything_starts(story, option, value, message):
    other = settings(story.directory, methods=("vae",), **{option: value})
    with pytest.raises(OtherSettings) as error:
        conduct(other, 1, print)
    assert str(error.value) == message.format(story.run_dir)


def test_a_damaged_final_checkpoint_is_trained_again_from_the_one_before(story, tmp_path):
    shutil.copytree(story.run_dir, tmp_path / story.run_dir.name)
    (run,) = settings(tmp_path, methods=("vae",)).runs()
    newest = latest_checkpoint(run.path)
    newest.write_bytes(newest.read_bytes()[:1000])
    assert state_of(run) == "unfinished"
    assert read_evaluation(run, EVALUATED) is None


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
    assert cli.main(["study", *arguments(tmp_path, "vae"), "--no-train"]) == 1
    output = capsys.readouterr().err
    assert message in output
    assert run_dir.name in output


def imitate(story, plan, reward, curve):
    """Finished runs with chosen numbers: `reward` of the evaluation and `curve` [T] of the training, by run."""
    for run in plan.runs():
        run.path.mkdir()
        for name in (EVALUATION, "metrics.jsonl", SESSIONS, f"model_{TARGET}.pt"):
            shutil.copy(story.run_dir / name, run.path)
        save_config(run.config, run.path / "config.json")
        kept = json.loads((run.path / EVALUATION).read_text())
        kept["results"]["mean"]["reward"] = reward(run.config.method, run.config.seed)
        (run.path / EVALUATION).write_text(json.dumps(kept))
        rows = read_metrics(run.path)
        for row, value in zip(rows, curve(run.config.method, run.config.seed), strict=True):
            row["episode/reward"] = value
        (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def imitated(story, tmp_path_factory):
    plan = settings(tmp_path_factory.mktemp("imitated"), methods=("vae", "mm", "mc(5)"), seeds=(1, 2, 3, 4, 5))
    gains = {"vae": [0, 0, 0, 0, 0], "mm": [1, 2, 3, 4, 5], "mc(5)": [1, -1, 1, -1, 2]}
    imitate(
        story,
        plan,
        reward=lambda method, seed: 10.0 + seed + gains[method][seed - 1],
        curve=lambda method, seed: [None, *(float(seed * i) for i in range(1, TARGET))],
    )
    return plan


def test_paired_tests_against_hand_computed_values(imitated):
    found = analyse(imitated).comparisons()
    assert list(found) == ["mm", "mc(5)"]
    mm, mc = found["mm"].test, found["mc(5)"].test
    # differences 1..5: mean 3, std √2.5, t = 3 √5 / √2.5 = √18, and 1 − p = sin θ (1 + cos²θ / 2) with tan θ = t / 2
    sine, cosine = math.sqrt(18 / 22), math.sqrt(4 / 22)
    assert (mm.count, mm.mean, mm.wins) == (5, 3.0, 5)
    assert mm.std == pytest.approx(math.sqrt(2.5))
    assert mm.t_p == pytest.approx(1 - sine * (1 + cosine**2 / 2))
    assert mm.sign_flip_p == 1 / 16
    # differences 1 −1 1 −1 2 sum to 2; by hand, 24 of the 32 assignments of signs have |sum| >= 2
    assert (mc.mean, mc.wins) == (pytest.approx(0.4), 3)
    assert mc.sign_flip_p == 24 / 32
    assert found["mm"].sign_flip_holm == 2 / 16
    assert found["mc(5)"].sign_flip_holm == 24 / 32


def test_bands_are_mean_and_std_over_seeds(imitated):
    analysis = analyse(imitated)
    steps, mean, std = analysis.bands("mm", "episode/reward")
    assert np.isnan(mean[0])
    assert np.allclose(mean[1:], 3.0 * np.arange(1, TARGET))
    assert np.allclose(std[1:], math.sqrt(2.5) * np.arange(1, TARGET))
    assert steps[-1] == TARGET * 8 * 24
    numbers = analysis.as_json()["runs"]["mm"]["3"]
    assert numbers["eval_reward_mean"] == 16.0
    assert numbers["eval_reward_lost"] == 16.0 - numbers["eval_reward_sample"] != 0.0
    assert numbers["area"] == pytest.approx(3 * (1 + TARGET - 1) / 2)
    assert (numbers["reward_half"], numbers["reward_end"]) == (3 * (TARGET / 2 - 1), 3 * (TARGET - 1))
    assert summary(list(analysis.values("vae", PRIMARY).values()), 2) == "13.00 ± 1.58"


def test_section_figures_and_page(imitated, tmp_path, capsys):
    page = tmp_path / "results.md"
    page.write_text(
        "# Results\n\nBefore.\n\n<!-- study:estimators begin -->\nobsolete\n<!-- study:estimators end -->\n\nAfter.\n"
    )
    line = [*arguments(imitated.directory, "vae", "mm", "mc(5)", seeds=(1, 2, 3, 4, 5)), "--docs", str(page)]
    assert cli.main(["study", *line]) == 0
    text = page.read_text()
    assert text.startswith("# Results\n\nBefore.\n\n<!-- study:estimators begin -->\n## ")
    assert text.endswith("<!-- study:estimators end -->\n\nAfter.\n")
    assert "obsolete" not in text
    assert "| `mm` | 5 | +3.00 ± 1.58 | 5 of 5 | 0.013 | 0.026 | 0.062 | 0.125 |" in text
    assert "16.00 ± 3.16" in text
    assert "By the mean: `mm`, `mc(5)`, `vae`." in text.replace("\n", " ")
    assert "p3 study estimators --dir DIR --methods vae mm 'mc(5)'" in text
    assert str(tmp_path) not in text
    assert "0.0625" in text
    assert f"torch {torch.__version__}" in text
    for figure in ("study-estimators-curves.svg", "study-estimators-final.svg"):
        assert f"(figures/{figure})" in text
        drawn = (tmp_path / "figures" / figure).read_text()
        assert all(method in drawn for method in ("vae", "mm", "mc(5)"))
    assert cli.main(["study", *line]) == 0  # the same again
    assert page.read_text() == text
    capsys.readouterr()


class TestRecords:
    """Finished runs without their directories."""

    @pytest.fixture
    def recorded(self, imitated, tmp_path):
        """The study on another machine: its records alone, in a directory that has no run."""
        here = dataclasses.replace(imitated, records=tmp_path / "records")
        assert conduct(here, 1, print) == []
        return dataclasses.replace(here, directory=tmp_path / "elsewhere")

    def test_say_what_the_runs_say(self, imitated, recorded):
        assert conduct(recorded, 1, print) == []
        assert not recorded.directory.exists()
        assert analyse(recorded).as_json() == analyse(imitated).as_json()
        versions = [[run.trained_with for run in analyse(plan).runs["mm"].values()] for plan in (imitated, recorded)]
        assert versions[0] == versions[1]
        assert f"torch {torch.__version__}" in versions[1][0][0]

    def test_of_other_settings_are_refused_before_anything_starts(self, recorded):
        other = dataclasses.replace(recorded, num_envs=16)
        with pytest.raises(OtherSettings, match=r"walker-parkour-vae-1.json: has num-envs 8, this study 16"):
            conduct(other, 1, print)
        longer = dataclasses.replace(recorded, evaluation=dataclasses.replace(EVALUATED, seconds=0.4))
        with pytest.raises(OtherSettings, match=r"has seconds 0\.2, this study 0\.4"):
            conduct(longer, 1, print)

    def test_of_levels_are_read_as_difficulties(self, imitated, recorded):
        """As version 0.1.0 wrote them: evaluated at a level of 0 to 5, with the level's curve."""
        for path in recorded.records.iterdir():
            content = json.loads(path.read_text())
            content["evaluation_settings"]["level"] = round(5 * content["evaluation_settings"].pop("difficulty"))
            content["curves"]["curriculum/level"] = [2.5 for _ in content["curves"].pop("curriculum/difficulty")]
            path.write_text(json.dumps(content))
        assert conduct(recorded, 1, print) == []
        found = analyse(recorded)
        assert {run.difficulty for runs in found.runs.values() for run in runs.values()} == {0.5}
        assert found.values("mm", PRIMARY) == analyse(imitated).values("mm", PRIMARY)
        higher = dataclasses.replace(recorded, evaluation=dataclasses.replace(EVALUATED, difficulty=0.4))
        with pytest.raises(OtherSettings, match=r"has difficulty 0\.0, this study 0\.4"):
            conduct(higher, 1, print)

    def test_that_are_damaged_are_named_and_left_out(self, recorded):
        path = recorded.records / "walker-parkour-mm-2.json"
        path.write_text(path.read_text()[:-100])
        found = analyse(recorded)
        assert list(found.runs["mm"]) == [1, 3, 4, 5]
        assert "expected the record of a run" in found.damaged["walker-parkour-mm-2"]


def test_merge_leaves_the_rest_and_refuses_half_a_section(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    merge(page, "cost", "first")
    merge(page, "cost", "second")
    merge(page, "other", "third")
    marked = "<!-- study:cost begin -->\nsecond\n<!-- study:cost end -->"
    assert page.read_text() == f"# Page\n\n{marked}\n\n<!-- study:other begin -->\nthird\n<!-- study:other end -->\n"
    page.write_text("<!-- study:cost begin -->\n")
    with pytest.raises(ValueError, match=r"--docs: .* expected a pair"):
        merge(page, "cost", "again")
    assert page.read_text() == "<!-- study:cost begin -->\n"


def test_convergence_needs_the_plateau_and_the_difficulty():
    reward = np.concatenate([np.full(3, np.nan), np.linspace(1, 10, 10), np.full(20, 10.0)])
    high, low = np.full(len(reward), 0.92), np.full(len(reward), 0.88)
    # 3 without an episode, 10 that rise; the window of 4 holds 10s alone after 3 more, or by 1 % after as many
    assert converged_at(reward, high, window=4) == 16
    assert converged_at(reward, low, window=4) is None
    assert converged_at(reward, np.full(len(reward), np.nan), window=4) == 16  # no curriculum
    assert converged_at(reward, high, window=400) is None
    assert converged_at(np.arange(30.0), high[:30], window=4) is None


def test_the_commands_are_the_planned_settings(tmp_path):
    for study in STUDIES.values():
        plan = settings(tmp_path, study.methods, study.seeds, reference=study.reference)
        for run in plan.runs():
            config = tyro.cli(TrainConfig, args=run.arguments(resume=False)[1:])
            assert resolve(config) == run.config
    assert len({run.path for run in plan.runs()}) == len(plan.runs())
    assert len(STUDIES["estimators"].seeds) >= 5
    assert len(STUDIES["baselines"].seeds) >= 3


def test_what_a_seed_shares(tmp_path):
    """The section says so: the first observations, and among methods on the VAE's network the initial weights."""
    runners = {name: small(tmp_path / name, name) for name in ("vae", "mm", "p3", "z-mean", "spr")}
    first = runners.pop("vae")
    for name, runner in runners.items():
        ours, theirs = (each.env.get_observations() for each in (first, runner))
        assert all(torch.equal(ours[group], theirs[group]) for group in ours.keys())  # noqa: SIM118
        if name != "spr":
            weights = first.algorithm.actor.state_dict()
            other = runner.algorithm.actor.state_dict()
            assert all(torch.equal(weights[key], other[key]) for key in weights)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--methods", "mm", "vaee"], "method: expected p3"),
        (["--methods", "vae", "mc", "mc(15)"], "--methods: mc15 more than once"),
        (["--methods", "mm"], "--reference: 'vae' is none of the methods mm"),
        (["--seeds", "1", "1"], "--seeds: 1 more than once"),
        (["--seeds", "1000"], "--eval-seed: 1000 is a seed of the trainings"),
        (["--num-envs", "0"], "--num-envs: expected at least 1, got 0"),
        (["--jobs", "0"], "--jobs: expected at least 1"),
        (["--task", "walker"], "--task: no task 'walker'"),
        (["--eval-difficulty", "6"], "--eval-difficulty: expected 0 to 1, got 6"),
        (["--docs", "nowhere.md"], "--docs: no page nowhere.md"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, capsys, line, message):
    assert cli.main(["study", "estimators", "--dir", str(tmp_path / "runs"), *line]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_studies_are_listed(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["study", "--help"])
    assert stop.value.code == 0
    output = capsys.readouterr().out
    assert all(f"\n  {name}" in output for name in ("estimators", "baselines", "cost", "scale"))


def test_cost_measures_time_and_memory(tmp_path, capsys):
    out, page = tmp_path / "cost.json", tmp_path / "page.md"
    page.write_text("# Page\n")
    line = ["--methods", "vae", "--num-envs", "2", "--repeats", "1", "--out", str(out), "--docs", str(page)]
    with one_thread():
        assert cli.main(["study", "cost", *line]) == 0
    found = json.loads(out.read_text())["costs"]["vae"]
    assert found["seconds"] > 0
    assert found["peak_bytes"] > 0
    assert "| `vae` |" in page.read_text()
    assert "| `vae` |" in capsys.readouterr().out


def test_cost_table_has_ratios_and_the_papers():
    costs = {"vae": cost.Cost(2.0, 100 * 2**20), "mc(50)": cost.Cost(5.0, 150 * 2**20), "z-mean": cost.Cost(1.0, None)}
    lines = cost.cost_table(costs).splitlines()
    assert lines[2] == "| `vae` | 2.00 | 1.00 | 1.00 | 100 | 1.00 | 1.00 |"
    assert lines[3] == "| `mc(50)` | 5.00 | 2.50 | 1.44 | 150 | 1.50 | 2.37 |"
    assert lines[4] == "| `z-mean` | 1.00 | 0.50 | – | – | – | – |"


def test_cost_needs_the_method_it_compares_with(capsys):
    assert cli.main(["study", "cost", "--methods", "mm"]) == 2
    assert "--methods: expected 'vae' among them" in capsys.readouterr().err
