"""The ops as the check calls them: inputs by size, tolerances, and the precisions that their products may have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import p3kernels
from p3kernels.bench.actor import LATENT
from p3kernels.bench.actor import SIZES as ACTOR

Inputs = dict[str, Tensor]
"""Flat: "weights.0", "weights.1", … are one list argument."""

PRECISIONS = ("ieee", "tf32x3", "tf32", "bf16")
TOLERANCES = {"ieee": (1e-5, 1e-4), "tf32x3": (1e-5, 1e-4), "tf32": (1e-2, 1e-2), "bf16": (2e-2, 2e-2)}
"""Errors of outputs and gradients, over the largest expected element and beyond twice that of plain float32; tf32 and
bf16: four times what rounding the operands costs (tools/dot_precision_error.py)."""


@dataclass(frozen=True)
class Op:
    """One op, or one way to call it."""

    name: str
    call: Callable[..., Any]
    inputs: Callable[[Sequence[int], torch.Generator], Inputs]
    sizes: dict[str, tuple[int, ...]]
    """By name; "actor" is that of the G1, for a device that is fast enough."""
    options: dict[str, Any] = field(default_factory=dict)
    products: bool = False
    """Whether it takes `precision`, on the Triton backend."""
    constant: tuple[str, ...] = ()
    """Inputs without a gradient."""
    kernels: tuple[str, ...] = ("triton", "cuda")
    """Backends that have kernels of their own for it."""

    def make(self, size: str, dtype: torch.dtype) -> Inputs:
        """Seeded inputs on the CPU, rounded to `dtype`."""
        made = self.inputs(self.sizes[size], torch.Generator().manual_seed(5))
        return {name: tensor.to(dtype) for name, tensor in made.items()}

    def outputs(self, inputs: Inputs, backend: str, **more: Any) -> tuple[Tensor, ...]:
        """The op at flat inputs."""
        found = self.call(**grouped(inputs), **self.options, **more, backend=backend)
        return found if isinstance(found, tuple) else (found,)


def grouped(inputs: Inputs) -> dict[str, Any]:
    """{"weights.0": a, "weights.1": b} → {"weights": [a, b]}."""
    arguments: dict[str, Any] = {}
    for name, tensor in inputs.items():
        head, dot, _ = name.partition(".")
        if dot:
            arguments.setdefault(head, []).append(tensor)
        else:
            arguments[name] = tensor
    return arguments


def _normal(source: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def _positive(source: torch.Generator, *shape: int) -> Tensor:
    return 0.1 + torch.rand(*shape, generator=source, dtype=torch.float64)


def _layers(source: torch.Generator, widths: Sequence[int]) -> Inputs:
    pairs = list(enumerate(itertools.pairwise(widths)))
    weights = {f"weights.{k}": _normal(source, o, i) / math.sqrt(max(i, 1)) for k, (i, o) in pairs}
    return weights | {f"biases.{k}": 0.3 * _normal(source, o) for k, (_, o) in pairs}


def _elementwise(size: Sequence[int], source: torch.Generator) -> Inputs:
    return {"mean": 2 * _normal(source, *size), "var": 3 * _positive(source, *size).square()}


def _linear(size: Sequence[int], source: torch.Generator) -> Inputs:
    rows, inputs, stochastic, outputs = size
    layer = _layers(source, (inputs, outputs))
    moments = {"mean": _normal(source, rows, inputs), "var": _positive(source, rows, stochastic)}
    return {**moments, "weight": layer["weights.0"], "bias": layer["biases.0"]}


def _network(size: Sequence[int], source: torch.Generator) -> Inputs:
    rows, inputs, stochastic, *widths = size
    moments = {"mean": _normal(source, rows, inputs), "var": _positive(source, rows, stochastic)}
    return {**moments, **_layers(source, (inputs, *widths))}


def _mixture(size: Sequence[int], source: torch.Generator) -> Inputs:
    samples, rows, actions = size
    return {
        "action": _normal(source, rows, actions),
        "means": 0.7 * _normal(source, samples, rows, actions),
        "std": 0.3 + _positive(source, actions),
    }


def _policy(size: Sequence[int], source: torch.Generator) -> Inputs:
    samples, rows, _, latent, *_ = size
    return {
        **_drawing_policy(size, source),
        "noise": _normal(source, samples, rows, latent),
    }


def _drawing_policy(size: Sequence[int], source: torch.Generator) -> Inputs:
    _, rows, context, latent, *widths = size
    return {
        "action": _normal(source, rows, widths[-1]),
        "context": _normal(source, rows, context),
        "latent_mean": _normal(source, rows, latent),
        "latent_std": _positive(source, rows, latent),
        **_layers(source, (context + latent, *widths)),
        "std": 0.5 + _positive(source, widths[-1]),
    }


def _head(size: Sequence[int], source: torch.Generator) -> Inputs:
    rows, actions = size
    return {
        "action": _normal(source, rows, actions),
        "mean": _normal(source, rows, actions),
        "var": _positive(source, rows, actions),
        "std": 0.3 + _positive(source, actions),
        "old_mean": _normal(source, rows, actions),
        "old_std": 0.5 + _positive(source, rows, actions),
    }


def _mixture_call(noise: Tensor, **named: Any) -> Tensor:
    return p3kernels.mlp_mixture_log_prob(noise=noise, num_samples=noise.shape[0], **named)


def _drawing_call(**named: Any) -> Tensor:
    return p3kernels.mlp_mixture_log_prob(num_samples=6, seed=11, **named)


_ELEMENTWISE = {"one": (1,), "odd": (3, 5), "prime": (7, 11, 13), "empty": (0, 4), "actor": (4097, 512)}
_POLICY = {
    "one": (1, 1, 1, 1, 1, 1),
    "odd": (7, 3, 3, 2, 7, 5, 5),
    "prime": (5, 31, 13, 11, 17, 7, 3),
    "empty": (7, 0, 3, 2, 7, 5, 5),
    "actor": (6, 1001, ACTOR[0] - LATENT, LATENT, *ACTOR[1:]),
}
_LAYER: dict[str, tuple[int, ...]] = {
    "one": (1, 1, 1, 1),
    "odd": (3, 5, 3, 7),
    "prime": (31, 13, 11, 17),
    "empty": (0, 5, 3, 7),
    "actor": (4097, 209, 110, 512),
}
_NETWORK = {
    "one": (1, 1, 1, 1, 1),
    "odd": (3, 5, 3, 7, 5, 3),
    "prime": (31, 13, 11, 17, 5, 7),
    "empty": (0, 5, 3, 7, 5, 3),
    "blocks": (70, 35, 19, 66, 3),  # above every block, with a rest
    "actor": (4097, ACTOR[0], LATENT, *ACTOR[1:]),
}

OPS = (
    Op("elu_moments", p3kernels.elu_moments, _elementwise, _ELEMENTWISE, {"alpha": 1.3}),
    Op("relu_moments", p3kernels.relu_moments, _elementwise, _ELEMENTWISE),
    Op("leaky_relu_moments", p3kernels.leaky_relu_moments, _elementwise, _ELEMENTWISE, {"negative_slope": 0.2}),
    Op(
        "linear_moments",
        p3kernels.linear_moments,
        _linear,
        _LAYER,
        kernels=(),
    ),
    Op(
        "linear_elu_moments",
        p3kernels.linear_elu_moments,
        _linear,
        _LAYER,
        {"alpha": 1.3},
        products=True,
    ),
    Op("mlp_moments", p3kernels.mlp_moments, _network, _NETWORK, products=True),
    Op(
        "mixture_log_prob",
        p3kernels.mixture_log_prob,
        _mixture,
        {"one": (1, 1, 1), "odd": (7, 3, 5), "prime": (13, 31, 29), "empty": (7, 0, 5), "actor": (15, 4097, 29)},
    ),
    Op("mlp_mixture_log_prob", _mixture_call, _policy, _POLICY, products=True),
    Op("mlp_mixture_log_prob, drawn", _drawing_call, _drawing_policy, _POLICY, products=True),
    Op(
        "gaussian_head",
        p3kernels.gaussian_head,
        _head,
        {"one": (1, 1), "odd": (3, 5), "prime": (31, 29), "empty": (0, 5), "actor": (4097, 29)},
        constant=("old_mean", "old_std"),
    ),
)
