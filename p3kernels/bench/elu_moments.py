"""Benchmark of `elu_moments`."""

from __future__ import annotations

import p3kernels
from p3kernels import reference
from p3kernels.bench import elementwise, printed_moments

ENTRY = elementwise.entry(
    "elu_moments", "ELU", p3kernels.elu_moments, printed_moments.elu_moments, reference.elu_moments, relative=("var",)
)
