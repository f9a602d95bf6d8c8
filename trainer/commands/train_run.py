"""A training from its settings to its report, and what is printed of it: `p3 train` and Isaac Lab's launcher."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.algorithms.presets import FEWEST_ENVS, method_name, method_of, resolve, task_of
from trainer.config import ResolvedConfig, TrainConfig
from trainer.config.command_line import parse
from trainer.engines.registry import EnvMaker, make_env
from trainer.evaluation.look import look_in_a_process
from trainer.evaluation.while_training import TrainingEvaluation
from trainer.models.ranks import LostRank, Ranks
from trainer.processes import cores
from trainer.report.page import write_report
from trainer.runs.checkpoint import best_path, latest_checkpoint
from trainer.runs.config_file import load_config, save_config
from trainer.runs.directory import DIVERGED, locked
from trainer.runs.metrics import read_metrics
from trainer.runs.sinks import WandbSettings, WandbUnavailable
from trainer.tasks import TASKS
from trainer.tasks.settings import differences
from trainer.training.branch import check_branch, settings_of_trunk
from trainer.training.distributed import MEETING_POINT, is_launched, join, leave
from trainer.training.interrupt import Interrupt, Interrupted
from trainer.training.launch import launch
from trainer.training.memory import check_memory
from trainer.training.recovery import Diverged
from trainer.training.runner import Runner
from trainer.training.warm_start import read_weights, with_sizes_of

LOOK_FROM = 50
"""Iterations from which on a policy is worth a look at the end of its training: some seconds of episodes."""
_NEW_ON_RESUME = ("resume", "run_dir", "iterations", "max_minutes", "processes")
"""Settings that a resumed run takes from its command line."""
_OF_THE_BEGINNING = ("set", "settings", "init_from", "branch_from")
"""Settings that say how a run begins, which a resumed run does not take at all."""


def start(config: TrainConfig, arguments: Sequence[str], prog: str) -> int:
    """Trains in as many processes as the settings say; returns as `run`.

    Args:
        config: The settings as given.
        arguments: The command line that they were given by, for the processes that are started.
        prog: The command, for messages.
    """
    ranks = Ranks.from_environment()
    try:
        config = with_trunk(config, arguments, prog)
    except (ValueError, OSError) as error:
        if ranks.is_first:
            print(f"{prog}: {error}", file=sys.stderr)
        return 2
    if is_launched():
        torchrun = f"torchrun --nproc-per-node {ranks.local_size} -m trainer train"
        return run(config, prog if MEETING_POINT in os.environ else torchrun)
    try:
        settings = _settings(config)
    except (ValueError, ImportError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    if settings.processes == 1:
        return run(config, prog)
    _say_what_is_idle(config, settings)
    # The ranks take the number from here: on a resume it is the run's own.
    ended = launch([*arguments, "--processes", str(settings.processes)], settings.processes, prog)
    run_dir = settings.run_dir
    if ended.first_is_lost and latest_checkpoint(run_dir) is not None:
        _tell_how_to_go_on(run_dir, prog)
        _conclude(run_dir, prog)
    return ended.code


def with_trunk(config: TrainConfig, arguments: Sequence[str], prog: str) -> TrainConfig:
    """The settings that a command line gives; of a branch, the others are its trunk's.

    Raises:
        FileNotFoundError: There is no such checkpoint to branch from.
        ValueError: It cannot be branched from.
    """
    if config.run_dir == Path():
        raise ValueError("--run-dir: expected the name of a directory, got none")
    of_another = config.method is None and (config.resume or config.branch_from is not None)  # the method is that run's
    if (config.switch_at or config.switch_on_plateau) and not of_another and method_of(config).changes == 0:
        option = "--switch-at" if config.switch_at else "--switch-on-plateau"
        raise ValueError(f"{option}: {method_name(config)} has one phase and changes to no other, expected none")
    if config.resume:
        refuse_contradictions(config, arguments, prog)
        return config
    if config.branch_from is None:
        return config
    return parse(TrainConfig, arguments, prog, settings_of_trunk(config.branch_from))


def refuse_contradictions(config: TrainConfig, arguments: Sequence[str], prog: str) -> None:
    """A resumed run keeps its settings: one that is given may only say what it is.

    Args:
        config: As the command line gives it.
        arguments: The command line, which is read again on top of the run's own settings.
        prog: For messages.

    Raises:
        ValueError: Naming each option that contradicts the run.
    """
    run_dir = resolve(dataclasses.replace(config, set=(), settings=None)).run_dir
    path = run_dir / "config.json"
    if not path.exists():
        return  # said when the run is looked for
    saved = load_config(path)
    asked = parse(TrainConfig, arguments, prog, saved)
    wrong = [f"--{name} {_shown(here)}, not {_shown(there)}" for name, here, there in _differences(saved, asked)]
    if wrong:
        raise ValueError(
            f"--resume: {run_dir} goes on with its own settings, which contradict what is given: it has"
            f" {'; '.join(wrong)}. Leave these options out, or begin another run"
        )


def _differences(saved: Any, asked: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Option, the run's value and what was asked for, of every setting that a resume cannot change."""
    for field in dataclasses.fields(saved):
        here, there = getattr(saved, field.name), getattr(asked, field.name)
        if dataclasses.is_dataclass(here):
            yield from _differences(here, there, f"{prefix}{field.name}.")
        elif here != there and f"{prefix}{field.name}" not in (*_NEW_ON_RESUME, *_OF_THE_BEGINNING):
            yield f"{prefix}{field.name}".replace("_", "-"), here, there


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _say_what_is_idle(given: TrainConfig, settings: ResolvedConfig) -> None:
    """Cores that a default number of processes leaves idle because the environments do not divide evenly."""
    wanted = min(cores(), settings.num_envs // FEWEST_ENVS)
    if given.processes is None and not given.resume and settings.processes < wanted:
        more = math.ceil(settings.num_envs / wanted) * wanted
        print(
            f"{settings.num_envs} environments divide evenly over {settings.processes} of {wanted} processes;"
            f" --num-envs {more} would use all"
        )


def run(config: TrainConfig, prog: str, make_env: EnvMaker = make_env) -> int:
    """Trains with these settings, in environments of `make_env`.

    Returns:
        0; 1 if the training diverged, its end could not be saved or another rank was lost; 2 for what cannot begin;
        128 + the signal's number after Ctrl-C (130) or SIGTERM (143), with everything saved.
    """
    ranks = Ranks.from_environment()
    with contextlib.ExitStack() as stack:
        if not ranks.is_first:  # the first one speaks for all
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        try:
            join(ranks)
            settings = ranks.from_first(lambda: _begin(config, stack, ranks))
            run_dir = settings.run_dir
            judge = TrainingEvaluation(settings, ranks)
            runner = Runner(settings, _wandb(settings) if ranks.is_first else None, make_env, ranks, judge)
            if settings.resume and ranks.from_first(lambda: latest_checkpoint(run_dir)) is not None:
                print(f"continuing from {runner.restore()}")
            elif settings.branch_from is not None:
                print(f"going on from {runner.branch()}, at iteration {runner.iteration}")
            elif settings.init_from is not None:
                print(f"beginning with the networks of {runner.initialise()}")
        except (ValueError, ImportError, OSError) as error:
            if ranks.is_first:
                print(f"{prog}: {error}", file=sys.stderr)
            return 2
        except LostRank as error:
            return _lost(error, ranks)
        print(
            f"{settings.task}, {settings.method}, {settings.num_envs} environments{_over(ranks)},"
            f" to iteration {settings.iterations} -> {run_dir}"
        )
        for change in differences(TASKS[settings.task], task_of(settings)):
            print(f"  set: {change}")
        # A rank that was lost makes torchrun end the others: not before they have told of it.
        stack.enter_context(Interrupt(lambda _: None))
        code = _learn(runner, run_dir, prog)
        if ranks.is_first:
            _conclude(run_dir, prog)
        if code == 0:
            leave(ranks)
    return code


def _over(ranks: Ranks) -> str:
    return f" over {ranks.size} processes" if ranks.size > 1 else ""


def _learn(runner: Runner, run_dir: Path, prog: str) -> int:
    """Trains, and tells how it ended: at once, since torchrun gives its processes a time to end."""
    try:
        runner.learn()
    except KeyboardInterrupt as stop:
        _tell_how_to_go_on(run_dir, prog, "interrupted; ")
        return 128 + (stop.number if isinstance(stop, Interrupted) else 2)
    except WandbUnavailable as error:
        print(f"{prog}: --wandb-project: {error}", file=sys.stderr)
        return 2
    except LostRank as error:
        _tell_how_to_go_on(run_dir, prog)
        return _lost(error, runner.ranks)
    except (Diverged, OSError) as error:  # OSError: no room for the last checkpoint, or no log could be opened
        if runner.ranks.is_first:
            print(f"{prog}: {error}", file=sys.stderr)
            if isinstance(error, Diverged):
                with contextlib.suppress(OSError):
                    (run_dir / DIVERGED).write_text(f"{error}\n", encoding="utf-8")
        print(f"the last checkpoint is {latest_checkpoint(run_dir)}")
        return 1
    return 0


def _tell_how_to_go_on(run_dir: Path, prog: str, why: str = "") -> None:
    print(f"{why}the last checkpoint is {latest_checkpoint(run_dir)}")
    print(f"go on with: {prog} --run-dir {run_dir} --resume", flush=True)


def _lost(error: LostRank, ranks: Ranks) -> int:
    """Says that a rank is lost; every rank that is left does, since rank 0 may be the one that is gone."""
    print(f"rank {ranks.rank}: {error}", file=sys.stderr)
    return 1


def _conclude(run_dir: Path, prog: str) -> None:
    """What came out, and the report."""
    try:
        for line in _summary(run_dir):
            print(line)
        worth_a_look = _iterations(run_dir) >= LOOK_FROM
        if worth_a_look:
            print(look_in_a_process(run_dir), flush=True)
        print(f"report: {write_report(run_dir).resolve()}")
        if worth_a_look:
            print(
                f"next:  p3 play {run_dir}\n       p3 eval {run_dir} --latent mean sample\n       p3 export {run_dir}"
            )
    except OSError as error:  # a full disk; `p3 report` can make up for it
        print(f"{prog}: no report: {error.strerror or error}", file=sys.stderr)


def _settings(config: TrainConfig, started: int | None = None) -> ResolvedConfig:
    """Resolved; a resumed run keeps its own, but for the new target, time limit and number of processes.

    Args:
        config: The settings as given.
        started: Processes that there are on this machine; None before they are started.
    """
    if started is not None:
        if config.processes not in (None, started):
            raise ValueError(f"--processes: {started} were started, expected as many, got {config.processes}")
        config = dataclasses.replace(config, processes=started)
    if not config.resume:
        if config.branch_from is not None:
            check_branch(config)
        if config.init_from is not None:
            config = with_sizes_of(config, read_weights(str(config.init_from)).config.model)
        return _affordable(resolve(config))
    for option in _OF_THE_BEGINNING:
        if getattr(config, option):
            raise ValueError(f"--{option.replace('_', '-')}: a resumed run keeps its own; not together with --resume")
    run_dir = resolve(config).run_dir
    path = run_dir / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"--resume: no config.json in {run_dir}")
    saved = load_config(path)
    continued = dataclasses.replace(
        saved,
        iterations=saved.iterations if config.iterations is None else config.iterations,
        max_minutes=config.max_minutes,
        resume=True,
        run_dir=run_dir,
        processes=config.processes or saved.processes or 1,  # none in a file of version 0.1.0: one process
    )
    return _affordable(resolve(continued))


def _affordable(config: ResolvedConfig) -> ResolvedConfig:
    """The settings, if this machine has the memory for their environments."""
    if config.engine == "mujoco":
        check_memory("--num-envs", config.num_envs, task_of(config), config.ppo.num_steps_per_env)
    return config


def _begin(given: TrainConfig, stack: contextlib.ExitStack, ranks: Ranks) -> ResolvedConfig:
    """The settings, resolved, in a run directory that is this process's own until `stack` closes."""
    config = _settings(given, ranks.local_size)
    run_dir = config.run_dir
    stack.enter_context(locked(run_dir))
    (run_dir / DIVERGED).unlink(missing_ok=True)
    if latest_checkpoint(run_dir) is not None:
        if config.resume:
            return config
        raise ValueError(f"--run-dir: {run_dir} holds a run; add --resume to continue it, or name another")
    if config.resume:
        print(f"no checkpoint yet in {run_dir}: beginning anew")
    for name in ("metrics.jsonl", "wandb_id", best_path(run_dir).name):
        (run_dir / name).unlink(missing_ok=True)
    save_config(config, run_dir / "config.json")
    return config


def _wandb(config: ResolvedConfig) -> WandbSettings | None:
    """The run's place in Weights & Biases, the same one after a resume."""
    if config.wandb_project is None:
        return None
    path = config.run_dir / "wandb_id"
    if not path.exists():
        path.write_text(secrets.token_hex(8), encoding="utf-8")
    return WandbSettings(
        project=config.wandb_project,
        name=config.run_dir.resolve().name,
        id=path.read_text(encoding="utf-8").strip(),
        config=dataclasses.asdict(config),
    )


def _iterations(run_dir: Path) -> int:
    """How many are in the log."""
    rows = read_metrics(run_dir)
    return int(rows[-1]["iteration"] or 0) if rows else 0


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
