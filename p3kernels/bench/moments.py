"""What the benchmarks of moments through layers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

import p3kernels
from p3kernels import reference
from p3kernels.bench.actor import moment_inputs, moment_products
from p3kernels.bench.entry import Bound, Entry, Forward, Size, Tensors

PRODUCTS = Bound("GEMMs", lambda tensors, _: dict(tensors), moment_products)
"""The matrix products of both moments."""


def entry(
    name: str,
    summary: str,
    call: Callable[[Any, Tensors], tuple[Tensor, Tensor]],
    eager: Forward | None = None,
    *,
    second: str = "var",
    inputs: Callable[[Size], Tensors] = moment_inputs,
    bound: Bound = PRODUCTS,
    measures_memory: bool = True,
) -> Entry:
    """The benchmark of an op that pushes a mean and a variance through layers.

    Args:
        name: The op's.
        summary: What is measured and on what inputs, in a line.
        call: Runs the op of a module, `p3kernels` or its reference, on the inputs.
        eager: The printed formula, in torch; None for the reference itself: a user would write the same.
        second: The output beside the mean.
        inputs: Makes the inputs of a size.
        bound: The work that the op cannot do without.
        measures_memory: Whether the memory of a training step is measured, too.
    """

    def truth(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
        return call(reference, tensors)

    return Entry(
        name=name,
        summary=summary,
        outputs=("mean", second),
        inputs=inputs,
        ours=lambda tensors, _: call(p3kernels, tensors),
        eager=eager or truth,
        reference=truth,
        bound=bound,
        eager_is_exact=eager is None,
        measures_memory=measures_memory,
    )
