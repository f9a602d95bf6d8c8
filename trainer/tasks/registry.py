"""The tasks by name: ours, and those that installed packages bring by an entry point of the group `p3.tasks`.

Of a package's tasks only the names are read, from its metadata, until one of them is asked for. Code comes from
installed packages alone: a run directory names its task and holds the settings of it, never code.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping

import torch

from trainer.config.names import did_you_mean
from trainer.tasks.g1 import G1_FLAT, G1_PARKOUR
from trainer.tasks.locomotion import LocomotionTask, TaskConfig, by_the_paper
from trainer.tasks.walker import WALKER_PARKOUR

GROUP = "p3.tasks"
"""Group of the entry points: name of the task, and where its `TaskConfig` is, or a function that returns it."""
_OWN: dict[str, TaskConfig] = {
    config.name: config
    for config in (
        G1_FLAT,
        G1_PARKOUR,
        WALKER_PARKOUR,
        by_the_paper(G1_PARKOUR),
        by_the_paper(WALKER_PARKOUR),
    )
}


class Tasks(Mapping[str, TaskConfig]):
    """Task by name; a task of another package is imported when it is asked for, and then kept.

    Ours come first: a package cannot take their names.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, TaskConfig] = {}

    def __getitem__(self, name: str) -> TaskConfig:
        """The task.

        Raises:
            KeyError: There is none.
            ValueError: Its package does not give it.
        """
        if name in _OWN:
            return _OWN[name]
        if name not in self._loaded:
            self._loaded[name] = _load(name, [entry for entry in _entry_points() if entry.name == name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in _OWN or name in self._loaded or any(entry.name == name for entry in _entry_points())

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*_OWN, *(entry.name for entry in _entry_points())]))

    def __len__(self) -> int:
        return len(list(iter(self)))


TASKS = Tasks()


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    """Those of `GROUP`, each once: a package that is found twice on the path is one package."""
    found = {(entry.name, entry.value): entry for entry in importlib.metadata.entry_points(group=GROUP)}
    return list(found.values())


def _load(name: str, entries: list[importlib.metadata.EntryPoint]) -> TaskConfig:
    if not entries:
        raise KeyError(name)
    if len(entries) > 1:
        places = " and ".join(f"{_package(entry)} ({entry.value})" for entry in entries)
        raise ValueError(f"task {name}: several packages bring one: {places}")
    (entry,) = entries
    where = f"task {name} of {_package(entry)} ({entry.value})"
    try:
        found = entry.load()
        if callable(found) and not isinstance(found, type):
            found = found()
    except Exception as error:  # whatever the code of another package raises
        raise ValueError(f"{where}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, TaskConfig):
        raise ValueError(f"{where}: expected a TaskConfig or a function that returns one, got {type(found).__name__}")
    if found.name != name:
        raise ValueError(f"{where}: its TaskConfig is called {found.name!r}; expected the entry point's name")
    return found


def _package(entry: importlib.metadata.EntryPoint) -> str:
    return "a package" if entry.dist is None else f"the package {entry.dist.metadata['Name']}"


def find_task(name: str) -> TaskConfig:
    """The task called `name`.

    Raises:
        ValueError: There is none, or its package does not give it.
    """
    if name not in TASKS:
        raise ValueError(f"task: no task {name!r}{did_you_mean(name, TASKS)}; the tasks are {', '.join(TASKS)}")
    return TASKS[name]


def make_task(name: str, device: torch.device | str = "cpu") -> LocomotionTask:
    """The task called `name`, with its constants on `device`.

    Raises:
        ValueError: There is none, or its package does not give it.
    """
    return LocomotionTask(find_task(name), device)
