"""Trains in one forked process after the other, for tests that kill them: the slow imports happen once.

Says "ready"; then reads lines "RUN_DIR ITERATIONS", and answers each with the number of the process and, when that has
ended, its exit code.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import torch

from trainer.algorithms.presets import resolve
from trainer.config import ModelConfig, PpoConfig, TrainConfig
from trainer.runs.checkpoint import latest_checkpoint
from trainer.runs.directory import locked
from trainer.training.runner import Runner

KEEP = 3
SWITCH_AT = 20


def train(run_dir: Path, iterations: int) -> None:
    """As `p3 train` does, with --resume where there is something to resume from."""
    config = TrainConfig(
        task="walker-parkour",
        num_envs=4,
        iterations=iterations,
        switch_at=SWITCH_AT,
        run_dir=run_dir,
        save_interval=1,
        keep_checkpoints=KEEP,
        num_threads=1,
        tensorboard=False,
        ppo=PpoConfig(num_steps_per_env=4, num_learning_epochs=1, num_mini_batches=2),
        model=ModelConfig(hidden_dims=(16, 16)),
    )
    with locked(run_dir):
        runner = Runner(resolve(config))
        if latest_checkpoint(run_dir) is not None:
            runner.restore()
        else:
            (run_dir / "metrics.jsonl").unlink(missing_ok=True)
        runner.learn(quiet=True)


def live(run_dir: Path, iterations: int) -> None:
    """The forked process, which does not come back."""
    code = 1
    try:
        train(run_dir, iterations)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    torch.set_num_threads(1)  # a fork takes one thread along; a pool would be waited for in vain
    print("ready", flush=True)
    for line in sys.stdin:
        run_dir, iterations = line.rsplit(maxsplit=1)
        child = os.fork()
        if child == 0:
            live(Path(run_dir), int(iterations))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
