"""Benchmark of `leaky_relu_moments`, and of `relu_moments`, which is the same kernel with slope 0."""

from __future__ import annotations

import functools

import p3kernels
from p3kernels import reference
from p3kernels.bench import elementwise, printed_moments

_PRINTED = printed_moments.leaky_relu_moments

ENTRY = elementwise.entry(
    "leaky_relu_moments",
    "LeakyReLU",
    p3kernels.leaky_relu_moments,
    _PRINTED,
    reference.leaky_relu_moments,
    relative=("var",),
)
RELU_ENTRY = elementwise.entry(
    "relu_moments",
    "ReLU",
    p3kernels.relu_moments,
    functools.partial(_PRINTED, negative_slope=0.0),
    reference.relu_moments,
)
