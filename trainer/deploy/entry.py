"""The console scripts of the small distribution `p3-deploy`, which has no `p3`."""

from __future__ import annotations

import sys


def deploy() -> int:
    """`p3-deploy`: as `p3 deploy`."""
    from trainer.deploy.command import main  # noqa: PLC0415  a script imports its own command alone

    return main(sys.argv[1:], prog="p3-deploy")


def replay() -> int:
    """`p3-replay`: as `p3 replay`."""
    from trainer.deploy.replay import main  # noqa: PLC0415

    return main(sys.argv[1:], prog="p3-replay")
