"""`p3 study`: the list of studies, and the command line of each."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainer.algorithms.presets import task_of
from trainer.commands import planned_study
from trainer.config import TrainConfig
from trainer.config.command_line import parse
from trainer.processes import cores
from trainer.runs.files import replace_file
from trainer.study import cost, scale
from trainer.study.analysis import Analysis, analyse
from trainer.study.arms import PLANS
from trainer.study.conduct import conduct
from trainer.study.figures import write_figures
from trainer.study.plan import STUDIES, EvalSettings, Settings, Study
from trainer.study.section import merge, numbers_table, tests_table, write_section
from trainer.training.interrupt import Interrupted

COUNTS = {"cost": cost, "scale": scale}
"""Studies of one update, without a training."""


@dataclass
class StudyConfig:
    """Train methods over several seeds, evaluate them alike and compare them.

    Runs that are there are kept, those that were interrupted go on; call it again after whatever happened.
    """

    methods: tuple[str, ...]
    """Methods, as --method of p3 train names them."""
    seeds: tuple[int, ...]
    """Seeds of the trainings."""
    reference: str
    """The method that the others are tested against."""
    dir: Path = Path("runs/study")
    """Directory of the runs, each in DIR/TASK-METHOD-SEED; studies can share it."""
    records: Path | None = None
    """Keep the numbers of every finished run here, in a small file each, and take those that are here as finished: so a
    study can be gathered from several machines and days."""
    task: str = "walker-parkour"
    """Task that every run learns."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SETTING=VALUE")] = ()
    """Settings of the task to change in every run, as --set of p3 train has them."""
    settings: Path | None = None
    """A JSON or TOML file of such settings."""
    num_envs: int = 64
    """Parallel environments of a run."""
    iterations: int = 150
    """Iterations of a run."""
    jobs: int | None = None
    """Processes at a time; one a core by default."""
    train: bool = True
    """With --no-train: evaluate and compare what is trained already, and leave the rest as it is."""
    eval_difficulty: float | None = None
    """Fixed difficulty of the evaluation's terrains, in [0, 1]; 0 by default, on terrains."""
    eval_seconds: float = 10.0
    """Length of its episodes."""
    eval_episodes: int = 128
    """Robots, one episode each."""
    eval_seed: int = 1000
    """Seed of the evaluation's episodes, the same for every run."""
    plateau_window: int = 400
    """Iterations that the convergence criterion looks at."""
    docs: Path | None = None
    """Merge the section into this Markdown page, and the figures into the figures directory beside it."""
    note: str = ""
    """A sentence for that section."""


def _help(prog: str) -> str:
    summaries = {name: plan.summary for name, plan in PLANS.items()}
    summaries |= {name: study.summary for name, study in STUDIES.items()}
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
    parser.add_argument("name", metavar="NAME", choices=[*PLANS, *STUDIES, *COUNTS], help="one of the studies below")
    name = parser.parse_args(list(arguments[:1])).name
    if name in COUNTS:
        return COUNTS[name].main(arguments[1:], prog=f"{prog} {name}")
    if name in PLANS:
        return planned_study.main(PLANS[name], arguments[1:], f"{prog} {name}")
    return _study(STUDIES[name], arguments, f"{prog} {name}")


def _study(study: Study, arguments: Sequence[str], prog: str) -> int:
    default = StudyConfig(methods=study.methods, seeds=study.seeds, reference=study.reference)
    config = parse(StudyConfig, arguments[1:], prog, default)
    failed = False
    try:
        settings = _settings(study, config)
        jobs = cores() if config.jobs is None else config.jobs
        if config.docs is not None and not config.docs.is_file():
            raise FileNotFoundError(f"--docs: no page {config.docs}")
        print(f"{study.name}: {len(settings.runs())} runs in {settings.directory}, {jobs} at a time", flush=True)
        failed = bool(conduct(settings, jobs, _report, train=config.train))
        analysis = analyse(settings)
        failed |= _tell(analysis, f"p3 study {shlex.join(_shown(arguments))}", config)
    except Interrupted as stop:
        print(f"interrupted; go on with: p3 study {shlex.join(arguments)}")
        return 128 + stop.number
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _shown(arguments: Sequence[str]) -> list[str]:
    """The command line for a reader: where things lay on this machine, and the note, are not for the page."""
    shown, rest = [], iter(arguments)
    for text in rest:
        name, _, value = text.partition("=")
        if name not in ("--dir", "--docs", "--note", "--records"):
            shown.append(text)
            continue
        value = value or next(rest, "")
        if name != "--note":
            shown += [name, value if not Path(value).is_absolute() else name[2:].upper()]
    return shown


def _settings(study: Study, config: StudyConfig) -> Settings:
    task = task_of(TrainConfig(task=config.task, set=config.set, settings=config.settings))
    difficulty = config.eval_difficulty
    if difficulty is None and task.terrains:
        difficulty = 0.0
    return Settings(
        study=study,
        directory=config.dir,
        task=config.task,
        methods=config.methods,
        seeds=config.seeds,
        num_envs=config.num_envs,
        iterations=config.iterations,
        evaluation=EvalSettings(difficulty, config.eval_seconds, config.eval_episodes, config.eval_seed),
        reference=config.reference,
        plateau_window=config.plateau_window,
        records=config.records,
        set=config.set,
        settings=config.settings,
    )


def _tell(analysis: Analysis, command: str, config: StudyConfig) -> bool:
    """Prints and writes the comparison; whether something about it is wrong."""
    for name, reason in analysis.damaged.items():
        print(f"{name}: left out: {reason}", file=sys.stderr)
    if analysis.unfinished:
        print(f"left out, not finished: {analysis.left_out()}", file=sys.stderr)
    name = analysis.settings.study.name
    if not any(analysis.runs.values()):
        print(f"{name}: no run is finished in {config.dir}", file=sys.stderr)
        return True
    print(f"\n{numbers_table(analysis)}\n")
    print(f"{tests_table(analysis)}\n")
    results = config.dir / f"{name}.json"
    replace_file(results, (json.dumps(analysis.as_json(), indent=2) + "\n").encode())
    page = config.docs
    figures = write_figures(analysis, (page.parent if page is not None else config.dir) / "figures")
    if page is not None:
        links = [os.path.relpath(figure, page.parent) for figure in figures]
        merge(page, name, write_section(analysis, links, command, config.note))
    written = [results, *figures, *([page] if page is not None else [])]
    print("wrote " + ", ".join(map(str, written)))
    return bool(analysis.damaged)
