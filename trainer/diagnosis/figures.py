"""The figures of `p3 diagnose` as PNG files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from p3kernels.diagnostics import plots
from trainer.diagnosis.files import CAPTIONS
from trainer.diagnosis.numbers import Diagnosis
from trainer.diagnosis.tables import PAPER_EFFICIENCY
from trainer.runs.files import replace_file


def write_figures(found: Mapping[str, Diagnosis], folder: Path, names: Sequence[str] | None) -> list[Path]:
    """Draws every figure into `folder`.

    Args:
        found: By the checkpoint's name.
        folder: It exists.
        names: Names of the actions; None to number them.

    Returns:
        The files; none where matplotlib is not installed.
    """
    try:
        drawn = _drawn(found, names)
    except ImportError:
        return []
    paths = []
    for name in CAPTIONS:
        content = io.BytesIO()
        drawn[name].savefig(content, format="png", metadata={"Software": None})
        paths.append(folder / f"{name}.png")
        replace_file(paths[-1], content.getvalue())
    return paths


def _drawn(found: Mapping[str, Diagnosis], names: Sequence[str] | None) -> dict[str, Any]:
    def each(part: str) -> dict[str, Any]:
        return {name: getattr(diagnosis, part) for name, diagnosis in found.items()}

    tests = {name: list(d.gaussianity.values())[len(d.gaussianity) // 2] for name, d in found.items()}
    return {
        "data_efficiency": plots.draw_data_efficiency(each("data_efficiency"), PAPER_EFFICIENCY),
        "kl_scan": plots.draw_kl_scan(each("kl")),
        "action_cloud": plots.draw_action_cloud(each("cloud"), names),
        "variance_gap": plots.draw_variance_gap(each("variance_gap"), names),
        "gaussianity": plots.draw_gaussianity(tests, names),
        "correlation": plots.draw_correlation(each("correlation")),
        "linearity": plots.draw_linearity(each("linearity"), names),
        "gradient_noise": plots.draw_gradient_noise(each("gradient_noise")),
        "noise_scaling": plots.draw_noise_scaling(each("noise_scaling")),
    }
