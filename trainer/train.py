"""`p3 train`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from trainer.checkpoint import latest_checkpoint
from trainer.config import TrainConfig, load_config, resolve, save_config
from trainer.metrics import read_metrics
from trainer.report import write_report
from trainer.runner import Runner


def main(arguments: Sequence[str], prog: str = "p3 train") -> int:
    """Trains as the command line says; 0, or 2 for a wrong command line, or 130 after Ctrl-C with all saved."""
    config = tyro.cli(TrainConfig, args=list(arguments), prog=prog)
    try:
        config = _prepare(config)
        assert config.run_dir is not None
        runner = Runner(config)
        if config.resume:
            print(f"continuing from {runner.restore()}")
    except (ValueError, FileNotFoundError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    print(
        f"{config.task}, {config.method}, {config.num_envs} environments, to iteration {config.iterations}"
        f" -> {config.run_dir}"
    )
    interrupted = False
    try:
        runner.learn()
    except KeyboardInterrupt:
        interrupted = True
        print(f"interrupted; the last checkpoint is {latest_checkpoint(config.run_dir)}")
        print(f"go on with: {prog} --run-dir {config.run_dir} --resume")
    for line in _summary(config.run_dir):
        print(line)
    print(f"report: {write_report(config.run_dir).resolve()}")
    return 130 if interrupted else 0


def _prepare(config: TrainConfig) -> TrainConfig:
    """Resolved settings in an existing run directory; a resumed run keeps its own, but for the new target."""
    if config.resume:
        run_dir = resolve(config).run_dir
        assert run_dir is not None
        saved = _saved_config(run_dir)
        if config.iterations is not None:
            saved.iterations = config.iterations
        saved.max_minutes = config.max_minutes
        saved.resume, saved.run_dir = True, run_dir
        return saved
    config = resolve(config)
    assert config.run_dir is not None
    if latest_checkpoint(config.run_dir) is not None:
        raise ValueError(f"--run-dir: {config.run_dir} holds a run; add --resume to continue it, or name another")
    config.run_dir.mkdir(parents=True, exist_ok=True)
    (config.run_dir / "metrics.jsonl").unlink(missing_ok=True)
    save_config(config, config.run_dir / "config.json")
    return config


def _summary(run_dir: Path) -> list[str]:
    """How episodes were at the beginning and are at the end."""
    episodes = [row for row in read_metrics(run_dir) if row.get("episode/length") is not None]
    if not episodes:
        return ["no episode has ended yet"]
    first, last = episodes[min(2, len(episodes) - 1)], episodes[-1]
    return [
        f"{name}: {first[key]:.1f} at iteration {first['iteration']:.0f} -> {last[key]:.1f} at {last['iteration']:.0f}"
        for name, key in (("episode reward", "episode/reward"), ("episode length", "episode/length"))
    ]


def _saved_config(run_dir: Path) -> TrainConfig:
    path = run_dir / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"--resume: no config.json in {run_dir}")
    return load_config(path)
