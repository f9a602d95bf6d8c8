"""The figures of a planned study: success of every seed by arm, and what the likelihoods did over the iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trainer.study.contrasts import LATENTS, Findings
from trainer.study.records import STEPS
from trainer.study.statistics import mean_std

CURVES = {
    "episode/success": "success of training episodes",
    "curriculum/difficulty": "curriculum difficulty",
    "loss/clip_fraction": "share of ratios that are clipped",
    "loss/kl": "KL of an update",
    "loss/learning_rate": "learning rate",
    "policy/latent_share": "Σv/σ²",
}
_LOGARITHMIC = ("loss/learning_rate", "policy/latent_share")
# Okabe and Ito's colours, which the colour-blind tell apart; dashes tell the second round of them apart.
_COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", ":")


def write_figures(findings: Findings, directory: Path) -> list[Path]:
    """Draws the study into `directory`, as study-NAME-success.svg and study-NAME-curves.svg."""
    import matplotlib as mpl  # noqa: PLC0415  slow to import, and only here

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    with plt.rc_context({"svg.hashsalt": "p3 study", "svg.fonttype": "none", "font.size": 9}):
        for kind, draw in (("success", _success), ("curves", _curves)):
            figure = draw(plt, findings)
            path = directory / f"study-{findings.planned.plan.name}-{kind}.svg"
            figure.savefig(path, metadata={"Date": None})
            plt.close(figure)
            paths.append(path)
    return paths


def style(index: int) -> tuple[str, str]:
    """Colour and dashes of an arm by its place in the study."""
    return _COLOURS[index % len(_COLOURS)], _DASHES[index // len(_COLOURS) % len(_DASHES)]


def _success(plt: Any, findings: Findings) -> Any:
    """A row an arm, a mark a seed: full at the latent's mean, open sampled; a bar for the mean of each."""
    arms = [arm for arm, records in findings.records.items() if records]
    figure, axis = plt.subplots(figsize=(7.6, 0.42 * len(arms) + 1.3), layout="constrained")
    for row, arm in enumerate(arms):
        colour, _ = style(list(findings.records).index(arm))
        for latent, offset in zip(LATENTS, (-0.14, 0.14), strict=True):
            values = [100 * value for value in findings.success(arm, latent).values()]
            face = colour if latent == "mean" else "none"
            axis.scatter(values, [row + offset] * len(values), facecolors=face, edgecolors=colour, s=22, zorder=3)
            axis.plot([mean_std(values)[0]] * 2, [row + offset - 0.13, row + offset + 0.13], color=colour, linewidth=2)
    axis.set_yticks(range(len(arms)), arms)
    axis.set_ylim(len(arms) - 0.4, -0.6)
    axis.set_xlabel("success in %, mean over difficulties and last checkpoints; full: z mean, open: z sampled")
    axis.grid(axis="x", alpha=0.3)
    return figure


def _curves(plt: Any, findings: Findings) -> Any:
    """A panel a quantity, a line an arm: the mean over its seeds; branches begin where their trunk ended."""
    columns = 2
    rows = -(-len(CURVES) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(9.6, 2.8 * rows + 0.6), layout="constrained", squeeze=False)
    for axis, (key, label) in zip(axes.flat, CURVES.items(), strict=False):
        for index, (arm, records) in enumerate(findings.records.items()):
            if records:
                colour, dashes = style(index)
                steps, mean = _mean_curve([record.curves for record in records.values()], key)
                axis.plot(steps / 1e6, mean, color=colour, linestyle=dashes, linewidth=1.3, label=arm)
        if findings.trunks:
            steps, mean = _mean_curve([trunk.curves for trunk in findings.trunks.values()], key)
            axis.plot(steps / 1e6, mean, color="#999999", linewidth=1.3, label="mm before the branches")
        axis.set_title(label, fontsize=10, loc="left")
        axis.set_xlabel("environment steps, millions")
        axis.grid(alpha=0.3)
        axis.margins(x=0)
        if key in _LOGARITHMIC:
            axis.set_yscale("log")
    for axis in axes.flat[len(CURVES) :]:
        axis.set_axis_off()
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)), frameon=False)
    return figure


def _mean_curve(curves: list[dict[str, np.ndarray]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the mean over runs, at the points where something was logged."""
    longest = max(curves, key=lambda curve: len(curve[STEPS]))[STEPS]
    stacked = np.full((len(curves), len(longest)), np.nan)  # a run that diverged ends earlier
    for row, curve in zip(stacked, curves, strict=True):
        row[: len(curve[key])] = curve[key]
    known = (~np.isnan(stacked)).any(0)
    return longest[known], np.nanmean(stacked[:, known], 0)
