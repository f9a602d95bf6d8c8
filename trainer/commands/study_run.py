"""A planned study from its runs to its tables, and the studies of one update: what `p3 study` does."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.commands.study import StudyConfig
from trainer.processes import cores
from trainer.runs.files import replace_file
from trainer.study import cost, scale
from trainer.study.arms import Arm, Judging, Plan, Size
from trainer.study.campaign import Campaign
from trainer.study.conduct import complete
from trainer.study.contrasts import Findings, gather
from trainer.study.count_settings import CostConfig, ScaleConfig
from trainer.study.figures import write_figures
from trainer.study.markdown import merge
from trainer.study.planned import Planned
from trainer.study.section import arms_table, tests_table, write_section
from trainer.training.interrupt import Interrupted


def run_count(config: CostConfig | ScaleConfig, arguments: Sequence[str], prog: str) -> int:
    """Runs a study of one update; returns as `cost.run` and `scale.run`."""
    if isinstance(config, CostConfig):
        return cost.run(config, arguments, prog)
    return scale.run(config, arguments, prog)


def run_plan(plan: Plan, config: StudyConfig, arguments: Sequence[str], prog: str) -> int:
    """Runs a planned study; returns as `trainer.commands.study.main`."""
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
