"""The logic of `p3 gpu-check` on a fake device and a fake clock: order, time, resuming, failures, the archive."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import zipfile
from pathlib import Path

import pytest
import torch

from p3kernels.device_check import session as sessions
from p3kernels.device_check.device import Gpu, Interpreter
from p3kernels.device_check.journal import Journal
from p3kernels.device_check.one_step import DONE, OUT_OF_TIME, run_step
from p3kernels.device_check.outline import DEFAULT_MINUTES
from p3kernels.device_check.registry import STEPS as KERNEL_STEPS
from p3kernels.device_check.step import Case, Finding, Skip, Step, Task
from p3kernels.device_check.steps import sanitizer, timings
from trainer.cli import COMMANDS
from trainer.commands import gpu_check, gpu_check_run
from trainer.training import device_check as training

ROOT = Path(__file__).resolve().parents[3]


class FakeGpu(Gpu):
    """A GPU that answers questions and runs nothing."""

    def __init__(self, gpu="Fake H100", reason=None):
        self.gpu, self.reason = gpu, reason

    def unavailable(self):
        return self.reason

    def facts(self):
        return {"gpu": self.gpu, "capability": "sm_90", "gpus": 1, "nvidia_smi": "changes all the time"}

    def backends(self):
        return {"triton": "available", "cuda": "the native extension was not built"}


class Clock:
    """Moves when a case says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class World:
    """Steps made of case names; what ran, in order; and a process that may break."""

    def __init__(self, folder):
        self.folder, self.clock, self.device = folder, Clock(), FakeGpu()
        self.ran, self.endings, self.said = [], {}, []

    def step(self, name, *cases, seconds=60.0, skip=None):
        def made(_):
            if skip is not None:
                raise Skip(skip)
            return [self.case(name, *((case, 1.0, True) if isinstance(case, str) else case)) for case in cases]

        return Step(name, f"Does {name}.", seconds, made)

    def case(self, step, name, takes, outcome):
        def run():
            self.ran.append(f"{step}.{name}")
            self.clock.now += takes
            if isinstance(outcome, Exception):
                raise outcome
            return Finding(outcome, "as it was told", {"show": True})

        return Case(name, run)

    def start(self, step, seconds):
        """A process that ends after a case as `endings` says, else as it should."""
        ending = self.endings.pop(step.name, None)
        if ending is None:
            return run_step(step, self.device, self.folder, seconds, clock=self.clock, say=self.said.append)
        broken_case, code = ending
        journal = Journal(self.folder, step.name)
        for case in step.cases(None):
            journal.begin(case.name)
            if case.name == broken_case:
                return code
            journal.found(case.name, case.run(), 0.0)
        return DONE

    def check(self, *steps, minutes=15.0, redo=()):
        return gpu_check_run.check(steps, self.device, self.folder, minutes, self.start, redo, clock=self.clock)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "out")


def test_steps_run_in_order_and_one_archive_has_everything(world, capsys):
    assert world.check(world.step("first", "a", "b"), world.step("second", "c")) == 0
    assert world.ran == ["first.a", "first.b", "second.c"]
    said = capsys.readouterr().out
    assert "[1/2] first: Does first." in said
    assert "Please send back" in said
    with zipfile.ZipFile(world.folder / "gpu-check.zip") as archive:
        names = set(archive.namelist())
        report = archive.read("gpu-check/report.md").decode()
    expected = {"report.md", "machine.json", "steps/first.jsonl", "steps/second.jsonl"}
    assert names == {f"gpu-check/{name}" for name in expected}
    assert "| first | passed | 2 passed |" in report
    assert "Fake H100" in report


def test_what_is_done_is_not_done_again(world):
    steps = (world.step("first", "a"), world.step("second", "b", "c"))
    world.check(*steps)
    assert world.check(*steps) == 0
    assert world.ran == ["first.a", "second.b", "second.c"]
    assert world.check(*steps, redo=["second"]) == 0
    assert world.ran[3:] == ["second.b", "second.c"]


def test_the_time_is_kept_and_the_rest_done_by_the_next_call(world, capsys):
    """A minute: the first step has a share of it, the last one is not begun; the second call goes on in the middle."""
    steps = (
        world.step("slow", ("a", 30.0, True), ("b", 40.0, True), ("c", 10.0, True), seconds=300.0),
        world.step("last", "d"),
    )
    assert world.check(*steps, minutes=1.0) == 1
    assert world.ran == ["slow.a", "last.d", "slow.b"], "what is left goes to what is unfinished"
    assert "The time was up before slow" in capsys.readouterr().out
    assert world.check(*steps, minutes=1.0) == 0
    assert world.ran[3:] == ["slow.c"]


def test_a_step_that_fails_stops_no_other(world, capsys):
    steps = (
        world.step("wrong", ("a", 1.0, False), ("b", 1.0, RuntimeError("CUDA error\nmore")), "c"),
        world.step("right", "d"),
    )
    assert world.check(*steps) == 1
    assert world.ran == ["wrong.a", "wrong.b", "wrong.c", "right.d"]
    lines = Journal(world.folder, "wrong").cases
    assert lines["b"]["detail"] == "RuntimeError: CUDA error"
    assert "Traceback" in lines["b"]["numbers"]["traceback"]
    assert "wrong: what went wrong" in (world.folder / "report.md").read_text()
    assert world.check(*steps) == 1, "a failure stays one until the step is done again"
    assert len(world.ran) == 4


def test_a_case_that_breaks_its_process_is_named_and_the_others_run(world):
    world.endings["step"] = ("b", -11)
    assert world.check(world.step("step", "a", "b", "c")) == 1
    assert world.ran == ["step.a", "step.c"]
    line = Journal(world.folder, "step").cases["b"]
    assert (line["status"], line["detail"]) == ("crashed", "ended its process (signal SIGSEGV); see logs/step.txt")


def test_a_case_that_hangs_is_killed_and_named(world):
    world.endings["step"] = ("a", None)
    assert world.check(world.step("step", "a", "b")) == 1
    assert "did not end within" in Journal(world.folder, "step").cases["a"]["detail"]
    assert world.ran == ["step.b"]


def test_a_step_that_never_begins_is_given_up(world):
    world.endings["step"] = ("nothing of the kind", 1)
    assert world.check(world.step("step")) == 0, "a step without cases has none that can fail"
    world.start = lambda step, seconds: 1
    assert world.check(world.step("other", "a")) == 1
    assert "exit code 1" in Journal(world.folder, "other").cases["start"]["detail"]


def test_after_many_broken_processes_the_rest_is_left_out(world):
    names = "abcdefgh"
    order = iter(names)

    def always_broken(step, seconds):
        Journal(world.folder, step.name).begin(next(order))
        return -6

    world.start = always_broken
    assert world.check(world.step("step", *names)) == 1
    cases = Journal(world.folder, "step").cases
    assert [cases[name]["status"] for name in names[: sessions.MOST_CRASHES]] == ["crashed"] * sessions.MOST_CRASHES
    assert "left out after" in cases["the rest"]["detail"]


def test_a_kill_of_everything_loses_one_case_at_most(world):
    """What was under way is done again, and a line that was cut short counts as none."""
    journal = Journal(world.folder, "step")
    journal.begin("a")
    journal.found("a", Finding(True, "fine"), 0.1)
    journal.begin("b")
    with journal.path.open("a") as file:
        file.write('{"case": "b", "sta')
    assert world.check(world.step("step", "a", "b", "c")) == 0
    assert world.ran == ["step.b", "step.c"]
    assert set(journal.cases) == {"a", "b", "c"}


def test_what_cannot_run_here_is_told_and_no_failure(world, capsys):
    steps = (world.step("needs", skip="there is one GPU"), world.step("part", ("a", 1.0, Skip("no streams")), "b"))
    assert world.check(*steps) == 0
    said = capsys.readouterr().out
    assert "there is one GPU" in said
    assert "1 passed, 1 skipped" in said


def test_a_folder_of_another_machine_is_refused(world, capsys):
    assert world.check(world.step("step", "a")) == 0
    world.device = FakeGpu("Fake A100")
    assert world.check(world.step("step", "a")) == 2
    assert "another machine or installation (gpu Fake H100 → Fake A100)" in capsys.readouterr().err


def test_without_a_gpu_it_says_what_it_would_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(["--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().out
    assert "no GPU to check" in said
    for step in gpu_check_run.steps():
        assert f"{step.name}: {step.says}" in said
    assert not (tmp_path / "out").exists()


def test_the_steps_are_distinct_and_fill_the_default_time():
    steps = gpu_check_run.steps()
    assert len({step.name for step in steps}) == len(steps)
    assert set(steps) > set(KERNEL_STEPS)
    assert sum(step.seconds for step in steps) == 60 * DEFAULT_MINUTES
    assert all(re.fullmatch(r"[A-Z].*\.", step.says) for step in steps)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "--minutes: expected a positive number"),
        (["--only", "speed"], "no step 'speed'; the steps are environment"),
        (["--redo", "speed"], "no step 'speed'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        gpu_check.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_steps_process_is_started_killed_and_its_words_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "GRACE", 0.5)
    step = Step("step", "Does it.", 1.0, lambda task: [])
    said = sessions.started_by(lambda step, seconds: ["sh", "-c", "echo broken >&2; exit 7"], tmp_path)
    assert said(step, 5.0) == 7
    assert (tmp_path / "logs" / "step.txt").read_text() == "broken\n"
    hangs = sessions.started_by(lambda step, seconds: ["sleep", "60"], tmp_path)
    assert hangs(step, 0.0) is None


def test_a_step_stops_between_cases(world):
    step = world.step("step", ("a", 9.0, True), ("b", 9.0, True), ("c", 9.0, True))
    assert run_step(step, world.device, world.folder, 10.0, clock=world.clock) == OUT_OF_TIME
    assert world.ran == ["step.a", "step.b"]
    assert run_step(step, world.device, world.folder, 10.0, clock=world.clock) == DONE
    assert run_step(step, world.device, world.folder, 10.0, clock=world.clock) == DONE
    assert world.ran == ["step.a", "step.b", "step.c"]


def test_the_interpreter_needs_its_variable(monkeypatch, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert Interpreter().unavailable() is not None
    assert gpu_check.main(["--device", "cpu"]) == 2
    assert "TRITON_INTERPRET=1" in capsys.readouterr().out


def test_what_the_sanitizer_says():
    assert sanitizer.verdict(0, "========= ERROR SUMMARY: 0 errors", "log").passed
    wrong = sanitizer.verdict(86, "Invalid __global__ read\n========= ERROR SUMMARY: 3 errors", "log.txt")
    assert not wrong.passed
    assert wrong.detail == "exit code 86: ERROR SUMMARY: 3 errors; see logs/log.txt"
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" not in " ".join(sanitizer.command("memcheck", "triton"))


def test_a_short_training_is_judged():
    good = [{"iteration": i, "loss/value": 0.5, "loss/skipped_steps": 0.0} for i in range(1, training.ITERATIONS + 1)]
    assert training.judge(good).passed
    assert "ended before" in training.judge(good[:-1]).detail
    assert "loss/value is not finite" in training.judge([*good[:-1], {**good[-1], "loss/value": None}]).detail
    assert "2 steps left out" in training.judge([*good[:-1], {**good[-1], "loss/skipped_steps": 2.0}]).detail


class _Timed(Interpreter):
    """A GPU that is not there, for the names of what would be timed on it."""

    kind = "cuda"

    def backends(self):
        return dict.fromkeys(("reference", "triton", "cuda"), "available")


def test_the_fair_rival_and_ours_are_timed_at_equal_precision(monkeypatch, tmp_path):
    found = {case.name: case for case in timings.cases(Task(_Timed(), tmp_path, 60.0))}
    train = f"MM forward and backward, B = {timings.BATCH}"
    for precision in ("ieee", "tf32"):
        for way in (f"{timings.RIVAL}{precision}", f"ours, {precision}"):
            assert {f"{train}: {way}", f"{train}: {way}, CUDA graph"} <= found.keys()
        mixture = f"MC forward and backward, N = 15, B = {timings.BATCH}"
        assert {f"{mixture}: cuda, {precision}", f"{mixture}: triton, {precision}"} <= found.keys()
        assert f"rollout step, B = 4096: triton, {precision}" in found
    assert "rollout step, B = 4096: cuda, tf32" not in found
    settings = []
    monkeypatch.setattr(timings, "ROLLOUT", 3)
    monkeypatch.setattr(timings.bench, "captured", lambda call: call)
    monkeypatch.setattr(timings.bench, "count_launches", lambda call, device: 1)
    monkeypatch.setattr(
        timings.bench, "time_calls", lambda *_: settings.append(torch.get_float32_matmul_precision()) or [0.2]
    )
    assert found["rollout step, B = 4096: triton, tf32"].run().detail.startswith("0.200 ms, 1 kernels; the model's")
    assert found["rollout step, B = 4096: reference, ieee"].run().detail == "0.200 ms, 1 kernels"
    assert settings == ["high", "highest"]


def test_two_ways_of_an_update_are_compared(monkeypatch):
    """On a CPU stand-ins take the place of the updates: the same, another rounding, another direction, NaN."""
    begin, end = torch.zeros(4), torch.tensor([1.0, 2.0, 3.0, 4.0])
    ends = {"kernels": end, "reference": end}
    failed = {True: None, False: None}

    def updated(device, *, cuda_graph=False):
        backend = os.environ.get("P3_BACKEND", "kernels")
        return training.Updated(ends["graph" if cuda_graph else backend], failed[cuda_graph]), begin

    monkeypatch.setattr(training, "updated", updated)
    monkeypatch.delenv("P3_BACKEND", raising=False)
    assert training.by_kernels("cuda:0").passed
    assert "P3_BACKEND" not in os.environ
    ends["reference"] = end * (1 + 1e-3)
    assert training.by_kernels("cuda:0").passed
    ends["reference"] = end.flip(0)
    assert not training.by_kernels("cuda:0").passed
    ends["reference"] = end * math.nan
    assert not training.by_kernels("cuda:0").passed
    ends["graph"] = end.clone()
    assert training.by_graph("cuda:0").passed
    ends["graph"][0] += 1e-6
    assert not training.by_graph("cuda:0").passed
    failed[True] = "operation not permitted when stream is capturing"
    assert training.by_graph("cuda:0").detail == failed[True]


def test_an_update_is_the_same_twice(monkeypatch):
    monkeypatch.setattr(training, "ENVIRONMENTS", 4)
    one, begin = training.updated("cpu")
    other, again = training.updated("cpu")
    assert training.apart(one.weights, other.weights, begin, 0.0).passed
    assert torch.equal(begin, again)
    assert not torch.equal(one.weights, begin)


def test_the_notebook_names_commands_that_exist():
    notebook = json.loads((ROOT / "examples" / "colab_gpu_check.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["accelerator"]) == (4, "GPU")
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    called = re.findall(r"^!p3 (.+)$", "\n".join(code), flags=re.MULTILINE)
    assert any(line.startswith("gpu-check") for line in called)
    for line in called:
        name, *arguments = shlex.split(line)
        assert name in COMMANDS
        if name == "gpu-check":
            gpu_check.build_parser("p3 gpu-check").parse_args(arguments)
    assert all(cell.get("outputs", []) == [] for cell in notebook["cells"])
