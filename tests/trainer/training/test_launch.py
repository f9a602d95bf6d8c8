"""`p3 train` on several processes: the ranks that torchrun would start, the same run again, a clean end."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import forked
from helpers.trainer.launched import P3_TRAIN, PATIENCE, TORCHRUN, Launched, environment, go_on
from helpers.trainer.small_runs import FEW_UPDATES, assert_same

from trainer import cli, processes
from trainer.algorithms.presets import resolve
from trainer.config import TrainConfig
from trainer.runs.checkpoint import latest_checkpoint, load_checkpoint
from trainer.runs.config_file import load_config
from trainer.runs.metrics import read_metrics

SMALL = [
    *("--task", "walker-parkour", "--method", "mm", "--num-envs", "6", "--ppo.num-steps-per-env", "6"),
    *(*FEW_UPDATES, "--model.hidden-dims", "16", "16", "--no-tensorboard", "--diagnose-interval", "2"),
]


def train(temporary, *command):
    """Runs to the end, with its temporary files in a directory of their own."""
    done = forked.python("-m", *command, env=environment() | {"TMPDIR": str(temporary)})
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was continued by as many processes, and one of torchrun, without interruption, continued by one."""
    directory = tmp_path_factory.mktemp("processes")
    temporary = tmp_path_factory.mktemp("temporary")
    outputs = {
        "begun": train(temporary, *P3_TRAIN, *SMALL, "--iterations", 2, "--run-dir", directory / "parts"),
        "parts": train(temporary, "trainer", "train", "--run-dir", directory / "parts", "--resume", "--iterations", 4),
        "torchrun": train(temporary, *TORCHRUN, *SMALL, "--iterations", 4, "--run-dir", directory / "torchrun"),
    }
    alone = ("--resume", "--iterations", "6", "--processes", "1")
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert cli.main(["train", "--run-dir", str(directory / "torchrun"), *alone]) == 0
    outputs["alone"] = said.getvalue()
    assert not list(temporary.glob("p3-*"))
    return directory, outputs


def test_the_processes_are_the_ranks_of_torchrun_and_a_resumed_run_goes_on_bit_for_bit(runs):
    directory, outputs = runs
    assert "continuing from" in outputs["parts"].stdout
    assert "6 environments over 2 processes, to iteration 4" in outputs["parts"].stdout
    whole, parts = (load_checkpoint(directory / name / "model_4.pt") for name in ("torchrun", "parts"))
    assert len(whole["other_ranks"]) == 1
    assert_same(whole, parts)
    rows = [read_metrics(directory / name)[:4] for name in ("torchrun", "parts")]
    for ours, theirs in zip(*rows, strict=True):
        losses = {name: value for name, value in theirs.items() if name.startswith(("loss/", "reward/", "steps/"))}
        assert losses.items() <= ours.items()
    assert load_config(directory / "parts" / "config.json").processes == 2


def test_one_process_says_all_that_is_said(runs):
    directory, outputs = runs
    lines = outputs["begun"].stdout.splitlines()
    assert lines[0] == f"walker-parkour, mm, 6 environments over 2 processes, to iteration 2 -> {directory / 'parts'}"
    assert lines[-1] == f"report: {directory / 'parts' / 'report.html'}"
    assert outputs["begun"].stderr.count("iteration 2/2") == 1


def test_another_number_of_processes_begins_new_episodes(runs):
    directory, outputs = runs
    assert "saved by 2 ranks, continued by 1: every environment begins a new episode" in outputs["alone"]
    last = load_checkpoint(directory / "torchrun" / "model_6.pt")
    assert (last["iter"], last["other_ranks"]) == (6, [])


@pytest.fixture
def launched(tmp_path):
    launched = Launched(tmp_path / "run", *P3_TRAIN)
    yield launched
    launched.close()


def assert_gone(*numbers):
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{number}").exists() for number in numbers):
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.05)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_killed_process_ends_the_run_with_its_last_checkpoint(launched, tmp_path, rank):
    workers = [launched.worker(0), launched.worker(1)]
    os.kill(workers[rank], signal.SIGKILL)
    code, output = launched.end()
    assert code == 1
    assert f"rank {rank} of 2 was killed by SIGKILL" in output, output[-3000:]
    assert f"go on with: p3 train --run-dir {tmp_path / 'run'} --resume" in output
    assert output.count("report: ") == 1
    assert_gone(*workers)
    go_on(tmp_path / "run")


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.sweep)]
)
def test_a_signal_saves_and_ends(launched, tmp_path, number, expected):
    workers = [launched.worker(0), launched.worker(1)]
    os.kill(launched.process.pid, number)
    code, output = launched.end()
    assert code == expected
    assert output.count("interrupted; the last checkpoint is") == 1, output[-3000:]
    assert "killed" not in output
    assert_gone(*workers)
    last = load_checkpoint(latest_checkpoint(tmp_path / "run"))
    assert last["iter"] == read_metrics(tmp_path / "run")[-1]["iteration"]  # nothing that was trained is lost
    assert len(last["other_ranks"]) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a process of its parent's death")
def test_without_their_parent_the_processes_save_and_end(launched, tmp_path):
    workers = [launched.worker(0), launched.worker(1)]
    launched.process.kill()
    launched.process.wait()
    assert_gone(*workers)
    last = load_checkpoint(latest_checkpoint(tmp_path / "run"))
    assert last["iter"] == read_metrics(tmp_path / "run")[-1]["iteration"]


def test_a_signal_before_the_training_is_no_traceback(tmp_path):
    command = ("-m", *P3_TRAIN, *SMALL, "--run-dir", tmp_path / "run")
    with (tmp_path / "log").open("w") as log:
        process = forked.Program(*command, env=environment(), stdout=log, stderr=log)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_default_is_a_process_a_core(monkeypatch):
    monkeypatch.setattr("trainer.algorithms.presets.cores", lambda: 12)
    assert resolve(TrainConfig()).processes == 8  # of 256 environments
    assert resolve(TrainConfig(num_envs=264)).processes == 12
    assert resolve(TrainConfig(num_envs=40)).processes == 2  # 16 or more each
    assert resolve(TrainConfig(num_envs=31)).processes == 1
    assert resolve(TrainConfig(num_threads=12)).processes == 1
    assert resolve(TrainConfig(engine="mjlab")).processes == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--processes", "4"), "--num-envs: 6 do not divide evenly over 4 processes"),
        (("--processes", "0"), "--processes: expected at least 1, got 0"),
        (("--processes", "6", "--ppo.num-mini-batches", "8"), "8 is more than the rollout's 6 samples"),
    ],
)
def test_what_cannot_be_is_refused_before_a_process_is_started(tmp_path, capsys, options, message):
    assert cli.main(["train", *SMALL, "--run-dir", str(tmp_path / "run"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_other_processes_than_torchruns_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert cli.main(["train", *SMALL, "--run-dir", str(tmp_path / "run"), "--processes", "2"]) == 2
    assert "--processes: 1 were started, expected as many, got 2" in capsys.readouterr().err


def test_idle_cores_are_told_of(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("trainer.algorithms.presets.cores", lambda: 3)
    monkeypatch.setattr("trainer.commands.train_run.cores", lambda: 3)
    monkeypatch.setattr("trainer.commands.train_run.launch", lambda arguments, number, prog: _Ended(arguments, number))
    assert cli.main(["train", "--num-envs", "64", "--run-dir", str(tmp_path)]) == 0
    assert "64 environments divide evenly over 2 of 3 processes; --num-envs 66 would use all" in capsys.readouterr().out


class _Ended:
    """As if the processes that are asked for had trained."""

    def __init__(self, arguments, number):
        assert arguments[-2:] == ["--processes", "2"]
        assert number == 2
        self.code, self.first_is_lost = 0, False


@pytest.mark.parametrize(("text", "expected"), [("150000 100000", 2), ("max 100000", 8), ("50000 100000", 1), ("", 8)])
def test_a_containers_quota_counts(tmp_path, monkeypatch, text, expected):
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(processes, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert processes.cores() == expected


def test_openmp_does_not_spin():
    """What is set before torch is imported holds for all that is done; the help is what needs no torch."""
    program = "import contextlib, os\nfrom trainer import cli\n"
    program += "with contextlib.suppress(SystemExit): cli.main(['train', '--help'])\n"
    program += "print(os.environ['OMP_WAIT_POLICY'])"
    bare = {name: value for name, value in environment().items() if name != "OMP_WAIT_POLICY"}
    command = [sys.executable, "-c", program]
    for given, expected in (({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")):
        done = subprocess.run(command, env=bare | given, capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert done.stdout.splitlines()[-1] == expected


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux tells batch work apart")
def test_a_rank_tells_the_system_that_it_computes_for_hours():
    code = "import os; from trainer.processes import yield_later; {}yield_later(); print(os.sched_getscheduler(0))"
    for before, expected in (
        ("", os.SCHED_BATCH),
        ("os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); ", os.SCHED_IDLE),  # as its user has chosen
    ):
        done = forked.python("-c", code.format(before))
        assert done.stdout.strip() == str(expected), done.stderr
    worker = subprocess.Popen(
        [sys.executable, "-m", "trainer.training.worker", "--help"], stdout=subprocess.PIPE, env=environment()
    )
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert os.sched_getscheduler(worker.pid) == os.SCHED_BATCH
    worker.communicate()


@pytest.mark.skipif(platform.machine() not in processes._SCHED_SETATTR, reason="the system call's number is not known")
@pytest.mark.skipif(tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (6, 12), reason="Linux from 6.12 on")
def test_a_rank_has_its_share_of_a_core_in_long_pieces():
    """And as much of it as before: `nice` is kept."""
    code = (
        "import ctypes, os, platform, struct\n"
        "from trainer.processes import _SCHED_SETATTR, yield_later\n"
        "os.nice(5)\n"
        "yield_later()\n"
        "found = ctypes.create_string_buffer(48)\n"
        "number = _SCHED_SETATTR[platform.machine()] + 1  # sched_getattr\n"
        "assert ctypes.CDLL(None).syscall(number, 0, found, 48, 0) == 0\n"
        "_, policy, _, nice, _, slice_, _, _ = struct.unpack('=IIQiIQQQ', found.raw)\n"
        "print(policy == os.SCHED_BATCH, nice == os.getpriority(os.PRIO_PROCESS, 0) >= 5, slice_)\n"
    )
    done = forked.python("-c", code)
    assert done.stdout.split() == ["True", "True", "100000000"], done.stderr
