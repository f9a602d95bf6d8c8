"""Benchmark of `leaky_relu_moments`, and of `relu_moments`, which is the same kernel with slope 0."""

from __future__ import annotations

import p3kernels
from p3kernels import reference
from p3kernels.bench import elementwise, printed_moments
from p3kernels.bench.entry import Entry

ENTRY = Entry(
    name="leaky_relu_moments",
    summary=f"moments of LeakyReLU, elementwise: {elementwise.INPUTS}",
    outputs=("mean", "var"),
    inputs=elementwise.inputs,
    ours=lambda tensors, _: p3kernels.leaky_relu_moments(tensors["mean"], tensors["var"]),
    eager=lambda tensors, _: printed_moments.leaky_relu_moments(tensors["mean"], tensors["var"]),
    reference=lambda tensors, _: reference.leaky_relu_moments(tensors["mean"], tensors["var"]),
    bound=elementwise.BOUND,
    eager_is_exact=False,
    relative_outputs=frozenset({"var"}),
)

RELU_ENTRY = Entry(
    name="relu_moments",
    summary=f"moments of ReLU, elementwise: {elementwise.INPUTS}",
    outputs=("mean", "var"),
    inputs=elementwise.inputs,
    ours=lambda tensors, _: p3kernels.relu_moments(tensors["mean"], tensors["var"]),
    eager=lambda tensors, _: printed_moments.leaky_relu_moments(tensors["mean"], tensors["var"], 0.0),
    reference=lambda tensors, _: reference.relu_moments(tensors["mean"], tensors["var"]),
    bound=elementwise.BOUND,
    eager_is_exact=False,
)
