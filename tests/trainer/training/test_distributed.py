"""Two ranks on gloo: the update of one rank with everything, the same decisions, the same run again, a clean end."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
import torch
from helpers import forked
from helpers.trainer import two_ranks
from helpers.trainer.launched import PATIENCE, TORCHRUN, Launched, environment, go_on
from helpers.trainer.small_runs import assert_same, small

from trainer.models.ranks import Ranks
from trainer.runs.checkpoint import latest_checkpoint, load_checkpoint
from trainer.runs.metrics import read_metrics


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(directory):
    """What each of two ranks saw."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    processes = []
    for rank in range(2):
        with (directory / f"{rank}.log").open("w") as log:
            own = environment(RANK=str(rank), LOCAL_RANK=str(rank), **common)
            program = (two_ranks.__file__, directory / f"{rank}.pt")
            processes.append(forked.Program(*program, env=own, stdout=log, stderr=log))
    try:
        for rank, process in enumerate(processes):
            assert process.wait(PATIENCE) == 0, (directory / f"{rank}.log").read_text()[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [torch.load(directory / f"{rank}.pt") for rank in range(2)]


def furthest(ours, theirs):
    """The largest difference of any two numbers."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        ours, theirs = list(ours.values()), list(theirs.values())
    pairs = zip(ours, theirs, strict=True)
    return max(float((torch.as_tensor(one) - torch.as_tensor(other)).abs().max()) for one, other in pairs)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "case", [*two_ranks.METHODS, "per minibatch", *(f"mirrored {name}" for name in two_ranks.MIRRORED)]
)
def test_two_ranks_update_as_one_with_everything(results, case, rank):
    """In float64, to 1e-12: only the order of the sums is another. A mean of the ranks' own means, of valid steps or of
    advantages, would be off by 1e-3 and more; Adam turns a gradient's wrong sign into a whole step of 1e-3."""
    found = results[rank][case]
    whole, part = found["whole"], found["part"]
    assert furthest(found["before"], whole["weights"]) > 1e-3
    for name in ("weights", "statistics", "adam"):
        assert furthest(whole[name], part[name]) < 1e-12, name
    for name, loss in whole["losses"].items():  # squared returns of about 1000 among them
        tolerance = 1e-7 if name == "clip_fraction" else 1e-11  # that is a mean in float32
        assert abs(loss - part["losses"][name]) < tolerance, name
    assert whole["learning_rate"] == part["learning_rate"]
    own = slice(8 * rank, 8 * rank + 8)
    assert furthest([whole["advantages"][:, own]], [part["advantages"]]) < 1e-12
    assert part["progress"] == 1.5  # one rank's rewards were 1, the other's 2


def test_in_float32(results):
    """To rounding as well: the weights, of size 1, moved by 3e-3 and differ by less than four units in the last place
    of a number below one."""
    for rank in range(2):
        found = results[rank]["float32"]
        assert furthest(found["before"], found["whole"]["weights"]) > 1e-3
        assert furthest(found["whole"]["weights"], found["part"]["weights"]) < 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("case", [*two_ranks.METHODS, "float32"])
def test_ranks_stay_the_same_bit_for_bit(results, case):
    first, second = (result[case]["part"] for result in results)
    for name in ("weights", "statistics", "losses", "learning_rate", "progress"):
        assert_same({name: first[name]}, {name: second[name]})


def test_what_is_not_finite_on_one_rank_is_left_out_on_all(results):
    first, second = (result["not finite"] for result in results)
    assert first["losses"]["skipped_steps"] == second["losses"]["skipped_steps"] == 2  # it is in one minibatch an epoch
    assert_same(first["after_update"], second["after_update"])
    assert first["restored"] == second["restored"] == 1
    for result in (first, second):
        assert_same(result["mended"], result["after_update"])
    left_out, mended = first["reports"]
    assert left_out == "update 2: returns has NaN (rank 1); step left out"
    assert "actor.mlp.0.weight has NaN (rank 1); back to" in mended


def test_ranks_begin_with_the_same_weights_and_other_environments(results):
    first, second = (result["runs"]["drawn"] for result in results)
    assert_same(first["weights"], second["weights"])
    assert not torch.equal(first["observations"]["proprio"], second["observations"]["proprio"])


def test_a_resumed_run_of_two_ranks_is_the_run_that_was_not_interrupted(results, directory):
    whole, parts = (load_checkpoint(directory / name / "model_4.pt") for name in ("whole", "parts"))
    assert_same(whole, parts)
    assert len(whole["other_ranks"]) == 1
    rows = [read_metrics(directory / name) for name in ("whole", "parts")]
    for ours, theirs in zip(*rows, strict=True):
        losses = {name: value for name, value in theirs.items() if name.startswith(("loss/", "reward/", "steps/"))}
        assert losses.items() <= ours.items()
    assert rows[0][-1]["steps/total"] == 4 * 6 * 6  # the environments of both
    first, second = (result["runs"] for result in results)
    assert_same(first["weights"], second["weights"])
    assert_same(first["statistics"], second["statistics"])
    assert first["totals"] == second["totals"] == (4 * 6 * 6, 0)


def test_all_ranks_begin_with_the_networks_that_the_first_one_read(results):
    for result in (result["runs"] for result in results):
        assert_same(result["warm"], (result["weights"], result["statistics"]))


def test_ranks_divide_an_evaluation_and_find_what_one_finds(results, directory):
    for result in (result["runs"]["evaluated"] for result in results):
        together, alone = result["together"], result["alone"]
        assert together.pop("seconds") > 0
        assert alone.pop("seconds") > 0
        assert together == {"iteration": 1, **alone}
    assert load_checkpoint(directory / "evaluated" / "best.pt")["iter"] == 1


def test_one_rank_continues_what_two_began(results, directory):
    notes, num_envs, terrains = results[0]["runs"]["alone"]
    assert notes[0] == "saved by 2 ranks, continued by 1: every environment begins a new episode"
    assert num_envs == 6
    assert terrains == results[0]["runs"]["terrains"]  # each keeps its own
    last = load_checkpoint(directory / "fewer" / "model_4.pt")
    assert last["iter"] == 4
    assert last["other_ranks"] == []


def test_environments_must_divide(tmp_path):
    with pytest.raises(ValueError, match="--num-envs: 6 do not divide evenly over 4 ranks"):
        small(tmp_path, ranks=Ranks(0, 4))


def test_devices():
    assert Ranks(3, 8, 1, 2).device("cuda") == "cuda:1"
    assert Ranks(3, 8, 1, 2).device("cpu") == "cpu"
    assert Ranks().device("cuda:5") == "cuda:5"
    with pytest.raises(ValueError, match="--device: with 8 ranks expected cpu or cuda"):
        Ranks(3, 8, 1, 2).device("cuda:0")


def test_cores_are_divided_by_local_ranks(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(10)))
    assert Ranks().threads() is None
    assert Ranks(0, 8, 0, 4).threads() == 2
    assert Ranks(0, 64, 0, 64).threads() == 1


@pytest.fixture
def launched(tmp_path):
    launched = Launched(tmp_path / "run", *TORCHRUN)
    yield launched
    launched.close()


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.sweep)])
def test_a_killed_rank_ends_the_run_with_a_usable_checkpoint(launched, tmp_path, rank):
    survivor = launched.worker(1 - rank)
    os.kill(launched.worker(rank), signal.SIGKILL)
    code, output = launched.end()
    assert code != 0
    assert f"rank {1 - rank}: another rank is gone" in output, output[-3000:]
    assert not Path(f"/proc/{survivor}").exists()
    if rank == 1:  # the first one is left to tell more
        assert f"-m trainer train --run-dir {tmp_path / 'run'} --resume" in output
    go_on(tmp_path / "run")


@pytest.mark.sweep
def test_sigterm_saves_and_ends(launched, tmp_path):
    """As of `p3 train` with two processes, in test_launch.py."""
    os.kill(launched.process.pid, signal.SIGTERM)
    code, output = launched.end()
    assert code != 0
    assert "interrupted; the last checkpoint is" in output, output[-3000:]
    last = load_checkpoint(latest_checkpoint(tmp_path / "run"))
    assert last["iter"] == read_metrics(tmp_path / "run")[-1]["iteration"]  # nothing that was trained is lost
    assert len(last["other_ranks"]) == 1
