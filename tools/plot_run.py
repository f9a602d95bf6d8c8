"""Draws runs' reward, episode length and, where there is one, difficulty: python tools/plot_run.py RUN... OUT.svg."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import matplotlib as mpl

from trainer.runs.metrics import estimator_name, read_metrics

mpl.use("Agg")
import matplotlib.pyplot as plt

plt.rcParams.update({"path.simplify_threshold": 1.0, "svg.fonttype": "none", "svg.hashsalt": "p3"})  # small files
PANELS = (
    ("episode/reward", "episode reward"),
    ("episode/length", "episode length, steps"),
    ("curriculum/difficulty", "difficulty"),
)


def main(run_dirs: list[str], out: str) -> None:
    """One panel a quantity, one line a run; a dashed line where the estimator changes."""
    runs = {Path(name).name: read_metrics(Path(name)) for name in run_dirs}
    panels = [
        (key, label) for key, label in PANELS if any(row.get(key) is not None for r in runs.values() for row in r)
    ]
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.0), layout="constrained")
    for axis, (key, label) in zip(axes, panels, strict=True):
        for name, rows in runs.items():
            shown = [row for row in rows if row.get(key) is not None]
            (line,) = axis.plot([r["iteration"] for r in shown], [r[key] for r in shown], label=name, linewidth=1.2)
            for before, after in itertools.pairwise(rows):
                if estimator_name(before) != estimator_name(after):
                    axis.axvline(before["iteration"], color=line.get_color(), linestyle="--", linewidth=0.8)
        axis.set_xlabel("iteration")
        axis.set_title(label, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1:-1], sys.argv[-1])
