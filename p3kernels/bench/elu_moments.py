"""Benchmark of `elu_moments`."""

from __future__ import annotations

import p3kernels
from p3kernels import reference
from p3kernels.bench import elementwise, printed_moments
from p3kernels.bench.entry import Entry

ENTRY = Entry(
    name="elu_moments",
    summary=f"moments of ELU, elementwise: {elementwise.INPUTS}",
    outputs=("mean", "var"),
    inputs=elementwise.inputs,
    ours=lambda tensors, _: p3kernels.elu_moments(tensors["mean"], tensors["var"]),
    eager=lambda tensors, _: printed_moments.elu_moments(tensors["mean"], tensors["var"]),
    reference=lambda tensors, _: reference.elu_moments(tensors["mean"], tensors["var"]),
    bound=elementwise.BOUND,
    eager_is_exact=False,
    relative_outputs=frozenset({"var"}),
)
