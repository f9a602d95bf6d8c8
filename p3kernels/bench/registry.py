"""The benchmark entries by op name; an entry's module is imported when it is asked for."""

from __future__ import annotations

import importlib

from p3kernels.bench.entry import Entry

_ELSEWHERE = {"relu_moments": ("leaky_relu_moments", "RELU_ENTRY")}
"""Op to module and attribute, where it is not ENTRY of the module of its name."""


def load_entry(op: str) -> Entry:
    """The entry of an op of `p3kernels.bench.options.OPS`."""
    module, attribute = _ELSEWHERE.get(op, (op, "ENTRY"))
    return getattr(importlib.import_module(f"p3kernels.bench.{module}"), attribute)
