"""Interleaved timing: a slow moment of the machine hits every contestant, not one of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

TURN_SECONDS = 0.02
"""A turn lasts at least this long, so that the clock and the loop around the call do not count."""
MAX_CALLS = 50


@dataclass(frozen=True)
class Timing:
    """Milliseconds a call, one number a turn."""

    turns_ms: tuple[float, ...]
    calls_a_turn: int

    @property
    def best_ms(self) -> float:
        """What the machine can do when nothing disturbs it; ratios are made of these."""
        return min(self.turns_ms)

    @property
    def median_ms(self) -> float:
        """What it did."""
        return statistics.median(self.turns_ms)

    def as_json(self) -> dict[str, object]:
        """The numbers for the record."""
        return {
            "best_ms": self.best_ms,
            "median_ms": self.median_ms,
            "turns_ms": list(self.turns_ms),
            "calls_a_turn": self.calls_a_turn,
        }


def _turn_seconds(function: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) / calls


def interleave(functions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Timing]:
    """Times every function `repeats` times, in turns, after a call of each to warm up."""
    calls = {}
    for name, function in functions.items():
        function()
        calls[name] = max(1, min(MAX_CALLS, round(TURN_SECONDS / _turn_seconds(function, 1))))
    turns: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            turns[name].append(1e3 * _turn_seconds(function, calls[name]))
    return {name: Timing(tuple(turns[name]), calls[name]) for name in functions}


def _busy_seconds() -> float | None:
    """CPU seconds that all processes used since boot (and those a hypervisor kept), or None where none are told."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    fields = [int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class OtherWork:
    """How many cores other processes kept busy since this was made: a benchmark beside them is not to be believed."""

    def __init__(self) -> None:
        self._busy, self._own, self._wall = _busy_seconds(), time.process_time(), time.perf_counter()

    def cores(self) -> float | None:
        """Cores, on average; None where the system does not tell."""
        busy, wall = _busy_seconds(), time.perf_counter() - self._wall
        if busy is None or self._busy is None or wall <= 0:
            return None
        return max(0.0, (busy - self._busy - (time.process_time() - self._own)) / wall)
