"""A step of the check, its cases, and what a case can say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p3kernels.device_check.device import Device

PASSED, FAILED, SKIPPED, CRASHED = "passed", "failed", "skipped", "crashed"


class Skip(Exception):
    """Raised by a case that cannot run here; its text says why."""


@dataclass(frozen=True)
class Finding:
    """What a case found."""

    passed: bool
    detail: str
    """One line for a reader."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """For a program; anything that JSON can hold."""


@dataclass(frozen=True)
class Case:
    """The smallest thing that is done once and kept."""

    name: str
    run: Callable[[], Finding]


@dataclass(frozen=True)
class Task:
    """What a step is given to make its cases of."""

    device: Device
    folder: Path
    """The check's own; files that are to be sent back go there."""
    seconds: float
    """What is left for this step."""


@dataclass(frozen=True)
class Step:
    """One part of the check: a process of its own, so that a GPU that a kernel broke is fresh for the next one."""

    name: str
    says: str
    """A sentence that tells the user what happens now."""
    seconds: float
    """Its share of the default 15 minutes."""
    cases: Callable[[Task], Iterable[Case]]
    """Raises `Skip` where none of them can run."""
