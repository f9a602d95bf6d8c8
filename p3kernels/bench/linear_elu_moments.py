"""Benchmark of `linear_elu_moments`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import p3kernels
from p3kernels import reference
from p3kernels.bench import printed_moments
from p3kernels.bench.actor import SIZES, generator, moment_products, parameters
from p3kernels.bench.entry import Bound, Entry, Size, Tensors


def _inputs(size: Size) -> Tensors:
    source = generator()
    mean = torch.randn(size.batch, SIZES[1], generator=source)
    std = 0.2 + 0.8 * torch.rand(size.batch, SIZES[1], generator=source)
    return {"mean": mean, "var": std.square()} | parameters(SIZES[1:3])


def _ours(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    return p3kernels.linear_elu_moments(tensors["mean"], tensors["var"], tensors["weights.0"], tensors["biases.0"])


def _eager(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    weight = tensors["weights.0"]
    mean = functional.linear(tensors["mean"], weight, tensors["biases.0"])
    return printed_moments.elu_moments(mean, functional.linear(tensors["var"], weight.square()))


def _reference(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    return reference.linear_elu_moments(tensors["mean"], tensors["var"], tensors["weights.0"], tensors["biases.0"])


ENTRY = Entry(
    name="linear_elu_moments",
    summary=f"moments through one layer {SIZES[1]} → {SIZES[2]} and ELU, every input stochastic",
    outputs=("mean", "var"),
    inputs=_inputs,
    ours=_ours,
    eager=_eager,
    reference=_reference,
    bound=Bound("GEMMs", lambda tensors, _: dict(tensors), moment_products),
    eager_is_exact=False,
)
