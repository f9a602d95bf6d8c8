"""What is learned: observations, rewards, terminations, commands and terrains, as functions of a robot state.

The names below are imported when they are asked for: robots and terrains are also read by programs without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.tasks.locomotion import LocomotionTask, TaskConfig
    from trainer.tasks.registry import TASKS, find_task, make_task

__all__ = ["TASKS", "LocomotionTask", "TaskConfig", "find_task", "make_task"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("trainer.tasks.registry"), name)
