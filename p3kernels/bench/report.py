"""The table on the terminal and the JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from p3kernels.bench.entry import Entry
from p3kernels.bench.memory import METHOD
from p3kernels.bench.results import MODES, QUIET_CORES, CaseResult, ContestantResult
from p3kernels.bench.verify import GRADIENT_TOLERANCE, OUTPUT_TOLERANCE

TOLERANCES = f"outputs {OUTPUT_TOLERANCE:.0e}, gradients {GRADIENT_TOLERANCE:.0e}"


def _milliseconds(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _error(result: ContestantResult, tolerance: float, *, gradients: bool) -> str:
    error = result.error(gradients=gradients)
    return "" if error is None else f"{error:.1e}{'' if error <= tolerance else ' !'}"


def _row(case: CaseResult, name: str) -> list[str]:
    result = case.contestants[name]
    cells = [result.label]
    for mode in MODES:
        timing = result.timings.get(mode)
        speed_up = None if name in ("ours", "bound") else case.ratio(name, "ours", mode)
        times_bound = None if name == "bound" else case.ratio(name, "bound", mode)
        cells += ["-", "-"] if timing is None else [_milliseconds(timing.best_ms), _milliseconds(timing.median_ms)]
        cells += ["" if ratio is None else f"{ratio:.2f}x" for ratio in (speed_up, times_bound)]
    cells += [
        _error(result, OUTPUT_TOLERANCE, gradients=False),
        _error(result, GRADIENT_TOLERANCE, gradients=True),
        "" if result.peak_bytes is None else f"{result.peak_bytes / 2**20:.0f}",
    ]
    return cells


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the rest to the right; a column of nothing but its header is left out."""
    keep = [i for i in range(len(rows[0])) if i == 0 or any(row[i] for row in rows[2:])]
    rows = [[row[i] for i in keep] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(keep))]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def format_tables(entry: Entry, cases: Sequence[CaseResult]) -> str:
    """One table a size, and what the columns mean."""
    bound = f"x {entry.bound.name}" if entry.bound is not None else ""
    columns = ["best ms", "median ms", "speed-up", bound]
    lines = [f"{entry.name}: {entry.summary}"]
    for case in cases:
        header = ["", *["forward", "", "", ""], *["fwd+bwd", "", "", ""], "error of", "error of", "peak"]
        names = [case.size.label, *columns, *columns, "outputs", "gradients", "MiB"]
        aligned = _align([header, names, *(_row(case, name) for name in case.contestants)])
        lines += ["", *(line.rstrip() for line in aligned)]
        if case.other_cores is not None and case.other_cores > QUIET_CORES:
            lines.append(f"noisy: other processes used {case.other_cores:.1f} cores while this was timed")
        for result in case.contestants.values():
            if result.skipped is not None:
                lines.append(f"{result.label} did not run: {result.skipped}")
            elif result.peak_note is not None:
                lines.append(f"{result.label}, peak memory not measured: {result.peak_note}")
    return "\n".join([*lines, "", *_legend(entry, cases)])


def _inaccuracies(label: str, result: ContestantResult) -> list[str]:
    """A line about the tensors beyond the tolerance, how many of their elements, and by how much; or none."""
    wrong = [
        f"{c.tensor} in {100 * c.share:.2g} % of the elements, at worst by {c.error:.1e}"
        for c in result.comparisons
        if not c.ok
    ]
    if not wrong:
        return []
    return [
        f"! {result.label}, {label}: beyond tolerance ({TOLERANCES}), for the printed formula loses digits in "
        f"float32 on these inputs: {'; '.join(wrong)}."
    ]


def _legend(entry: Entry, cases: Sequence[CaseResult]) -> list[str]:
    rows = ", ".join(sorted({str(case.reference_size.batch) for case in cases}, key=int))
    each = f" ({', '.join(sorted(entry.relative_outputs))}: of each element)" if entry.relative_outputs else ""
    lines = [line for c in cases for result in c.contestants.values() for line in _inaccuracies(c.size.label, result)]
    lines += [
        "speed-up: of ours over this row, best against best. Turns are interleaved; forward runs without a graph.",
        f"error: ours against the float64 reference on {rows} rows, the others against ours; largest one, relative to "
        f"the tensor's largest element{each}.",
    ]
    if any(result.peak_bytes is not None for case in cases for result in case.contestants.values()):
        lines.append(f"peak: {METHOD}.")
    return lines


def write_json(path: Path, entry: Entry, cases: Sequence[CaseResult], record: dict[str, object]) -> None:
    """Everything that was measured of an op, with the record of machine, versions and command line."""
    content = {
        "op": entry.name,
        "summary": entry.summary,
        "bound": entry.bound.name if entry.bound is not None else None,
        "verified": True,
        **record,
        "memory_method": METHOD,
        "cases": [case.as_json() for case in cases],
    }
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
