"""One picture an op: time, and memory where it was measured, by size and contestant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p3kernels.bench.entry import Entry
from p3kernels.bench.results import CaseResult, ContestantResult

COLOURS = {"ours": "#0072b2", "eager": "#d55e00", "compile": "#e69f00", "bound": "#999999"}
"""Okabe and Ito's, which the colour-blind tell apart."""
MISSING = "matplotlib is not installed (pip install 'p3kernels[bench]')"


def write_plot(path: Path, entry: Entry, cases: Sequence[CaseResult], subtitle: str) -> str | None:
    """Writes a PNG; returns why not where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  optional, and slow to import
    except ImportError:
        return MISSING
    with_memory = any(r.peak_bytes is not None for case in cases for r in case.contestants.values())
    panels = [("forward", "ms"), ("forward_backward", "ms"), *([("peak memory", "MiB")] if with_memory else [])]
    figure = Figure(figsize=(1.5 + (1.8 + 1.1 * len(cases)) * len(panels), 4.2), layout="constrained")
    for axes, (panel, unit) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, cases, panel, unit)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"{entry.name}\n{subtitle}", fontsize=10)
    figure.savefig(path, dpi=150)
    return None


def _value(result: ContestantResult, panel: str) -> float | None:
    if panel == "peak memory":
        return None if result.peak_bytes is None else result.peak_bytes / 2**20
    return result.timings[panel].best_ms if panel in result.timings else None


def _draw_panel(axes: Any, cases: Sequence[CaseResult], panel: str, unit: str) -> None:
    """Bars by size, one colour a contestant, on a log scale: the contestants are orders of magnitude apart."""
    names = [name for name in COLOURS if any(name in case.contestants for case in cases)]
    width = 0.84 / len(names)
    for index, name in enumerate(names):
        offset = (index - (len(names) - 1) / 2) * width
        found = [
            (at, _value(case.contestants[name], panel)) for at, case in enumerate(cases) if name in case.contestants
        ]
        shown = [(at + offset, value) for at, value in found if value is not None]
        label = next(case.contestants[name].label for case in cases if name in case.contestants)
        bars = axes.bar([at for at, _ in shown], [value for _, value in shown], width, color=COLOURS[name], label=label)
        axes.bar_label(
            bars, fmt=lambda value: f"{value:.0f}" if value >= 100 else f"{value:.3g}", fontsize=6, padding=1
        )
    axes.set_yscale("log")
    axes.margins(y=0.1)
    axes.set_xticks(range(len(cases)), [case.size.label for case in cases], fontsize=8)
    axes.set_title({"forward_backward": "forward + backward"}.get(panel, panel), fontsize=9)
    axes.set_ylabel(f"{unit}{', best turn' if unit == 'ms' else ', forward + backward'}", fontsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
