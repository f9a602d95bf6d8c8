"""Ctrl-C and a cluster's SIGTERM: the first only asks, so that a run ends between two iterations."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME_REQUEST = 0.5
"""Seconds within which another signal is the same request: a terminal and a launcher both pass one on, and Linux tells
of a parent's death once for each of its threads."""


class Interrupted(KeyboardInterrupt):
    """Raised at the end of the iteration in which it was asked for."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        """Number of the signal; a shell expects 128 + number."""


class Interrupt:
    """While entered, a first signal is noted in `number`; a later one interrupts.

    Args:
        note: Called with a line about what the first signal does; prints to standard error by default.
    """

    def __init__(self, note: Callable[[str], None] | None = None) -> None:
        self.number: int | None = None
        self._note = note or (lambda message: print(message, file=sys.stderr))
        self._before: dict[int, Any] = {}
        self._first = 0.0

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        if self.number is not None:
            if time.monotonic() - self._first < _SAME_REQUEST:
                return
            raise Interrupted(number)
        self.number, self._first = number, time.monotonic()
        self._note("interrupted: finishing this iteration, then saving; again to leave at once")
