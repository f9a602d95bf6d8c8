"""Planned studies: trunks and branches, judged checkpoints, records, and the tests of the pre-registration."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil

import pytest
import torch
import tyro

from trainer import cli
from trainer.algorithms.presets import resolve
from trainer.commands.study import StudyConfig
from trainer.commands.study_run import planned_of
from trainer.config import TrainConfig
from trainer.engines.mujoco.env import MujocoEnv
from trainer.runs.checkpoint import load_checkpoint
from trainer.runs.config_file import save_config
from trainer.runs.directory import DIVERGED
from trainer.study import judge
from trainer.study.arms import PLANS, STUDY_SEEDS, Contrast
from trainer.study.campaign import Campaign
from trainer.study.conduct import complete
from trainer.study.contrasts import contrast_tests, gather, steps_to
from trainer.study.figures import write_figures
from trainer.study.planned import Planned
from trainer.study.records import record_path
from trainer.study.section import write_section
from trainer.study.state import OtherSettings
from trainer.study.statistics import (
    equivalence_p,
    interval,
    one_sided_sign_flip_p,
    sign_flip_p,
)
from trainer.tasks import make_task

ARMS = ("mm", "mm+mc15")
SMALL = (
    *("--num-envs", "4", "--iterations", "3", "--trunk", "1", "--save-interval", "1", "--eval-checkpoints", "2"),
    *("--eval-interval", "2", "--eval-seconds", "0.2", "--eval-episodes", "3", "--eval-difficulties", "0", "0.4"),
    "--options=--ppo.num-steps-per-env 4 --ppo.num-learning-epochs 2 --ppo.num-mini-batches 2"
    " --model.hidden-dims 16 --eval-seconds 0.1",
)


def line(directory, *more, arms=ARMS, seeds=(101,)):
    chosen = ["--arms", *arms, "--seeds", *map(str, seeds), "--jobs", "1"]
    return ["--dir", str(directory / "runs"), "--records", str(directory / "records"), *chosen, *SMALL, *more]


def planned(directory, more=()) -> Planned:
    default = StudyConfig(arms=(), seeds=())
    return planned_of(PLANS["preregistered"], tyro.cli(StudyConfig, args=line(directory, *more), default=default))


class WithoutProcesses:
    """A `Pool` that works here and now: a process takes seconds to begin. test_conduct.py has those."""

    def __init__(self, size):
        self.size, self._done = size, []

    @property
    def running(self):
        return [key for key, _ in self._done]

    @property
    def free(self):
        return self.size - len(self._done)

    def start(self, key, command, log):
        log.parent.mkdir(parents=True, exist_ok=True)
        work = {"trainer.cli": cli.main, "trainer.study.judge": judge.main}[command[2]]
        with log.open("a") as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            self._done.append((key, work(command[3:])))

    def ended(self):
        done, self._done = self._done, []
        return done


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """One trunk and two branches of it, trained, judged and recorded."""
    directory = tmp_path_factory.mktemp("planned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.study.conduct.Pool", WithoutProcesses)
        assert cli.main(["study", "preregistered", *line(directory)]) == 0
    return directory


class TestExactTests:
    """Against answers that were counted by hand."""

    def test_eight_pairs_of_one_sign(self):
        differences = [0.01 * (index + 1) for index in range(8)]
        assert sign_flip_p(differences) == 2 / 256
        assert one_sided_sign_flip_p(differences) == 1 / 256
        assert one_sided_sign_flip_p([-value for value in differences]) == 1.0

    def test_one_sided_counts_ties(self):
        # of the 8 assignments of signs to 1, 1, -1, those with a sum of at least 1: one with 3, three with 1
        assert one_sided_sign_flip_p([1.0, 1.0, -1.0]) == 4 / 8

    def test_equivalence_is_the_larger_of_two(self):
        # all differences well within the margin: both shifted sets have one sign
        assert equivalence_p([0.02, -0.01, 0.0, 0.01, -0.02, 0.03, 0.0, -0.03], 0.1) == 1 / 256
        # at the margin on one side: [0.0, 0.0] is as large under every assignment
        assert equivalence_p([0.1, 0.1], 0.1) == 1.0
        # 0.1 + d = 0.15, 0.15, 0.05 and 0.1 - d = 0.05, 0.05, 0.15: each beaten by no other assignment
        assert equivalence_p([0.05, 0.05, -0.05], 0.1) == 1 / 8
        with pytest.raises(ValueError, match="margin: expected a positive number, got 0"):
            equivalence_p([0.1], 0)

    def test_intervals_are_students(self):
        low, high = interval([1.0, 2.0, 3.0])
        assert ((low + high) / 2, (high - low) / 2) == pytest.approx((2.0, 4.302653 / math.sqrt(3)), abs=1e-6)
        assert interval([1.0]) == (-math.inf, math.inf)


class TestContrasts:
    """On numbers whose answer is known."""

    CONTRASTS = (Contrast("a", "b", ""), Contrast("b", "c", ""), Contrast("c", "missing", ""))

    def made(self, **shifts):
        """Arms whose successes differ from 0.5 by these, seed by seed, at the mean; all alike when sampled."""
        spread = [0.000, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007]
        values = {
            arm: {
                "mean": {seed: 0.5 + shift + sign * spread[i] for i, seed in enumerate(STUDY_SEEDS)},
                "sample": dict.fromkeys(STUDY_SEEDS, 0.5),
            }
            for arm, (shift, sign) in shifts.items()
        }
        return contrast_tests(self.CONTRASTS, values, planned=6)

    def test_findings(self):
        big, small = self.made(a=(0.2, 1), b=(0.0, 0), c=(-0.05, 1))[::2]
        assert big.seeds == STUDY_SEEDS
        assert (big.p, big.wins) == (2 / 256, 8)
        assert big.mean == pytest.approx(0.2035)
        assert big.p_holm == small.p_holm == pytest.approx(6 * 2 / 256)  # the two least of six: 6 p, and 5 p below it
        assert big.equivalence_holm == 1.0
        assert big.finding == "a is better"
        assert (small.equivalence, small.mean) == (1 / 256, pytest.approx(0.0465))
        assert small.finding == "b is better, by less than 10 points"

    def test_no_difference_is_a_finding_and_noise_is_not(self):
        alike = self.made(a=(0.2, 1), b=(0.0, 0), c=(-0.05, 1))[1]
        assert (alike.latent, alike.mean, alike.p) == ("sample", 0.0, 1.0)
        assert alike.finding == "alike within 10 points"
        values = {
            "a": {"mean": dict(zip(STUDY_SEEDS, [0.9, 0.1] * 4, strict=True))},
            "b": {"mean": dict(zip(STUDY_SEEDS, [0.1, 0.8] * 4, strict=True))},
        }
        (noise,) = contrast_tests(self.CONTRASTS, values, planned=6)
        assert noise.finding == "undecided"

    def test_what_is_missing_counts_in_the_correction(self):
        values = {arm: {"mean": {1: x, 2: x, 3: x}} for arm, x in (("a", 0.9), ("b", 0.1))}
        (test,) = contrast_tests(self.CONTRASTS, values, planned=6)
        assert (test.p, test.p_holm) == (2 / 8, 1.0)

    def test_steps(self):
        curve = [(100.0, 0.1), (200.0, 0.5), (300.0, 0.4)]
        assert steps_to(0.5, curve) == 200.0
        assert steps_to(0.6, curve) == math.inf


class TestPlans:
    """What would be run."""

    @pytest.mark.parametrize("name", list(PLANS))
    def test_the_commands_are_the_planned_settings(self, tmp_path, name):
        plan = PLANS[name]
        whole = Planned(plan, tmp_path, tmp_path, plan.arms, plan.seeds[:1])
        runs = whole.runs()
        assert len({run.path for run in runs}) == len(runs) == len(plan.arms) + 1
        for run in runs:
            if run.trunk is None:
                assert resolve(tyro.cli(TrainConfig, args=run.arguments(resume=False)[1:])) == run.config
            else:
                given = run.arguments(resume=False)
                assert given[1:3] == ["--branch-from", f"{run.trunk.path}/model_310.pt"]
                assert run.config.seed == run.trunk.config.seed
                assert run.config.num_envs == 256
            assert run.target == (310 if run.arm == "mm-trunk" else 410)
        assert whole.size.judged == (380, 390, 400, 410)

    def test_branches_differ_from_their_trunk_in_what_the_arm_says_alone(self, tmp_path):
        plan = PLANS["pilot"]
        whole = Planned(plan, tmp_path, tmp_path, plan.arms, plan.seeds)
        same = {"run_dir": None, "branch_from": None, "iterations": None}
        by_arm = {run.arm: run for run in whole.runs()}
        mm, dual = by_arm["mm"], by_arm["mm+mc15-dual3"]
        assert mm.trunk is not None
        assert dataclasses.replace(mm.config, **same) == dataclasses.replace(mm.trunk.config, **same)
        ppo = dataclasses.replace(mm.config.ppo, dual_clip=3.0)
        expected = dataclasses.replace(mm.config, **same, method="mc15", ppo=ppo)
        assert dataclasses.replace(dual.config, **same) == expected

    def test_seeds_of_the_pilot_are_not_the_studys(self):
        assert not set(PLANS["pilot"].seeds) & set(PLANS["preregistered"].seeds)
        assert set(PLANS["table"].seeds) <= set(PLANS["preregistered"].seeds)
        assert len(PLANS["preregistered"].seeds) == 8
        assert len(PLANS["preregistered"].contrasts) == 3


def test_several_difficulties_side_by_side():
    task = make_task("walker-parkour")
    env = MujocoEnv(task, 6, num_threads=0, difficulty=(0.0, 0.4, 0.8))
    rows = [env.running.tiles[tile].difficulty for tile in env.running.tile_of.tolist()]
    assert rows == pytest.approx([0.0, 0.0, 0.4, 0.4, 0.8, 0.8])
    with pytest.raises(ValueError, match=r"difficulty: expected a number in \[0, 1\], got 2"):
        MujocoEnv(task, 6, num_threads=0, difficulty=(0.0, 2.0))


class TestStudy:
    """A trunk of one iteration and its branches."""

    def test_branches_continue_the_trunk(self, study):
        runs = {run.arm: run for run in planned(study).runs()}
        assert list(runs) == ["mm-trunk", *ARMS]
        assert load_checkpoint(runs["mm+mc15"].path / "model_3.pt")["method"] == "mc15"
        assert [path.name for path in sorted(runs["mm"].path.glob("model_*"))] == ["model_2.pt", "model_3.pt"]

    def test_records_have_the_last_checkpoints_and_the_curves(self, study):
        findings = gather(planned(study))
        assert not findings.unfinished
        assert not findings.damaged
        record, trunk = findings.records["mm+mc15"][101], findings.trunks[101]
        assert list(record.judged) == ["2", "3"]
        assert list(record.judged["3"]["sample"]) == ["0", "0.4"]
        assert record.success("mean") == 0.0  # nobody crosses a course in 0.2 s
        assert record.number("reward", "mean", "0") != record.number("reward", "mean", "0.4")
        assert (trunk.first_iteration, record.first_iteration) == (1, 2)
        assert record.curves["steps/total"].tolist() == [3 * 4 * 4]
        assert 0 <= record.last("loss/clip_fraction") <= 1
        assert record.last("loss/learning_rate") > 0
        assert [steps for steps, _ in trunk.evaluated + record.evaluated] == [16, 32, 48]
        assert findings.steps_to_half("mm")[101] == math.inf
        assert f"torch {torch.__version__}" in record.trained_with[0]
        assert record_path(planned(study).runs()[1], study / "records").stat().st_size < 20_000

    def test_what_is_done_is_not_done_again(self, study):
        files = [*study.glob("runs/*/*"), *study.glob("records/*")]
        before = {path: path.stat().st_mtime_ns for path in files}
        assert complete(Campaign(planned(study)), 1, print) == []
        assert {path: path.stat().st_mtime_ns for path in files} == before

    def test_records_alone_are_enough(self, study, tmp_path):
        (tmp_path / "records").symlink_to(study / "records")
        assert complete(Campaign(planned(tmp_path)), 1, print) == []
        assert not (tmp_path / "runs").exists()
        assert gather(planned(tmp_path)).as_json() == gather(planned(study)).as_json()

    def test_other_settings_are_refused(self, study):
        longer = planned(study)
        judging = dataclasses.replace(longer.size.judging, episodes=4)
        longer = dataclasses.replace(longer, size=dataclasses.replace(longer.size, judging=judging))
        with pytest.raises(OtherSettings, match="has episodes 3, this study 4"):
            complete(Campaign(longer), 1, print)

    def test_a_checkpoint_is_judged_once(self, study, capsys):
        run = planned(study).runs()[1]
        before = (run.path / judge.FILE_NAME).read_bytes()
        assert judge.main(judge.arguments(run, planned(study).size)) == 0
        assert capsys.readouterr().out == ""
        assert (run.path / judge.FILE_NAME).read_bytes() == before
        assert judge.main([str(run.path), "--iterations", "9"]) == 2
        assert "model_9.pt" in capsys.readouterr().err

    def test_a_branch_without_its_trunk_fails_and_says_so(self, study, tmp_path, capsys):
        """The trunk's directory is another process's, and the checkpoint never comes."""
        plan = planned(tmp_path)
        campaign = Campaign(plan)
        runs = [run for run in plan.runs() if run.trunk is not None]
        campaign.runs = lambda: runs
        failures = complete(campaign, 1, print)
        assert [failure.run.path.name for failure in failures] == [run.name for run in runs]
        assert "it needs" in failures[0].reason
        assert "model_1.pt, which walker-parkour-mm-trunk-101 did not leave" in failures[0].reason
        capsys.readouterr()

    def test_a_run_that_diverged_with_few_checkpoints_counts_with_success_0(self, study, tmp_path):
        shutil.copytree(study / "runs", tmp_path / "runs")
        runs = {run.arm: run for run in planned(tmp_path).runs()}
        (runs["mm"].path / "model_3.pt").unlink()
        (runs["mm"].path / DIVERGED).write_text("iteration 3: trouble\n")
        assert complete(Campaign(planned(tmp_path)), 1, print) == []
        findings = gather(planned(tmp_path))
        record = findings.records["mm"][101]
        assert (record.diverged, record.judged) == ("iteration 3: trouble", {})
        assert findings.success("mm", "mean") == findings.success("mm", "sample", "0.4") == {101: 0.0}
        assert findings.records["mm+mc15"][101].diverged is None
        assert len(findings.tests()) == 2  # it stays in: the contrast with the other branch is made
        assert "Diverged: mm of seed 101 (counts with success 0)." in write_section(findings, [], "")
        write_figures(findings, tmp_path)

    def test_a_run_that_diverged_later_is_judged_at_its_last_checkpoints(self, study, tmp_path):
        """As if one more iteration had been planned, which never came."""
        shutil.copytree(study / "runs", tmp_path / "runs")
        longer = planned(tmp_path, more=("--iterations", "4"))
        for run in longer.compared():
            save_config(run.config, run.path / "config.json")
            (run.path / DIVERGED).write_text("iteration 4: trouble\n")
        assert complete(Campaign(longer), 1, print) == []
        findings = gather(longer)
        assert list(findings.records["mm"][101].judged) == ["2", "3"]
        assert "mm of seed 101 (judged at iterations 2, 3)" in write_section(findings, [], "").replace("\n", " ")

    def test_branches_of_a_trunk_that_diverged_count_with_success_0(self, tmp_path):
        trunk = planned(tmp_path).runs()[0]
        trunk.path.mkdir(parents=True)
        (trunk.path / DIVERGED).write_text("iteration 1: trouble\n")
        assert complete(Campaign(planned(tmp_path)), 1, print) == []
        findings = gather(planned(tmp_path))
        assert findings.success("mm", "mean") == findings.success("mm+mc15", "mean") == {101: 0.0}
        reason = "its trunk walker-parkour-mm-trunk-101 did: iteration 1: trouble"
        assert findings.records["mm+mc15"][101].diverged == reason
        assert findings.trunks[101].diverged == "iteration 1: trouble"
        assert "| `mm` | – → – | – | – | – | – | 0 |" in write_section(findings, [], "")
        write_figures(findings, tmp_path)

    def test_tables_and_figures(self, study, tmp_path, capsys):
        """With records of eight seeds on which one arm is better by a fifth."""
        records, page = tmp_path / "records", tmp_path / "results.md"
        records.mkdir()
        page.write_text("# Results\n")
        for seed in STUDY_SEEDS:
            for path in study.glob("records/*.json"):
                content = json.loads(path.read_text())
                content["seed"] = content["settings"]["seed"] = seed
                for by_latent in content["judged"].values():
                    for by_grade in by_latent.values():
                        for numbers in by_grade.values():
                            numbers["success"] = 0.5 + (0.2 if content["arm"] == "mm+mc15" else 0.001 * (seed - 101))
                (records / path.name.replace("101", str(seed))).write_text(json.dumps(content))
        arguments = line(tmp_path, "--no-train", "--docs", str(page), seeds=STUDY_SEEDS)
        assert cli.main(["study", "preregistered", *arguments]) == 0
        text = page.read_text()
        assert "| `mm+mc15` | 8 | 70.0 ± 0.0 | 70.0 ± 0.0 | 0.0 ± 0.0 | 70 / 70 | 70 / 70 | – (0 of 8) |" in text
        row = "| `mm+mc15` − `mm` | z mean | 8 | +19.6 | +19.4 to +19.9 | 8 of 8 | 0.008 | 0.047 | 1.000 | 1.000 |"
        assert f"{row} mm+mc15 is better |" in text
        assert "p3 study preregistered --dir DIR --records RECORDS --arms mm mm+mc15" in text
        assert str(tmp_path) not in text
        for kind in ("success", "curves"):
            assert f"(figures/study-preregistered-{kind}.svg)" in text
            assert "mm+mc15" in (tmp_path / "figures" / f"study-preregistered-{kind}.svg").read_text()
        assert cli.main(["study", "preregistered", *arguments]) == 0  # the same again
        assert page.read_text() == text
        (records / "walker-parkour-mm-103.json").write_text("{")
        assert cli.main(["study", "preregistered", *arguments]) == 1
        assert "walker-parkour-mm-103: left out: " in capsys.readouterr().err
