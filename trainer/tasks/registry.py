"""The tasks by name."""

from __future__ import annotations

import difflib

import torch

from trainer.tasks.g1 import G1_FLAT, G1_PARKOUR
from trainer.tasks.locomotion import LocomotionTask, TaskConfig
from trainer.tasks.walker import WALKER_PARKOUR

TASKS: dict[str, TaskConfig] = {config.name: config for config in (G1_FLAT, G1_PARKOUR, WALKER_PARKOUR)}


def make_task(name: str, device: torch.device | str = "cpu") -> LocomotionTask:
    """The task called `name`, with its constants on `device`.

    Raises:
        ValueError: There is none.
    """
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"task: no task {name!r}{hint}; the tasks are {', '.join(TASKS)}")
    return LocomotionTask(TASKS[name], device)
