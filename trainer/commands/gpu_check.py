"""`p3 gpu-check`: one command that tells what works on this GPU, how fast, and what to send back."""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Sequence
from pathlib import Path

from trainer.config.plain import read_plain

ALL_PASSED, SOMETHING_FAILED, CANNOT_RUN = 0, 1, 2
TRAINING, TRAINING_OUTLINE = "training", ("Updates a policy two ways, then trains a G1 for four iterations.", 90)


def outline() -> dict[str, tuple[str, float]]:
    """Step to what it does and its seconds: the kernels' steps, with the training behind the timings.

    What takes long and is least needed comes last.
    """
    steps: dict[str, tuple[str, float]] = {}
    for name, said in read_plain("p3kernels.device_check.outline").STEPS.items():
        steps[name] = said
        if name == "timings":
            steps[TRAINING] = TRAINING_OUTLINE
    return steps


def build_parser(prog: str) -> argparse.ArgumentParser:
    """The parser of `p3 gpu-check`."""
    listing = "\n".join(f"  {name:<16}{says}" for name, (says, _) in outline().items())
    minutes = read_plain("p3kernels.device_check.outline").DEFAULT_MINUTES
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Checks the kernels on this GPU and times them. Everything that is done is kept in the folder; the"
        " same command again goes on where it ended.",
        epilog=f"steps:\n{listing}\n\nexit code: {ALL_PASSED} all passed; {SOMETHING_FAILED} something failed or was"
        f" not reached; {CANNOT_RUN} no GPU, or it cannot run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=minutes, help="for all steps (default %(default)g)")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-check"), help="folder of the results (default %(default)s)"
    )
    parser.add_argument("--only", nargs="+", metavar="STEP", help="only these steps")
    parser.add_argument("--redo", nargs="+", default=[], metavar="STEP", help="do these steps again")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: the same cases on CPU tensors in triton's interpreter, with TRITON_INTERPRET=1 (%(default)s)",
    )
    parser.add_argument("--one-step", help=argparse.SUPPRESS)  # what a step's own process is started with
    parser.add_argument("--seconds", type=float, default=math.inf, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str], prog: str = "p3 gpu-check") -> int:
    """Runs the check, or one step of it; returns the exit code."""
    parser = build_parser(prog)
    options = parser.parse_args(list(arguments))
    if not options.minutes > 0:
        parser.error(f"--minutes: expected a positive number, got {options.minutes:g}")
    names = tuple(outline())
    for name in [*(options.only or ()), *options.redo, *([] if options.one_step is None else [options.one_step])]:
        if name not in names:
            parser.error(f"no step {name!r}; the steps are {', '.join(names)}")
    return importlib.import_module("trainer.commands.gpu_check_run").run(options, prog)  # with it comes torch
