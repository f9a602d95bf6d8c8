"""Comparison of results, outputs and gradients alike: no speed-up is told of something that computes something else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from p3kernels.bench.contestants import Contestant, build, build_reference
from p3kernels.bench.entry import Entry, Size, Tensors

OUTPUT_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
"""The accuracy the ops promise in float32: a hundred roundings for a value, a thousand for a gradient."""
REFERENCE_ROWS = 4096
REFERENCE_SAMPLES = 20480
"""Samples × rows of the float64 reference: more than one tile of the kernels, and not gigabytes."""


class VerificationError(RuntimeError):
    """Two contestants that should agree do not."""


@dataclass(frozen=True)
class Comparison:
    """How far one tensor is from what it should be."""

    tensor: str
    error: float
    """Relative to the largest expected element (to each element, where the entry says so); inf for NaN or a shape."""
    tolerance: float
    share: float
    """The part of the elements that are beyond the tolerance."""

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.error <= self.tolerance


def compare_tensor(name: str, got: Tensor, expected: Tensor, tolerance: float, *, relative: bool = False) -> Comparison:
    """The largest error of `got`, relative to each expected element or to the largest of them.

    Raises:
        VerificationError: `expected` is zero everywhere, so that the comparison would say nothing.
    """
    if got.shape != expected.shape:
        return Comparison(name, math.inf, tolerance, 1.0)
    got, expected = got.double(), expected.double()
    largest = expected.abs().max().item()
    if largest == 0:
        raise VerificationError(f"{name}: expected values are zero everywhere, there is nothing to compare with")
    if not math.isfinite(largest):
        raise VerificationError(f"{name}: expected values are not finite")
    scale = expected.abs().clamp_min(torch.finfo(torch.float32).tiny) if relative else largest
    errors = ((got - expected).abs() / scale).nan_to_num(nan=math.inf, posinf=math.inf)
    share = (errors > tolerance).double().mean().item()
    return Comparison(name, errors.max().item(), tolerance, share)


def compare(
    got: tuple[Sequence[Tensor], Tensors],
    expected: tuple[Sequence[Tensor], Tensors],
    output_names: Sequence[str],
    relative: frozenset[str] = frozenset(),
) -> list[Comparison]:
    """Every output and every gradient of (outputs, gradients by name) against the expected ones."""
    comparisons = [
        compare_tensor(name, mine, theirs, OUTPUT_TOLERANCE, relative=name in relative)
        for name, mine, theirs in zip(output_names, got[0], expected[0], strict=True)
    ]
    return comparisons + [
        compare_tensor(name, got[1][name], gradient, GRADIENT_TOLERANCE) for name, gradient in expected[1].items()
    ]


def require(comparisons: Sequence[Comparison], who: str, against: str) -> None:
    """Raises VerificationError, with every tensor that is off, unless all are within tolerance."""
    wrong = [c for c in comparisons if not c.ok]
    if wrong:
        details = "; ".join(f"{c.tensor} is off by {c.error:.1e} (tolerance {c.tolerance:.0e})" for c in wrong)
        raise VerificationError(f"{who} disagrees with {against}: {details}")


def worst(comparisons: Sequence[Comparison], *, gradients: bool) -> float:
    """The largest error among the gradients or among the outputs."""
    return max(c.error for c in comparisons if (c.tolerance == GRADIENT_TOLERANCE) == gradients)


def reference_size(size: Size) -> Size:
    """`size`, with fewer rows where the float64 reference would be too large."""
    limit = REFERENCE_ROWS if size.samples is None else max(1, REFERENCE_SAMPLES // size.samples)
    return Size(min(size.batch, REFERENCE_ROWS, limit), size.samples)


def verify_ours(entry: Entry, size: Size) -> list[Comparison]:
    """Our op, as it is timed, against the float64 reference on at most `REFERENCE_ROWS` rows; raises if it is off."""
    small = reference_size(size)
    ours = build(entry, small, "ours")
    assert ours is not None
    truth = build_reference(entry, small).results()
    comparisons = compare(ours.results(), truth, entry.outputs, entry.relative_outputs)
    require(comparisons, f"{entry.name} {small.label}: ours", "the float64 reference")
    return comparisons


def verify_other(entry: Entry, contestant: Contestant, ours: Contestant) -> list[Comparison]:
    """Another contestant against ours at the timed size, on one draw; raises unless its formula may be inexact."""
    given = entry.draw(ours.size) if entry.draw is not None else {}
    comparisons = compare(contestant.results(given), ours.results(given), entry.outputs, entry.relative_outputs)
    if entry.eager_is_exact:
        require(comparisons, f"{entry.name} {ours.size.label}: {contestant.label}", "ours")
    return comparisons
