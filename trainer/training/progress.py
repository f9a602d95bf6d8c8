"""How far a training is, on a terminal or in a log."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

COLUMNS = (
    ("reward", "episode/reward", "7.2f"),
    ("length", "episode/length", "4.0f"),
    ("difficulty", "curriculum/difficulty", "4.2f"),
    ("std", "policy/action_std", "4.2f"),
    ("kl", "loss/kl", "6.3f"),
    ("lr", "loss/learning_rate", "7.1e"),
    ("clip", "loss/clip_fraction", "5.1%"),
    ("steps/s", "speed/steps_per_second", "5.0f"),
)
"""Label, key and format; the width keeps the columns of a log below each other."""
LEFT_OUT = "curriculum/difficulty"
"""A task without a curriculum has no such column; the other numbers are only not there yet."""
GIVEN_UP = ("lr", "clip", "std", "difficulty", "kl", "length", "steps/s")
"""Columns that a narrow terminal goes without, in this order, so that it still shows the remaining time."""
AVERAGED = 20
"""Iterations the remaining time is estimated from: the slow first ones are soon forgotten."""
PERMANENT_EVERY = 50
"""Iterations between the lines that stay on a terminal."""
DETAILS_EVERY_SECONDS = 60.0
"""Between details in a log; on a terminal every line that stays has them."""
DETAILS_WIDTH = 132
"""Width of the lines of details where no terminal says how wide it is."""
TOGETHER = "\N{NO-BREAK SPACE}"
"""Between a label and its number while lines are broken; a space in what is shown."""
PHASES = ("simulation", "policy", "update")
SKIPPED = "loss/skipped_steps"
COUNTED = (("broken", "steps/broken"), ("rollbacks", "steps/rollbacks"), ("steps left out", SKIPPED))
"""What should not happen, shown where it has."""


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds: 0:12:30."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def detail_lines(scalars: Mapping[str, float], width: int = DETAILS_WIDTH) -> list[str]:
    """What the line of an iteration has no room for: likelihoods and latent, losses, speed and memory.

    Args:
        scalars: The latest of each; what is not there is left out, and so is a line of which nothing is there.
        width: Width of a line; what does not fit goes on in a next one, further in.
    """

    def found(*columns: tuple[str, str, str]) -> list[str]:
        texts = [f"{label} {float(scalars[key]):{form}}" for label, key, form in columns if key in scalars]
        return [text.replace(" ", TOGETHER) for text in texts]

    efficiency = found(("trained", "d_eff/trained", ".1%"), ("N=1", "d_eff/n1", ".1%"), ("N=15", "d_eff/n15", ".1%"))
    noise = found(
        ("exploration", "policy/action_std", ".3f"),
        ("latent", "policy/latent_action_std", ".3f"),
        ("latent by MM", "policy/latent_action_std_mm", ".3f"),
    )
    elsewhere = {key for _, key, _ in COLUMNS} | {key for _, key in COUNTED}
    losses = [key for key in scalars if key.startswith("loss/") and key not in elsewhere]
    phases = [(phase, f"speed/{phase}_steps_per_second", ".0f") for phase in PHASES]
    counted = [(label, key, "g") for label, key in COUNTED if scalars.get(key, 0) != 0]
    groups = (
        [
            _group("D_eff", efficiency),
            _group("std", noise if len(noise) > 1 else []),  # exploration alone is in the first line
            *found(("active latents", "policy/active_latents", ".0f")),
        ],
        [_group("loss", found(*((key.removeprefix("loss/"), key, ".4g") for key in losses)))],
        [
            _group("steps/s", found(*phases)),
            *(f"{text}{TOGETHER}MiB" for text in found(("memory", "memory/resident_mib", ".0f"))),
            *found(*counted),
        ],
    )
    return [line for cells in groups for line in _wrapped([cell for cell in cells if cell], width)]


def _fitted(cells: Mapping[str, str], room: int) -> str:
    """The line without the columns that there is no room for; cut off where that is not enough."""
    left = dict(cells)
    for label in GIVEN_UP:
        if len("  ".join(left.values())) <= room:
            break
        left.pop(label, None)
    return "  ".join(left.values())[:room]


def _group(title: str, parts: Sequence[str]) -> str:
    return f"{title}:{TOGETHER}{', '.join(parts)}" if parts else ""


def _wrapped(cells: Sequence[str], width: int) -> list[str]:
    lines = textwrap.wrap(
        "  ".join(cells),
        max(width, 20),
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(TOGETHER, " ") for line in lines]


class Progress:
    """One line per iteration: overwritten in place on a terminal, plain lines in a log; details now and then.

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
        self._cells: dict[str, str] = {}
        self._latest: dict[str, float] = {}
        self._drawn = 0
        self._pending = False
        self._detailed = True
        self._permanent_at: float | None = None
        self._details_at: float | None = None

    def update(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Shows an iteration that is done."""
        now = self._clock()
        self._marks.append((now, iteration))
        self._cells = self._format(iteration, scalars)
        skipped = self._latest.get(SKIPPED, 0.0) + float(scalars.get(SKIPPED, 0.0))  # an iteration tells of its own
        self._latest |= {**scalars, SKIPPED: skipped}  # some are measured only now and then
        self._pending, self._detailed = True, False
        if self._tty:
            due = detailed = iteration % PERMANENT_EVERY == 0
        else:
            due = self._permanent_at is None or now - self._permanent_at >= self._every_seconds
            detailed = self._details_at is None or now - self._details_at >= DETAILS_EVERY_SECONDS
        last = iteration >= self._total
        if due or last:
            self._write_permanent(detailed or last)
        else:
            self._draw()

    def note(self, message: str) -> None:
        """Writes a line that stays, above the line in place."""
        self._write(f"{self._erased()}{message}\n")
        if self._pending:
            self._draw()

    def close(self) -> None:
        """Leaves the line of the last iteration and its details behind, whether or not the run came to its end."""
        if self._pending:
            self._write_permanent(True)
        elif not self._detailed:
            self._write_details()

    def _format(self, iteration: int, scalars: Mapping[str, float]) -> dict[str, str]:
        """The cells of the line by their labels."""
        cells = {"iteration": f"iteration {iteration:>{len(str(self._total))}}/{self._total}"}
        for label, key, form in COLUMNS:
            if key in scalars:
                cells[label] = f"{label} {float(scalars[key]):{form}}"
            elif key != LEFT_OUT:
                cells[label] = f"{label} {'-':>{int(form.split('.')[0])}}"
        return {**cells, "eta": f"eta {self._remaining(iteration):>7}"}

    def _remaining(self, iteration: int) -> str:
        (first_time, first), (last_time, last) = self._marks[0], self._marks[-1]
        if last <= first:
            return "-"
        return format_duration((last_time - first_time) / (last - first) * max(0, self._total - iteration))

    def _write_permanent(self, detailed: bool) -> None:
        self._write(f"{self._erased()}{'  '.join(self._cells.values())}\n")
        self._pending = False
        self._permanent_at = self._clock()
        if detailed:
            self._write_details()

    def _write_details(self) -> None:
        lines = detail_lines(self._latest, self._columns() - 1 if self._tty else DETAILS_WIDTH)
        if lines:
            self._write("".join(f"{line}\n" for line in lines))
        self._detailed = True
        self._details_at = self._clock()

    def _draw(self) -> None:
        if not self._tty:
            return
        room = max(1, self._columns() - 1)  # a full row would make some terminals go to the next
        shown = _fitted(self._cells, room)
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
        # A full disk, a closed pipe, a closed stream, a terminal without the letter: the training is worth more.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
