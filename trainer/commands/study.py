"""`p3 study`: the list of studies, and a planned study from its runs to its tables."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.config.command_line import parse
from trainer.processes import cores
from trainer.runs.files import replace_file
from trainer.study import cost, scale
from trainer.study.arms import PLANS, Arm, Judging, Plan, Planned, Size
from trainer.study.campaign import Campaign
from trainer.study.conduct import complete
from trainer.study.contrasts import Findings, gather
from trainer.study.figures import write_figures
from trainer.study.markdown import merge
from trainer.study.section import arms_table, tests_table, write_section
from trainer.training.interrupt import Interrupted

COUNTS = {"cost": cost, "scale": scale}
"""Studies of one update, without a training."""
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
    """Length of an episode."""
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
    summaries = {name: plan.summary for name, plan in PLANS.items()}
    summaries |= {name: module.SUMMARY for name, module in COUNTS.items()}
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
    if name in COUNTS:
        return COUNTS[name].main(arguments[1:], prog=f"{prog} {name}")
    return _study(PLANS[name], arguments[1:], f"{prog} {name}")


def _study(plan: Plan, arguments: Sequence[str], prog: str) -> int:
    default = StudyConfig(arms=tuple(arm.name for arm in plan.arms), seeds=plan.seeds)
    config = parse(StudyConfig, arguments, prog, default)
    failed = False
    try:
        planned = planned_of(plan, config)
        jobs = cores() if config.jobs is None else config.jobs
        if config.docs is not None and not config.docs.is_file():
            raise FileNotFoundError(f"--docs: no page {config.docs}")
        if config.train:
            runs = len(planned.runs())
            print(f"{plan.name}: {runs} runs in {planned.directory}, {jobs} at a time", flush=True)
            failed = bool(complete(Campaign(planned), jobs, _report))
        failed |= _tell(gather(planned), config, f"{prog} {shlex.join(_shown(arguments))}".strip())
    except Interrupted as stop:
        print(f"interrupted; go on with: {prog} {shlex.join(arguments)}")
        return 128 + stop.number
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def planned_of(plan: Plan, config: StudyConfig) -> Planned:
    """The study that a command line describes.

    Raises:
        ValueError: Naming the option that cannot be.
    """
    known: dict[str, Arm] = {arm.name: arm for arm in plan.arms}
    for name in config.arms:
        if name not in known:
            raise ValueError(f"--arms: expected some of {', '.join(known)}, got {name!r}")
    judging = Judging(
        config.eval_difficulties,
        config.eval_episodes,
        config.eval_seconds,
        config.eval_seed,
        config.eval_checkpoints,
    )
    size = Size(
        config.task,
        config.num_envs,
        config.iterations,
        config.trunk,
        config.save_interval,
        config.eval_interval,
        judging,
        tuple(shlex.split(config.options)),
    )
    return Planned(plan, config.dir, config.records, tuple(known[name] for name in config.arms), config.seeds, size)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _shown(arguments: Sequence[str]) -> list[str]:
    """The command line for a reader: where things lay on this machine is not for the page."""
    shown, rest = [], iter(arguments)
    for text in rest:
        name, _, value = text.partition("=")
        if name not in ("--dir", "--docs", "--records"):
            shown.append(text)
            continue
        value = value or next(rest, "")
        shown += [name, value if not Path(value).is_absolute() else name[2:].upper()]
    return shown


def _tell(findings: Findings, config: StudyConfig, command: str) -> bool:
    """Prints and writes the comparison; whether something about it is wrong."""
    for name, reason in findings.damaged.items():
        print(f"{name}: left out: {reason}", file=sys.stderr)
    if findings.unfinished:
        print(f"left out, not finished: {', '.join(findings.unfinished)}", file=sys.stderr)
    name = findings.planned.plan.name
    if not any(findings.records.values()):
        print(f"{name}: no run is finished in {config.records}", file=sys.stderr)
        return True
    print(f"\n{arms_table(findings)}\n")
    if tests := tests_table(findings):
        print(f"{tests}\n")
    page, results = config.docs, config.dir / f"{name}.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    replace_file(results, (json.dumps(findings.as_json(), indent=2) + "\n").encode())
    figures = write_figures(findings, (page.parent if page is not None else config.dir) / "figures")
    if page is not None:
        links = [os.path.relpath(figure, page.parent) for figure in figures]
        merge(page, name, write_section(findings, links, command))
    print("wrote " + ", ".join(map(str, [results, *figures, *([page] if page is not None else [])])))
    return bool(findings.damaged)
