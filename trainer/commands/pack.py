"""`p3 pack`: a checkpoint as one small file that holds its policy and what it was trained with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainer.config.command_line import parse
from trainer.runs.policy import load_candidate
from trainer.runs.policy_file import write_policy


@dataclass
class PackConfig:
    """Write the policy of a checkpoint as one small file: weights, contract and settings.

    The file is usable wherever a checkpoint is: p3 eval, play, export, diagnose and train --init-from.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """A run directory (its best.pt, else its newest checkpoint) or a checkpoint file."""
    output: Annotated[Path, tyro.conf.Positional]
    """The file, ending in .pt; its name is the policy's."""


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
    write_policy(output, candidate.checkpoint.content, candidate.config)
    iteration = candidate.checkpoint.content["iter"]
    print(f"{candidate.path}: {candidate.config.task}, {candidate.config.method}, iteration {iteration}")
    print(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")
    return 0
