"""How far a training is, on a terminal or in a log."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TextIO

COLUMNS = (
    ("reward", "episode/reward", "7.2f"),
    ("length", "episode/length", "4.0f"),
    ("level", "curriculum/level", "4.1f"),
    ("std", "policy/action_std", "4.2f"),
    ("kl", "loss/kl", "6.3f"),
    ("steps/s", "speed/steps_per_second", "5.0f"),
)
"""Label, key and format; the width keeps the columns of a log below each other."""
LEFT_OUT = "curriculum/level"
"""A task without a curriculum has no such column; the other numbers are only not there yet."""
AVERAGED = 20
"""Iterations the remaining time is estimated from: the slow first ones are soon forgotten."""
PERMANENT_EVERY = 50


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds: 0:12:30."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class Progress:
    """One line per iteration: overwritten in place on a terminal, plain lines in a log.

    Iterations are counted as done: the first of a new run is 1 and the last is `total`.
    """

    def __init__(
        self,
        total: int,
        *,
        start: int = 0,
        stream: TextIO | None = None,
        every_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts the clock.

        Args:
            total: Iterations of the run, those before a resume among them.
            start: Iterations done before; that of the checkpoint after a resume.
            stream: Where the lines go; standard error if None.
            every_seconds: How often a line is written where there is no terminal. The first and the last always are.
            clock: Seconds that only go up.
        """
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._tty = self._stream.isatty()
        self._every_seconds = every_seconds
        self._clock = clock
        self._marks = deque([(clock(), start)], maxlen=AVERAGED + 1)
        self._line = ""
        self._drawn = 0
        self._pending = False
        self._permanent_at: float | None = None

    def update(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Shows an iteration that is done."""
        now = self._clock()
        self._marks.append((now, iteration))
        self._line = self._format(iteration, scalars)
        self._pending = True
        if self._tty:
            due = iteration % PERMANENT_EVERY == 0
        else:
            due = self._permanent_at is None or now - self._permanent_at >= self._every_seconds
        if due or iteration >= self._total:
            self._write_permanent()
            self._permanent_at = now
        else:
            self._draw()

    def note(self, message: str) -> None:
        """Writes a line that stays, above the line in place."""
        self._write(f"{self._erased()}{message}\n")
        if self._pending:
            self._draw()

    def close(self) -> None:
        """Leaves the line of the last iteration behind, whether or not the run came to its end."""
        if self._pending:
            self._write_permanent()

    def _format(self, iteration: int, scalars: Mapping[str, float]) -> str:
        cells = [f"iteration {iteration:>{len(str(self._total))}}/{self._total}"]
        for label, key, form in COLUMNS:
            if key in scalars:
                cells.append(f"{label} {float(scalars[key]):{form}}")
            elif key != LEFT_OUT:
                cells.append(f"{label} {'-':>{int(form.split('.')[0])}}")
        return "  ".join([*cells, f"eta {self._remaining(iteration):>7}"])

    def _remaining(self, iteration: int) -> str:
        (first_time, first), (last_time, last) = self._marks[0], self._marks[-1]
        if last <= first:
            return "-"
        return format_duration((last_time - first_time) / (last - first) * max(0, self._total - iteration))

    def _write_permanent(self) -> None:
        self._write(f"{self._erased()}{self._line}\n")
        self._pending = False

    def _draw(self) -> None:
        if not self._tty:
            return
        shown = self._line[: max(1, self._columns() - 1)]  # a full row would make some terminals go to the next
        self._write(f"{self._erased()}{shown}")
        self._drawn = len(shown)

    def _erased(self) -> str:
        """What takes the line in place away and leaves the cursor where it began."""
        drawn, self._drawn = min(self._drawn, self._columns() - 1), 0
        return f"\r{' ' * drawn}\r" if drawn > 0 else ""

    def _columns(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):  # no descriptor, or not one of a terminal
            columns = 0
        return columns or shutil.get_terminal_size().columns  # 0: a terminal that does not know

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk or a closed pipe: the training is worth more
            self._stream.write(text)
            self._stream.flush()
