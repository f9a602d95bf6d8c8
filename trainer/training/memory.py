"""What environments need of this machine's memory, said before it is taken; and what is done with freed memory."""

from __future__ import annotations

import ctypes
from pathlib import Path

from trainer.tasks import TaskConfig
from trainer.tasks.locomotion import SCAN_SIZE

_SIMULATOR = 0.3e6, 0.6e6
"""Bytes of one environment's model and state on a plane and on terrains: measured of the G1, less of the walker."""
_COPIES = 3
"""Copies of a rollout's observations: stored, gathered for the update, and in the mirror."""

_MALLOPT = ((-3, 32 * 2**20), (-1, 2**31 - 1))
"""glibc's M_MMAP_THRESHOLD, at the most that it takes, and M_TRIM_THRESHOLD."""


def keep_freed_memory() -> None:
    """Asks the C library to keep what is freed: an update frees and takes the same megabytes again and again.

    Given back to the system, every page would come anew, be cleared and be mapped: some 10,000 of them an update.
    Elsewhere than with glibc nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; TypeError: Windows
        return
    for parameter, value in _MALLOPT:
        mallopt(parameter, value)


def check_memory(option: str, number: int, task: TaskConfig, steps: int = 0) -> None:
    """Refuses more environments in native MuJoCo than there is memory for.

    Args:
        option: The option that asks for them.
        number: Number of environments.
        task: What they are of.
        steps: Control steps of each that are kept, of a rollout.

    Raises:
        ValueError: Saying what they would need, and what there is.
    """
    proprio = 3 * task.robot.num_joints + 9
    observed = (3 + task.history) * proprio + 2 * SCAN_SIZE + 64
    each = _SIMULATOR[bool(task.terrains)] + 4 * _COPIES * steps * observed
    needed, there = number * each, available_memory()
    if there is not None and needed > there:
        raise ValueError(
            f"{option}: {number} environments of {task.name} would need about {_text(needed)} of memory, {_text(each)}"
            f" each; {_text(there)} are free here, enough for {int(there / each)}"
        )


def available_memory() -> int | None:
    """Bytes that this process could still take; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    try:  # of a container
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return free
    return limit - used if free is None else min(free, limit - used)


def _text(size: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size / 1e6:.1f} MB"
