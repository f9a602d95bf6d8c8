"""The figures of a study: learning curves with bands over the seeds, and the final measure, a dot a seed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from trainer.study.analysis import PRIMARY, Analysis
from trainer.study.finished import CURVES, DIFFICULTY, LENGTH, PROGRESS, REWARD
from trainer.study.statistics import mean_std

LABELS = {
    REWARD: "episode reward",
    LENGTH: "episode length, steps",
    PROGRESS: "progress term of the reward, 1 = as commanded",
    DIFFICULTY: "curriculum difficulty",
}
# Okabe and Ito's colours, which the colour-blind tell apart; dashes and markers tell members of a family apart.
STYLES: dict[str, tuple[str, str, str]] = {
    "vae": ("#000000", "-", "o"),
    "z-mean": ("#999999", "--", "v"),
    "mc(5)": ("#56B4E9", "-", "s"),
    "mc(15)": ("#0072B2", "-", "D"),
    "mc(50)": ("#0072B2", ":", "^"),
    "mm": ("#D55E00", "--", "<"),
    "p3": ("#D55E00", "-", "P"),
    "cm": ("#009E73", "-", "X"),
    "cm-diagonal": ("#009E73", "--", ">"),
    "cm-unscented": ("#009E73", ":", "*"),
    "ae": ("#E69F00", "-", "s"),
    "spr": ("#0072B2", "-", "D"),
    "simple-actor-critic": ("#CC79A7", "--", "^"),
}
_OTHERS = ("#CC79A7", "-.", "h")
MOST_POINTS = 50
"""Points of a curve in a figure: more cannot be told apart at its size, and each is a line of the file."""


def write_figures(analysis: Analysis, directory: Path) -> list[Path]:
    """Draws the study into `directory`, as study-NAME-curves.svg and study-NAME-final.svg."""
    import matplotlib as mpl  # noqa: PLC0415  slow to import, and only here

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    with plt.rc_context({"svg.hashsalt": "p3 study", "svg.fonttype": "none", "font.size": 9}):
        for kind, draw in (("curves", _curves), ("final", _final)):
            figure = draw(plt, analysis)
            path = directory / f"study-{analysis.settings.study.name}-{kind}.svg"
            figure.savefig(path, metadata={"Date": None})
            plt.close(figure)
            paths.append(path)
    return paths


def _curves(plt: Any, analysis: Analysis) -> Any:
    """A panel a quantity, a line a method."""
    shown = [key for key in CURVES if _is_there(analysis, key)]
    columns = 2
    rows = math.ceil(len(shown) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(9.6, 3.1 * rows + 0.5), layout="constrained", squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    for axis, key in zip(axes.flat, shown, strict=False):
        for method, runs in analysis.runs.items():
            if runs:
                colour, dashes, _ = STYLES.get(method, _OTHERS)
                steps, mean, std = (_thinned(values) for values in analysis.bands(method, key))
                thousands = steps / 1000
                axis.plot(thousands, mean, color=colour, linestyle=dashes, linewidth=1.4, label=method)
                axis.fill_between(thousands, mean - std, mean + std, color=colour, alpha=0.10, linewidth=0)
        axis.set_title(LABELS[key], fontsize=10, loc="left")
        axis.set_xlabel("environment steps, thousands")
        axis.grid(alpha=0.3)
        axis.margins(x=0)
        if key == DIFFICULTY:
            axis.set_ylim(bottom=0, top=max(0.2, axis.get_ylim()[1]))
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(9, len(labels)), frameon=False)
    return figure


def _final(plt: Any, analysis: Analysis) -> Any:
    """A row a method: a dot a seed, at the latent's mean and sampled; mean and standard deviation beside them."""
    methods = [method for method, runs in analysis.runs.items() if runs]
    figure, axis = plt.subplots(figsize=(7.2, 0.42 * len(methods) + 1.3), layout="constrained")
    for row, method in enumerate(methods):
        colour, _, marker = STYLES.get(method, _OTHERS)
        values = list(analysis.values(method, PRIMARY).values())
        sampled = [run.evaluated("sample", "reward") for run in analysis.runs[method].values()]
        axis.scatter(values, [row] * len(values), color=colour, marker=marker, s=26, zorder=3)
        axis.scatter(sampled, [row + 0.28] * len(sampled), facecolors="none", edgecolors=colour, marker=marker, s=18)
        mean, std = mean_std(values)
        spread = 0.0 if math.isnan(std) else std
        axis.errorbar(mean, row - 0.24, xerr=spread, color=colour, fmt="|", markersize=7, capsize=3, linewidth=1.2)
    evaluation = analysis.settings.evaluation
    where = "" if evaluation.difficulty is None else f" at difficulty {evaluation.difficulty:g}"
    axis.set_yticks(range(len(methods)), methods)
    axis.set_ylim(len(methods) - 0.4, -0.6)
    axis.set_xlabel(
        f"reward of a fresh {evaluation.seconds:g} s episode{where}\n"
        "a mark a seed: full z at its mean, open z sampled; bar: mean ± std, z at its mean"
    )
    axis.grid(axis="x", alpha=0.3)
    return figure


def _thinned(values: np.ndarray) -> np.ndarray:
    """[T] as at most `MOST_POINTS` means over neighbours, of those that are there."""
    parts = np.array_split(values, min(len(values), MOST_POINTS))
    return np.array([np.nan if np.isnan(part).all() else np.nanmean(part) for part in parts])


def _is_there(analysis: Analysis, key: str) -> bool:
    return any((run.curves[key] == run.curves[key]).any() for runs in analysis.runs.values() for run in runs.values())
