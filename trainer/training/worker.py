"""`python -m trainer.training.worker`: one of the processes that `p3 train` starts."""

from __future__ import annotations

import sys

from trainer import cli
from trainer.processes import yield_later


def main() -> int:
    """Trains as `p3 train` with the same arguments does, as the rank that the environment names."""
    yield_later()
    import trainer.commands.train_run  # noqa: F401, PLC0415  a signal that comes during the import would be a traceback
    from trainer.training.launch import take_signals  # noqa: PLC0415  with it comes torch

    return cli.main(["train", *sys.argv[1:]], before=take_signals)


if __name__ == "__main__":
    sys.exit(main())
