"""The numbers of a benchmark, and how they are written down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from p3kernels.bench.entry import Size
from p3kernels.bench.timing import Timing
from p3kernels.bench.verify import GRADIENT_TOLERANCE, OUTPUT_TOLERANCE, Comparison, worst

MODES = ("forward", "forward_backward")
QUIET_CORES = 0.1
"""Other processes may use this much of a core before the table speaks of noise: two threads that wait for each other
at every step are slowed many times by a third one."""


@dataclass
class ContestantResult:
    """What became of one contestant at one size."""

    label: str
    compared_with: str | None = None
    comparisons: Sequence[Comparison] = ()
    timings: dict[str, Timing] = field(default_factory=dict)
    """By mode; empty if it could not run."""
    skipped: str | None = None
    """Why it could not run."""
    peak_bytes: int | None = None
    peak_note: str | None = None
    """Why there is no peak."""

    def error(self, *, gradients: bool) -> float | None:
        """The largest error of the outputs or the gradients, or None if they were not compared."""
        return worst(self.comparisons, gradients=gradients) if self.comparisons else None

    def as_json(self) -> dict[str, object]:
        """Everything, with None for an error that is not a number."""
        errors = {
            c.tensor: {"largest": c.error if math.isfinite(c.error) else None, "share_beyond_tolerance": c.share}
            for c in self.comparisons
        }
        return {
            "label": self.label,
            "skipped": self.skipped,
            "compared_with": self.compared_with,
            "within_tolerance": all(c.ok for c in self.comparisons) if self.comparisons else None,
            "errors": errors,
            **{mode: self.timings[mode].as_json() if mode in self.timings else None for mode in MODES},
            "peak_bytes": self.peak_bytes,
            "peak_note": self.peak_note,
        }


@dataclass
class CaseResult:
    """All contestants at one size. It exists only if ours agreed with the reference."""

    size: Size
    reference_size: Size
    repeats: int
    contestants: dict[str, ContestantResult]
    other_cores: float | None = None
    """How many cores other processes used during the timing; None where the system does not tell."""

    def ratio(self, name: str, base: str, mode: str) -> float | None:
        """Best time of `name` over that of `base`, or None where one of them was not timed."""
        times = [self.contestants[key].timings.get(mode) for key in (name, base) if key in self.contestants]
        if len(times) != 2 or times[0] is None or times[1] is None:
            return None
        return times[0].best_ms / times[1].best_ms

    def as_json(self) -> dict[str, object]:
        """The numbers and the ratios made of them."""
        others = [name for name in ("eager", "compile") if name in self.contestants]
        return {
            "batch": self.size.batch,
            "samples": self.size.samples,
            "repeats": self.repeats,
            "cores_used_by_others": self.other_cores,
            "verified": True,
            "verified_rows": self.reference_size.batch,
            "tolerances": {"outputs": OUTPUT_TOLERANCE, "gradients": GRADIENT_TOLERANCE},
            "contestants": {name: result.as_json() for name, result in self.contestants.items()},
            "speed_up": {name: {mode: self.ratio(name, "ours", mode) for mode in MODES} for name in others},
            "times_bound": {mode: self.ratio("ours", "bound", mode) for mode in MODES},
        }
