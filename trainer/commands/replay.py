"""`p3 replay`: the log of a deployment run again through the same code, and tables and plots of it.

It needs neither torch nor MuJoCo; plots need matplotlib, a video needs MuJoCo.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from trainer.config.command_line import parse
from trainer.deploy.log import read_log
from trainer.deploy.replay import policy_of, replay, story


@dataclass
class ReplayConfig:
    """Run the log of `p3 deploy` again and compare every command, byte by byte."""

    log: Annotated[Path, tyro.conf.Positional]
    """Log that p3 deploy wrote."""
    policy: Path | None = None
    """The policy; by default the file that the log names."""
    arrays: Path | None = None
    """Write the log as arrays into this .npz file."""
    plot: Path | None = None
    """Write a figure of it to this file."""
    video: Path | None = None
    """Write a video of the robot's motion to this .mp4 file."""


def main(arguments: Sequence[str], prog: str = "p3 replay") -> int:
    """Exit code 0 where every command is the log's, 1 where one is not, 2 where it could not be tried."""
    config = parse(ReplayConfig, arguments, prog)
    try:
        head, records = read_log(config.log)
        entries = list(records)
        policy = policy_of(head, config.policy)
        comparison, table = replay(head, entries, policy)
        for line in story(head, entries):
            print(line)
        print(
            f"{comparison.commands} commands, {comparison.different} different; {comparison.targets} targets of the"
            f" policy, {comparison.different_targets} different"
        )
        if comparison.first is not None:
            print(f"first difference: {comparison.first}")
        if config.arrays is not None:
            np.savez_compressed(config.arrays, allow_pickle=False, **table.arrays())
        if config.plot is not None:
            from trainer.deploy.figure import draw  # noqa: PLC0415  needs matplotlib

            draw(table, config.plot)
        if config.video is not None:
            from trainer.robot_sim.playback import record  # noqa: PLC0415  needs MuJoCo

            record(table.arrays(), config.video)
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    return 1 if comparison.different or comparison.different_targets else 0


def script() -> int:
    """`p3-replay` of the small distribution `p3-deploy`, which has no `p3`: the same as `p3 replay`."""
    return main(sys.argv[1:], prog="p3-replay")
