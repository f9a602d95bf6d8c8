"""What the elementwise moments' benchmarks share: inputs and the bound."""

from __future__ import annotations

import torch
from torch import Tensor

from p3kernels.bench.actor import SIZES, generator
from p3kernels.bench.entry import Bound, Size, Tensors

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
