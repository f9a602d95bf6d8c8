"""Where Isaac Lab's sources and NVIDIA's `ovphysx` are: folders of their own, which `make physx` fills."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from trainer.engines.physx import kit_stub

_SOURCES = ("isaaclab", "isaaclab_assets", "isaaclab_contrib", "isaaclab_rl", "isaaclab_tasks")
_MISSING = """--engine physx: {what} is not in {folder}.
`make physx` puts it there. It fetches NVIDIA's ovphysx, which is under NVIDIA's licence, and so has to be asked for:
    make physx P3_ACCEPT_OMNIVERSE_LICENSE=yes    (docs/engines.md says what that means)"""


def physx_folder() -> Path:
    """The folder of `ovphysx`: beside the environment's own packages, or where P3_PHYSX_PACKAGES says."""
    return Path(os.environ.get("P3_PHYSX_PACKAGES", Path(sys.prefix) / "physx"))


def isaaclab_folder() -> Path:
    """The folder of Isaac Lab's sources: likewise, or where P3_ISAACLAB_SOURCES says."""
    return Path(os.environ.get("P3_ISAACLAB_SOURCES", Path(sys.prefix) / "isaaclab"))


def isaaclab_paths() -> list[Path]:
    """What Python's path needs for Isaac Lab without Isaac Sim, in this order, before everything else.

    The packages come before the folder that they were installed in: there `isaaclab` is only what starts Isaac Sim.
    """
    folder = isaaclab_folder()
    return [*(folder / "isaaclab" / "source" / name for name in _SOURCES), folder]


def check() -> None:
    """Says what is missing.

    Raises:
        ValueError: Isaac Lab's sources or `ovphysx` are not installed, or Isaac Sim is.
    """
    paths = isaaclab_paths()
    if not paths[0].is_dir():
        raise ValueError(_MISSING.format(what="Isaac Lab's source", folder=paths[-1]))
    if not (physx_folder() / "ovphysx").is_dir():
        raise ValueError(_MISSING.format(what="ovphysx", folder=physx_folder()))
    if not _stubbed() and importlib.util.find_spec("isaacsim") is not None:
        raise ValueError("--engine physx is for machines without Isaac Sim, which is installed here: --engine isaaclab")


def activate() -> None:
    """Makes both importable in this process, with stubs for Isaac Sim; once.

    Raises:
        ValueError: As for `check`.
    """
    if _stubbed():
        return
    check()
    *sources, rest = map(str, isaaclab_paths())
    sys.path[:0] = [path for path in sources if path not in sys.path]
    sys.path += [path for path in (rest, str(physx_folder())) if path not in sys.path]  # the environment's come first
    os.environ.setdefault("WARP_CACHE_PATH", str(Path(rest) / "warp-cache"))
    kit_stub.install()


def _stubbed() -> bool:
    return any(isinstance(finder, kit_stub.Finder) for finder in sys.meta_path)
