"""Live plots of the standard deviations, over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import viser
import viser.uplot

from trainer.viewer.session import Spread

SECONDS = 10.0
"""Seconds that the plots reach back."""
HEIGHT = 160
ALL_ACTIONS = "all (mean)"


class _Line(NamedTuple):
    label: str
    colour: str


LATENT_LINES = (_Line("proprioception", "#1c7ed6"), _Line("scan", "#2f9e44"))
MATCHED_LINES = (_Line("MM", "#e8590c"), _Line("sampled", "#868e96"))
ACTION_LINES = (_Line("exploration", "#9c36b5"), _Line("with MM", "#e8590c"), _Line("with sampled", "#868e96"))


class Plots:
    """Three charts, in the container that is open in `gui`.

    Args:
        gui: Controls of a server.
        joints: Names of the actions.
        dt: Seconds between two readings.
        split: Columns of the latent that are the proprioception's; the rest are the scan's.
    """

    def __init__(self, gui: viser.GuiApi, joints: Sequence[str], dt: float, split: int) -> None:
        self._joints, self._split = list(joints), split
        self._readings: deque[tuple[float, np.ndarray, np.ndarray]] = deque(maxlen=round(SECONDS / dt))
        self.latent = _chart(gui, "latent std, mean over its columns", LATENT_LINES)
        self.matched = _chart(gui, "MM std: of the action, by the latent", MATCHED_LINES)
        self.action = _chart(gui, "action std: exploration, and in all", ACTION_LINES)
        self.of = gui.add_dropdown(
            "Action",
            (ALL_ACTIONS, *self._joints),
            hint="Whose std the last two charts show; the root of the mean square",
        )

    def add(self, time: float, spread: Spread) -> None:
        """A reading at `time` in seconds."""
        latent = np.array([_mean(spread.latent[: self._split]), _mean(spread.latent[self._split :])])
        stds = np.array([spread.exploration, spread.matched, spread.sampled])
        self._readings.append((time, latent, stds))

    def draw(self) -> None:
        """All readings, to all browsers."""
        if len(self._readings) < 2:
            return
        times, latents, every = (np.array(column) for column in zip(*self._readings, strict=True))
        if self.of.value == ALL_ACTIONS:
            std = np.sqrt(np.mean(np.square(every), -1))
        else:
            std = every[..., self._joints.index(self.of.value)]
        exploration, matched, sampled = std.T
        self.latent.data = (times, *latents.T)
        self.matched.data = (times, matched, sampled)
        self.action.data = (times, exploration, np.hypot(exploration, matched), np.hypot(exploration, sampled))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _chart(gui: viser.GuiApi, title: str, lines: Sequence[_Line]) -> viser.GuiUplotHandle:
    nothing = np.array([0.0, 1.0])
    drawn = (viser.uplot.Series(label=line.label, stroke=line.colour, width=2) for line in lines)
    return gui.add_uplot(
        (nothing, *(np.zeros(2) for _ in lines)),
        (viser.uplot.Series(label="s"), *drawn),
        title=title,
        scales={"x": viser.uplot.Scale(time=False)},
        height=HEIGHT,
    )
