"""The benchmark entries by op name; an entry's module is imported when it is asked for."""

from __future__ import annotations

import importlib

from p3kernels.bench.entry import Entry

# op → module and attribute. `linear_moments` is two torch products on every backend: there is nothing to compare.
_ENTRIES = {
    "elu_moments": ("elu_moments", "ENTRY"),
    "relu_moments": ("leaky_relu_moments", "RELU_ENTRY"),
    "leaky_relu_moments": ("leaky_relu_moments", "ENTRY"),
    "linear_elu_moments": ("linear_elu_moments", "ENTRY"),
    "mlp_moments": ("mlp_moments", "ENTRY"),
    "mlp_covariance": ("mlp_covariance", "ENTRY"),
    "mixture_log_prob": ("mixture_log_prob", "ENTRY"),
    "mlp_mixture_log_prob": ("mlp_mixture_log_prob", "ENTRY"),
}

OPS = tuple(_ENTRIES)


def load_entry(op: str) -> Entry:
    """The entry of an op of `OPS`."""
    module, attribute = _ENTRIES[op]
    return getattr(importlib.import_module(f"p3kernels.bench.{module}"), attribute)
