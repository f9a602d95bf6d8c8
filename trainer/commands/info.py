"""`p3 info`: versions, machine, backends and settings, for a bug report or a benchmark's record."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence


def main(arguments: Sequence[str], prog: str = "p3 info") -> int:
    """Prints the facts; returns 0."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Versions, machine, backends (or why one cannot run) and settings."
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(list(arguments))
    from p3kernels.info import collect, format_table  # noqa: PLC0415  with it comes torch, which --help does without

    facts = collect()
    print(json.dumps(facts, indent=2) if options.json else format_table(facts))
    return 0
