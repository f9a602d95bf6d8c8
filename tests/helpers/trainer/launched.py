"""Trainings of two processes, as a user starts them, for tests that end one or all of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import trainer
from helpers import forked
from helpers.trainer.small_runs import FEW_UPDATES, small
from trainer.runs.checkpoint import latest_checkpoint, load_checkpoint

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trainer", "train")
P3_TRAIN = ("trainer", "train", "--processes", "2")
PATIENCE = 240.0
"""Seconds after which something that should have ended has failed the test; it is not what it takes."""
ROOT = Path(trainer.__file__).parents[1]


def environment(**more):
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths} | more


class Launched:
    """A training of two ranks, small and without an end, that has written its first checkpoint.

    Args:
        run_dir: Its directory; the log is beside it.
        launcher: What comes before the options of `p3 train`.
    """

    def __init__(self, run_dir, *launcher):
        self.log = run_dir.parent / "log"
        options = ["--task", "walker-parkour", "--method", "mm", "--num-envs", "4", "--iterations", "100000"]
        options += ["--save-interval", "2", "--run-dir", str(run_dir), "--no-tensorboard", "--diagnose-interval", "0"]
        options += ["--ppo.num-steps-per-env", "4", "--model.hidden-dims", "16", "16", "--keep-checkpoints", "3"]
        options += FEW_UPDATES
        with self.log.open("w") as log:
            self.process = forked.Program(
                "-m", *launcher, *options, env=environment(), stdout=log, stderr=log, start_new_session=True
            )
        self._wait_for(lambda: latest_checkpoint(run_dir) is not None)

    def _wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def worker(self, rank):
        """The process of a rank."""
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes() + b"\0":
                return int(child)
        raise AssertionError(f"no rank {rank}")

    def end(self):
        """Exit code and output."""
        code = self.process.wait(PATIENCE)
        return code, self.log.read_text()

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(PATIENCE)


def go_on(run_dir):
    """Two more iterations by one rank, from the newest checkpoint."""
    newest = load_checkpoint(latest_checkpoint(run_dir))
    runner = small(run_dir, "mm", newest["iter"] + 2, num_envs=4)
    runner.restore()
    assert runner.iteration == newest["iter"]
    runner.learn(quiet=True)
    assert load_checkpoint(latest_checkpoint(run_dir))["iter"] == newest["iter"] + 2
