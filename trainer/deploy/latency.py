"""How long steps take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

_WINDOW = 100_000


@dataclass(frozen=True)
class Latency:
    """Latency of the last steps, in milliseconds."""

    steps: int
    mean: float
    median: float
    p99: float
    max: float

    def __str__(self) -> str:
        numbers = {"mean": self.mean, "median": self.median, "p99": self.p99, "max": self.max}
        text = ", ".join(f"{name} {value:.3f} ms" for name, value in numbers.items())
        return f"{text} over {self.steps} steps"


class Stopwatch:
    """Collects durations; the last 100,000 count."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)

    def add(self, seconds: float) -> None:
        """One step's duration."""
        self._seconds.append(seconds)

    def summary(self) -> Latency:
        """Summary of all steps added so far; zeros where there are none."""
        if not self._seconds:
            return Latency(0, 0.0, 0.0, 0.0, 0.0)
        milliseconds = 1e3 * np.array(self._seconds)
        return Latency(
            len(milliseconds),
            float(milliseconds.mean()),
            float(np.median(milliseconds)),
            float(np.quantile(milliseconds, 0.99)),
            float(milliseconds.max()),
        )
