"""`p3 train`. Only the settings are imported before the command line is read, so that its help needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.config import TrainConfig
from trainer.config.command_line import parse


def main(arguments: Sequence[str], prog: str = "p3 train") -> int:
    """Trains as the command line says; returns as `trainer.commands.train_run.start`."""
    config = parse(TrainConfig, arguments, prog)
    from trainer.commands.train_run import start  # noqa: PLC0415  with it comes torch

    return start(config, arguments, prog)
