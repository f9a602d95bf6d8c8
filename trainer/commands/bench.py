"""`p3 bench`: the kernels, or with --engine the simulator's rate under a task, or with --update one PPO update."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from trainer.config.command_line import check_writable
from trainer.config.plain import read_plain

OWN = ("--engine", "--update")
MOST = 1024
"""Threads, and repeats: more are a slip of the finger."""


def main(arguments: Sequence[str], prog: str = "p3 bench") -> int:
    """Runs the benchmark that the command line names; without --engine or --update that of the kernels."""
    if not any(option in arguments for option in OWN):
        if "--help" in arguments or "-h" in arguments:
            read_plain("p3kernels.bench.options").build_parser(prog).print_help()
            print("\nalso:\n  p3 bench --engine --help   the simulator's rate, alone and with a task's logic")
            print("  p3 bench --update --help   one PPO update by each estimator")
            raise SystemExit(0)
        return importlib.import_module("p3kernels.bench.command").main(arguments, prog)
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--engine", action="store_true", help="control steps/s of the simulator alone and of the task")
    parser.add_argument("--update", action="store_true", help="seconds of one PPO update by each estimator")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="for --engine; all by default")
    parser.add_argument("--num-envs", type=int, default=256, help="parallel environments")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="simulator threads for --engine; a process of p3 train has one, and there is one process a core",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="of an update the best of so many, of the engine their mean"
    )
    parser.add_argument(
        "--profile", action="store_true", help="with --update: the operations of one MM update, by time"
    )
    parser.add_argument("--out", type=Path, help="also write the numbers here, as JSON")
    options = parser.parse_args(list(arguments))
    if min(options.num_envs, options.repeats, options.threads) < 1:
        parser.error("--num-envs, --repeats and --threads: expected at least 1")
    if max(options.repeats, options.threads) > MOST:
        parser.error(f"--repeats and --threads: expected at most {MOST}")
    check_writable(options.out, "--out")
    from trainer.tasks import TASKS  # noqa: PLC0415  with it comes torch, which --help does without
    from trainer.training.memory import check_memory  # noqa: PLC0415  as above

    options.tasks = options.tasks or list(TASKS)
    unknown = [name for name in options.tasks if name not in TASKS]
    if unknown:
        parser.error(f"--tasks: no task {', '.join(unknown)}; the tasks are {', '.join(TASKS)}")
    for name in options.tasks:
        check_memory("--num-envs", options.num_envs, TASKS[name])
    return importlib.import_module("trainer.commands.bench_run").run(options)
