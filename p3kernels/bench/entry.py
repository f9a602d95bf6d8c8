"""What a benchmark entry says about its op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Tensors = dict[str, Tensor]

SEED = 2024
"""Seed of every input, and of the draw inside the Monte Carlo op: two runs measure the same numbers."""


@dataclass(frozen=True)
class Size:
    """One point of a benchmark: rows, and samples for the ops that have them."""

    batch: int
    samples: int | None = None

    @property
    def label(self) -> str:
        """B=4096 or B=4096 N=5, as it stands in tables."""
        return f"B={self.batch}" if self.samples is None else f"B={self.batch} N={self.samples}"


Forward = Callable[[Tensors, Size], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Bound:
    """Work that the op cannot do without, as a measure of how much it adds."""

    name: str
    """"GEMMs" or "traffic": what is left of the op."""
    inputs: Callable[[Tensors, Size], Tensors]
    """The bound's own inputs, made from the op's before the clock starts."""
    forward: Forward


@dataclass(frozen=True)
class Entry:
    """An op, its inputs, and the other ways of computing the same thing.

    All forwards take the same named tensors, every one of which requires a gradient, and return the op's outputs.
    """

    name: str
    summary: str
    """What is measured and on what inputs, in a line."""
    outputs: tuple[str, ...]
    inputs: Callable[[Size], Tensors]
    """float32 tensors, seeded."""
    ours: Forward
    eager: Forward
    """Plain torch as a user would write it; torch.compile gets the same function."""
    reference: Forward
    """The truth; called with float64 tensors."""
    bound: Bound | None = None
    eager_is_exact: bool = True
    """False where the formula a user would take from the paper loses digits: then its error is shown, not fatal."""
    relative_outputs: frozenset[str] = frozenset()
    """Outputs compared element by element, relative to the element; the others relative to the largest element."""
    over_samples: bool = False
    """Whether the op has a number of samples N to vary."""
    draw: Callable[[Size], Tensors] | None = None
    """Random tensors that eager torch draws anew at each call, inside the timing; ours draws its own from a seed."""
    reference_draw: Callable[[Size], Tensors] | None = None
    """The numbers of the seed that ours draws from, in float64."""
    measures_memory: bool = False
