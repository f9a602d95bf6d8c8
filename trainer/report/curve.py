"""One curve of a run as an SVG, written directly: a report has fifty, and a plotting library takes seconds for them."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_POINTS, MOST_SMOOTHED_POINTS = 400, 120
"""Points of a curve at most: a figure is some 400 pixels wide, and the file stays small."""
MOST_CHANGES = 12
"""Changes of the estimator that a figure marks at most; one at every iteration would hide the curves."""
WIDTH, HEIGHT = 331, 187
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 32
"""Pixels around the curve, for the numbers; more where changes are marked."""
_LETTER = 4.0, 2.8
"""Pixels that a letter of a change's name goes to the right and up: it is tilted."""
_LARGEST = 8e307
"""Larger numbers are drawn there: the height of a figure is a float too."""
_SMALLEST = 1e-300


@dataclass(frozen=True)
class Series:
    """One scalar over the iterations in which it was finite."""

    key: str
    iterations: list[int]
    values: list[float]

    def smoothed(self) -> list[float]:
        """Mean over a centred window of a twentieth of the points, cut at the ends."""
        half = len(self.values) // 40
        windows = (self.values[max(0, i - half) : i + half + 1] for i in range(len(self.values)))
        return [sum(window) / len(window) for window in windows]

    def limits(self) -> tuple[float, float]:
        """Least and most of what a figure shows: the values and a margin; of a constant a tenth to each side."""
        low, high = (max(-_LARGEST, min(value, _LARGEST)) for value in (min(self.values), max(self.values)))
        if high - low <= max(1e-6 * abs(high), _SMALLEST):  # rounding is not to be seen
            margin = 0.1 * abs(high) if abs(high) > 10 * _SMALLEST else 1.0
        else:
            margin = 0.05 * (high - low)
        return low - margin, high + margin


def thinned(iterations: Sequence[int], values: Sequence[float], most: int) -> tuple[list[int], list[float]]:
    """At most `most` points: the least and the most of every stretch, so that no spike is lost."""
    count = len(values)
    if count <= most:
        return list(iterations), list(values)
    kept: set[int] = {0, count - 1}
    stretches = most // 2 - 1
    for stretch in range(stretches):
        indices = range(stretch * count // stretches, (stretch + 1) * count // stretches)
        kept |= {min(indices, key=values.__getitem__), max(indices, key=values.__getitem__)}
    return [iterations[i] for i in sorted(kept)], [values[i] for i in sorted(kept)]


def ticks(low: float, high: float, most: int, least_step: float = 0.0) -> list[float]:
    """Round numbers from `low` to `high`, at most so many: multiples of 1, 2 or 5 times a power of ten."""
    rough = max((high - low) / most, least_step)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= 0.999 * rough)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _labels(numbers: Sequence[float]) -> list[str]:
    """As many digits as tell them apart; powers of ten where they are very large or small."""
    most = max((abs(number) for number in numbers), default=0.0)
    step = numbers[1] - numbers[0] if len(numbers) > 1 else most
    if most >= 1e6 or 0.0 < most < 1e-3:
        digits = min(
            3, max(0, math.floor(math.log10(most)) - math.floor(math.log10(step)))
        )  # there is no room for more
        parts = [f"{number:.{digits}e}".split("e") for number in numbers]
        return [f"{mantissa}e{int(power)}" if float(mantissa) else "0" for mantissa, power in parts]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return [f"{number:.{decimals}f}" for number in numbers]


class _Frame:
    """Where an iteration and a value are in the picture."""

    def __init__(self, series: Series, marked: Sequence[tuple[int, str]]) -> None:
        first, last = min(series.iterations), max(series.iterations)
        margin = 1.0 if first == last else 0.04 * (last - first)
        longest = max((len(name) for _, name in marked), default=0)
        self.low, self.high = series.limits()
        self.first, self.last = first - margin, last + margin
        self.left, self.right = LEFT, WIDTH - RIGHT - _LETTER[0] * longest
        self.top, self.bottom = TOP + _LETTER[1] * longest, HEIGHT - BOTTOM

    def x(self, iteration: float) -> float:
        return self.left + (self.right - self.left) * (iteration - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        value = max(self.low, min(value, self.high))
        return self.bottom - (self.bottom - self.top) * ((value - self.low) / (self.high - self.low))

    def points(self, iterations: Sequence[int], values: Sequence[float]) -> str:
        pairs = zip(iterations, values, strict=True)
        return " ".join(f"{self.x(at):.1f},{self.y(value):.1f}" for at, value in pairs)


def draw(series: Series, changes: Sequence[tuple[int, str]]) -> str:
    """The SVG: a thin line of what was measured, a strong one of the mean around it, dashed ones at new estimators.

    Args:
        series: What was measured, at least once.
        changes: The estimators with the iteration that each began at; the first one is no change.
    """
    marked = changes[1:] if len(changes) <= MOST_CHANGES else []
    frame = _Frame(series, marked)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="9"'
        ' fill="none">\n' + "\n".join([*_axes(frame), *_changes(frame, marked), *_lines(frame, series)]) + "\n</svg>\n"
    )


def _axes(frame: _Frame) -> Iterator[str]:
    grid, words = 'stroke="#1d242b" stroke-opacity="0.12" stroke-width="0.6"', 'fill="#1d242b"'
    across = ticks(frame.first, frame.last, 6, least_step=1.0)
    for number, label in zip(across, _labels(across), strict=True):
        x = f"{frame.x(number):.1f}"
        yield f'<path d="M{x} {frame.top:.1f}V{frame.bottom}" {grid}/>'
        yield f'<text x="{x}" y="{frame.bottom + 11}" text-anchor="middle" {words}>{label}</text>'
    up = ticks(frame.low, frame.high, 6)
    for number, label in zip(up, _labels(up), strict=True):
        y = frame.y(number)
        yield f'<path d="M{frame.left} {y:.1f}H{frame.right:.1f}" {grid}/>'
        yield f'<text x="{frame.left - 4}" y="{y + 3:.1f}" text-anchor="end" {words}>{label}</text>'
    sides = f"M{frame.left} {frame.top:.1f}V{frame.bottom}H{frame.right:.1f}"
    yield f'<path d="{sides}" stroke="#1d242b" stroke-width="0.8"/>'
    middle = (frame.left + frame.right) / 2
    yield f'<text x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle" {words}>iteration</text>'


def _changes(frame: _Frame, marked: Sequence[tuple[int, str]]) -> Iterator[str]:
    for at, name in marked:
        x, top = f"{frame.x(at):.1f}", f"{frame.top:.1f}"
        yield (
            f'<path class="change" d="M{x} {top}V{frame.bottom}" stroke="#5b6570" stroke-width="0.8"'
            ' stroke-dasharray="3 2"/>'
        )
        yield (
            f'<text class="change" transform="translate({x} {top}) rotate(-35)" font-size="7" fill="#5b6570">'
            f"{html.escape(name)}</text>"
        )


def _lines(frame: _Frame, series: Series) -> Iterator[str]:
    if len(series.values) == 1:  # a line of one point is not seen
        x, y = frame.points(series.iterations, series.values).split(",")
        yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="#8fbfdc"/>'
        return
    measured = frame.points(*thinned(series.iterations, series.values, MOST_POINTS))
    yield f'<polyline class="measured" points="{measured}" stroke="#8fbfdc" stroke-width="0.7"/>'
    smoothed = frame.points(*thinned(series.iterations, series.smoothed(), MOST_SMOOTHED_POINTS))
    yield f'<polyline class="smoothed" points="{smoothed}" stroke="#0072b2" stroke-width="1.6"/>'
