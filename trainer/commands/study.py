"""`p3 study`: the list of studies and their settings. The work is imported after the command line is read."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from trainer.config.command_line import parse
from trainer.study.arms import PLANS, Judging, Size
from trainer.study.count_settings import COST, SCALE, CostConfig, ScaleConfig

COUNTS = {"cost": COST, "scale": SCALE}
"""Studies of one update, without a training, and what the list says about them."""
GONE = {
    "estimators": "p3 study preregistered, and p3 study table for the paper's methods",
    "baselines": "p3 study table",
}
"""Studies of version 0.1.0, with 64 environments and another measure, and what takes their place."""


@dataclass
class StudyConfig:
    """Train, judge and compare the arms of a planned study.

    Runs that are there are kept, those that were interrupted go on; call it again after whatever happened.
    """

    arms: tuple[str, ...]
    """Some of the study's arms."""
    seeds: tuple[int, ...]
    """Some of the study's seeds."""
    dir: Path = Path("runs/study")
    """Where the runs are, each in DIR/TASK-ARM-SEED; studies share it."""
    records: Path = Path("docs/data/study-records")
    """Where the record of every finished run is kept; a run that has one is not trained again."""
    task: str = Size.task
    """Task of every run, as for p3 train."""
    num_envs: int = Size.num_envs
    """Parallel environments of a run."""
    iterations: int = Size.iterations
    """Iterations of a run, those of its trunk included."""
    trunk: int = Size.trunk
    """Iterations of moment matching before a branch."""
    save_interval: int = Size.save_interval
    """Iterations between checkpoints."""
    eval_interval: int = Size.eval_interval
    """Iterations between evaluations while training, at difficulty 0.2; 0 for none."""
    eval_difficulties: tuple[float, ...] = Judging.difficulties
    """Difficulties of the courses that the last checkpoints are judged on."""
    eval_episodes: int = Judging.episodes
    """Episodes at each difficulty."""
    eval_seconds: float = Judging.seconds
    """Seconds of an episode."""
    eval_seed: int = Judging.seed
    """Seed of the courses and episodes."""
    eval_checkpoints: int = Judging.checkpoints
    """How many of a run's last checkpoints are judged."""
    options: str = ""
    """More options of p3 train for every run, in one text: --options="--set soft_until=2400"."""
    jobs: int | None = None
    """Processes at a time; one a core by default."""
    train: bool = True
    """With --no-train: read the records, and write tables and figures of what is there."""
    docs: Path | None = None
    """Merge the section into this Markdown page, and the figures into the figures directory beside it."""


def _help(prog: str) -> str:
    summaries = {name: plan.summary for name, plan in PLANS.items()} | COUNTS
    width = max(map(len, summaries)) + 2
    listing = "\n".join(f"  {name:<{width}}{text}" for name, text in summaries.items())
    return f"studies:\n{listing}\n\n'{prog} NAME --help' tells about one of them."


def main(arguments: Sequence[str], prog: str = "p3 study") -> int:
    """Runs the study that the command line names.

    Returns:
        0; 1 if a run failed; 2 for what cannot begin; 128 + the signal's number after Ctrl-C or SIGTERM, resumable.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} [-h] NAME ...",
        description="Experiments over several seeds that can be interrupted, and the cost of an update.",
        epilog=_help(prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", choices=[*PLANS, *COUNTS], help="one of the studies below")
    if arguments[:1] and (instead := GONE.get(arguments[0])):
        parser.error(f"{arguments[0]} is a study of version 0.1.0; in its place there is {instead}")
    name = parser.parse_args(list(arguments[:1])).name
    prog, rest = f"{prog} {name}", arguments[1:]
    if name in COUNTS:
        settings = parse(CostConfig if name == "cost" else ScaleConfig, rest, prog)
        return _work().run_count(settings, rest, prog)
    plan = PLANS[name]
    default = StudyConfig(arms=tuple(arm.name for arm in plan.arms), seeds=plan.seeds)
    config = parse(StudyConfig, rest, prog, default)
    return _work().run_plan(plan, config, rest, prog)


def _work() -> ModuleType:
    return importlib.import_module("trainer.commands.study_run")  # with it comes torch
