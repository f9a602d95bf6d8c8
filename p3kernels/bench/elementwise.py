"""What the elementwise moments' benchmarks share: inputs, the bound, and all else but their functions."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from p3kernels.bench.actor import SIZES, generator
from p3kernels.bench.entry import Bound, Entry, Size, Tensors

INPUTS = f"[B, {SIZES[1]}], means ~ N(0, 2²), standard deviations log-uniform in [0.01, 2]"


def inputs(size: Size) -> Tensors:
    """Pre-activations of the actor's widest layer, from nearly certain ones to wide ones."""
    source = generator()
    mean = 2 * torch.randn(size.batch, SIZES[1], generator=source)
    exponent = torch.rand(size.batch, SIZES[1], generator=source)
    std = 0.01 * 200**exponent
    return {"mean": mean, "var": std.square()}


def _traffic(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    return tensors["mean"] * 1.5, tensors["var"] * 1.5


BOUND = Bound("traffic", lambda tensors, _: dict(tensors), _traffic)
"""Two tensors read and two written, in each direction: one multiplication an element."""

Moments = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def entry(
    name: str, activation: str, ours: Moments, eager: Moments, reference: Moments, relative: Collection[str] = ()
) -> Entry:
    """The benchmark of an op that takes mean and variance.

    Args:
        name: The op's.
        activation: As a reader knows it.
        ours: The op.
        eager: The printed formula, in torch.
        reference: The truth.
        relative: Outputs whose error is relative.
    """

    def on_tensors(function: Moments) -> Callable[[Tensors, Size], tuple[Tensor, Tensor]]:
        return lambda tensors, _: function(tensors["mean"], tensors["var"])

    return Entry(
        name=name,
        summary=f"moments of {activation}, elementwise: {INPUTS}",
        outputs=("mean", "var"),
        inputs=inputs,
        ours=on_tensors(ours),
        eager=on_tensors(eager),
        reference=on_tensors(reference),
        bound=BOUND,
        eager_is_exact=False,
        relative_outputs=frozenset(relative),
    )
