"""Real time for a loop of steps: waits where the loop is early, leaves out frames where it is late."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_SKIPPED = 4
"""Frames left out in a row: however slow the machine, the picture goes on."""
GIVE_UP = 0.25
"""Seconds behind, after which lost time is not made up for."""


class Clock:
    """One tick a step.

    Args:
        dt: Seconds of a step.
        now: The time in seconds.
        wait: Waits for so many seconds.
    """

    def __init__(
        self, dt: float, now: Callable[[], float] = time.monotonic, wait: Callable[[float], object] = time.sleep
    ) -> None:
        self.dt, self._now, self._wait = dt, now, wait
        self._skipped, self.dropped = 0, 0
        self.restart()

    def restart(self) -> None:
        """Time begins now: after a pause, or a slow start."""
        self._due = self._now() + self.dt
        self._window, self._steps = self._now(), 0
        self.speed = 1.0
        """Simulated seconds a second, over the last second or so."""

    def tick(self) -> bool:
        """After a step: waits until its time has come; False if it is so late that its frame is better left out."""
        late = self._now() - self._due
        if late < 0:
            self._wait(-late)
        elif late > GIVE_UP:
            self._due = self._now()
        self._due += self.dt
        self._measure()
        if late > self.dt and self._skipped < MOST_SKIPPED:
            self._skipped += 1
            self.dropped += 1
            return False
        self._skipped = 0
        return True

    def _measure(self) -> None:
        self._steps += 1
        elapsed = self._now() - self._window
        if elapsed >= 1.0:
            self.speed = self._steps * self.dt / elapsed
            self._window, self._steps = self._now(), 0
