"""Benchmark of `mlp_moments` on the whole actor."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

import p3kernels
from p3kernels import reference
from p3kernels.bench import printed_moments
from p3kernels.bench.actor import LATENT, SIZES, moment_inputs, moment_products, split_parameters
from p3kernels.bench.entry import Bound, Entry, Size, Tensors


def _ours(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    return p3kernels.mlp_moments(tensors["mean"], tensors["var"], *split_parameters(tensors))


def _eager(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    mean, var = tensors["mean"], tensors["var"]
    weights, biases = split_parameters(tensors)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        stochastic = weight[:, weight.shape[1] - var.shape[1] :]
        mean, var = functional.linear(mean, weight, bias), functional.linear(var, stochastic.square())
        if layer < len(weights) - 1:
            mean, var = printed_moments.elu_moments(mean, var)
    return mean, var


def _reference(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    return reference.mlp_moments(tensors["mean"], tensors["var"], *split_parameters(tensors))


ENTRY = Entry(
    name="mlp_moments",
    summary=f"moments through the actor {' → '.join(map(str, SIZES))}, ELU, last {LATENT} inputs stochastic",
    outputs=("mean", "var"),
    inputs=moment_inputs,
    ours=_ours,
    eager=_eager,
    reference=_reference,
    bound=Bound("GEMMs", lambda tensors, _: dict(tensors), moment_products),
    eager_is_exact=False,
    measures_memory=True,
)
