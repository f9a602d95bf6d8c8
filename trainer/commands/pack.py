"""`p3 pack`: a checkpoint as one small file that holds its policy and what it was trained with."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.config.command_line import parse
from trainer.config.commands import PackConfig
from trainer.runs.averaging import averaged
from trainer.runs.policy import load_candidate
from trainer.runs.policy_file import write_policy


def main(arguments: Sequence[str], prog: str = "p3 pack") -> int:
    """Writes the file, and tells what is in it."""
    config = parse(PackConfig, arguments, prog)
    output = config.output
    if output.suffix != ".pt":
        raise ValueError(f"OUTPUT: expected a name ending in .pt, got {output}")
    if not output.parent.is_dir():
        raise ValueError(f"OUTPUT: no directory {output.parent} to write to")
    candidate = load_candidate(config.checkpoint)  # what cannot act is not worth a file
    if candidate.choice:
        print(candidate.choice, file=sys.stderr)
    if config.average > 1:
        candidate = averaged(candidate, config.average)
    write_policy(output, candidate.content, candidate.config)
    iteration = candidate.content["iter"]
    mean_of = f", weights the mean of {config.average} checkpoints" if config.average > 1 else ""
    print(f"{candidate.path}: {candidate.config.task}, {candidate.config.method}, iteration {iteration}{mean_of}")
    print(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")
    return 0
