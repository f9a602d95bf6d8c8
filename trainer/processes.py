"""Child processes: how many cores they have, which package they import, and that they end with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""A container's limit of processor time: "max" or a quota, and the period that it is for, in microseconds."""
_PR_SET_PDEATHSIG = 1
_SLICE = 100_000_000
"""Nanoseconds that a process computes before another one has its turn, the most that Linux gives; its own are a few
million, and every turn of another process leaves cold caches behind."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Number of the system call, which Python has no function for."""


def cores() -> int:
    """The cores that this process may use: those it may run on, fewer where a container has less processor time."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return max(1, min(allowed, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return allowed


def yield_later() -> None:
    """Tells Linux that this process computes for hours: it is interrupted less often, and interrupts others less.

    It has its share of the cores in few long pieces (from Linux 6.12 on) instead of many short ones. What that was
    worth beside a process that keeps one of two cores busy is in docs/distributed.md. A process that was given a policy
    already keeps it, and elsewhere than on Linux nothing changes.
    """
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    with contextlib.suppress(OSError):  # where a sandbox forbids it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if (number := _SCHED_SETATTR.get(platform.machine())) is not None:
            nice = os.getpriority(os.PRIO_PROCESS, 0)
            # struct sched_attr: size, policy, flags, nice, priority, slice, and two that are for other policies.
            wish = struct.pack("=IIQiIQQQ", 48, os.SCHED_BATCH, 0, nice, 0, _SLICE, 0, 0)
            ctypes.CDLL(None).syscall(number, 0, wish, 0)


def environment(**more: str) -> dict[str, str]:
    """The environment of a child that imports this package as it was imported here, installed or not."""
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path} | more


def end_with_parent() -> Callable[[], None] | None:
    """What a child does before it becomes another program: it asks for SIGTERM at its parent's death, on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # looked up here: after the fork as little as possible

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(128 + signal.SIGTERM)

    return ask
