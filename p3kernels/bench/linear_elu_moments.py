"""Benchmark of `linear_elu_moments`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from p3kernels.bench import printed_moments
from p3kernels.bench.actor import SIZES, generator, parameters
from p3kernels.bench.entry import Size, Tensors
from p3kernels.bench.moments import entry


def _inputs(size: Size) -> Tensors:
    source = generator()
    mean = torch.randn(size.batch, SIZES[1], generator=source)
    std = 0.2 + 0.8 * torch.rand(size.batch, SIZES[1], generator=source)
    return {"mean": mean, "var": std.square()} | parameters(SIZES[1:3])


def _call(functions: Any, tensors: Tensors) -> tuple[Tensor, Tensor]:
    return functions.linear_elu_moments(tensors["mean"], tensors["var"], tensors["weights.0"], tensors["biases.0"])


def _eager(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    weight = tensors["weights.0"]
    mean = functional.linear(tensors["mean"], weight, tensors["biases.0"])
    return printed_moments.elu_moments(mean, functional.linear(tensors["var"], weight.square()))


SUMMARY = f"moments through one layer {SIZES[1]} → {SIZES[2]} and ELU, every input stochastic"
ENTRY = entry("linear_elu_moments", SUMMARY, _call, _eager, inputs=_inputs, measures_memory=False)
