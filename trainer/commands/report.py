"""`p3 report`: the learning curves of a run as one HTML file that needs nothing else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.evaluation.look import look_in_a_process
from trainer.report.page import FILE_NAME, write_report


def build_parser(prog: str) -> argparse.ArgumentParser:
    """The parser of `p3 report`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=f"Writes {FILE_NAME} into the directory of a run: its learning curves, numbers and configuration "
        "in one file. A run that still goes on can be looked at as well.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the directory of the run")
    parser.add_argument(
        "--look",
        action="store_true",
        help="run a few episodes of its policy first, for a sentence about what it does and a strip of pictures",
    )
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "p3 report") -> int:
    """Writes the report and prints its path; returns 0, or 2 if there is no run to report."""
    options = build_parser(prog).parse_args(arguments)
    run_dir = options.run_dir
    if not run_dir.is_dir():
        print(f"{prog}: error: no directory {str(run_dir)!r}", file=sys.stderr)
        return 2
    try:
        if options.look:
            print(look_in_a_process(run_dir), flush=True)
        print(write_report(run_dir))
    except (OSError, ValueError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
    return 0
