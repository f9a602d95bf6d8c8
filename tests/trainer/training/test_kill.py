"""A run that is killed again and again, wherever it is, loses nothing and ends as one that never was."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.trainer import nursery
from helpers.trainer.small_runs import assert_same

import trainer
from trainer.runs.checkpoint import checkpoint_path, latest_checkpoint, load_checkpoint
from trainer.runs.metrics import read_metrics

FAR = 1000
"""Iterations ahead that a life is to train, and never comes to."""
PATIENCE = 120.0
"""Seconds after which a life that does nothing has failed the test."""


class Lives:
    """Processes that train, one at a time."""

    def __init__(self, log: Path) -> None:
        self.log, self.child = log, 0
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(trainer.__file__).parents[1])}
        with log.open("w") as errors:
            self.nursery = subprocess.Popen(
                [sys.executable, nursery.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        assert self.nursery.stdout.readline() == b"ready\n", log.read_text()

    def begin(self, run_dir: Path, iterations: int) -> None:
        self.nursery.stdin.write(f"{run_dir} {iterations}\n".encode())
        self.nursery.stdin.flush()
        self.child = int(self.nursery.stdout.readline())

    def train(self, run_dir: Path, iterations: int) -> None:
        self.begin(run_dir, iterations)
        assert self.exit_code() == 0, self.log.read_text()

    def kill(self) -> None:
        os.kill(self.child, signal.SIGKILL)
        assert self.exit_code() == -signal.SIGKILL, self.log.read_text()

    def wait_for(self, condition: Callable[[], object], pause: float) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert not self.ended(), f"ended by itself: {self.log.read_text()}"
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(pause)

    def ended(self, patience: float = 0.0) -> bool:
        return bool(select.select([self.nursery.stdout], [], [], patience)[0])

    def exit_code(self) -> int:
        assert self.ended(PATIENCE), "still training"
        self.child = 0
        return int(self.nursery.stdout.readline())

    def close(self) -> None:
        if self.child:
            os.kill(self.child, signal.SIGKILL)
        self.nursery.stdin.close()
        self.nursery.wait()
        self.nursery.stdout.close()


@pytest.fixture
def lives(tmp_path):
    lives = Lives(tmp_path / "log")
    yield lives
    lives.close()


def newest_number(run_dir):
    path = latest_checkpoint(run_dir)
    return 0 if path is None else int(path.stem.removeprefix("model_"))


def newest_loaded(run_dir):
    """The iteration in the newest checkpoint, which must load; 0 where there is none yet."""
    path = latest_checkpoint(run_dir)
    return 0 if path is None else load_checkpoint(path, "walker-parkour")["iter"]


def half_written(run_dir):
    return {name for name in os.listdir(run_dir) if name.endswith(".tmp")}


def logged(run_dir):
    return len(read_metrics(run_dir)) if (run_dir / "metrics.jsonl").exists() else 0


def pace(lives, run_dir):
    """Seconds that the construction of a run and an iteration take here, to spread the kills over them."""
    began = time.time()
    lives.train(run_dir, 8)
    sixth, last = (checkpoint_path(run_dir, iteration).stat().st_mtime for iteration in (6, 8))
    iteration = (last - sixth) / 2
    return max(sixth - began - 6 * iteration, 0.0), iteration


def await_moment(lives, run, generator, construction, iteration):
    """Waits for some moment of a life: in its beginning, in any place of an iteration, or as it writes a file."""
    start, left, further = newest_number(run), half_written(run), generator.randrange(4)
    moment = generator.choice(["construction", "any", "any", "saving", "saving"])
    lives.begin(run, start + FAR)
    if moment == "construction":
        time.sleep(generator.uniform(0, construction))
    elif moment == "any":
        lives.wait_for(lambda: newest_number(run) > start + further, pause=0.001)
        time.sleep(generator.uniform(0, iteration))
    else:
        lives.wait_for(lambda: newest_number(run) >= start + further, pause=0.001)
        lives.wait_for(lambda: half_written(run) - left, pause=0)


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.sweep)])
def test_kills_lose_nothing(lives, tmp_path, kills):
    construction, iteration = pace(lives, tmp_path / "pace")
    generator, run, hits = random.Random(20261116), tmp_path / "run", Counter()
    run.mkdir()
    for number in range(kills):
        before, left = newest_loaded(run), half_written(run)
        await_moment(lives, run, generator, construction, iteration)
        lives.kill()
        after, rows = newest_loaded(run), logged(run)
        assert after >= before, f"kill {number}: iteration {before} was saved, {after} is left"
        assert rows >= after, f"kill {number}: {rows} iterations logged, {after} saved"
        assert len(list(run.glob("model_*.pt"))) <= nursery.KEEP + 2  # that of the switch, and one not yet pruned
        hits["killed"] += 1
        hits["as it wrote a file"] += bool(half_written(run) - left)
        hits["between log and checkpoint"] += rows > after
        hits["before it did anything"] += after == before
        hits["after several iterations"] += after > before + 1
    print(f"\n{dict(hits)}; {newest_loaded(run)} iterations in {kills} lives")
    assert hits["killed"] == kills
    if kills >= 50:  # by chance each of these moments comes several times; of few kills one may be missing
        assert all(hits[where] >= 3 for where in hits), hits

    target = max(newest_loaded(run), nursery.SWITCH_AT) + 3
    lives.train(run, target)
    lives.train(tmp_path / "whole", target)
    assert not half_written(run)
    assert_same(*(load_checkpoint(checkpoint_path(place, target)) for place in (run, tmp_path / "whole")))
    rows, expected = read_metrics(run), read_metrics(tmp_path / "whole")
    assert [row["iteration"] for row in rows] == list(range(1, target + 1))
    for ours, theirs in zip(rows, expected, strict=True):
        losses = {name: value for name, value in theirs.items() if name.startswith("loss/")}
        assert losses
        assert losses.items() <= ours.items()
