"""Native MuJoCo on CPU threads: the default engine.

The engine is imported when it is asked for: its models (`model.py`) are also built by programs without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.engines.mujoco.engine import MujocoEngine

__all__ = ["MujocoEngine"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("trainer.engines.mujoco.engine"), name)
