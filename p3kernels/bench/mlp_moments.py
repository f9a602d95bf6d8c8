"""Benchmark of `mlp_moments` on the whole actor."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from p3kernels.bench import printed_moments
from p3kernels.bench.actor import LATENT, SIZES, split_parameters
from p3kernels.bench.entry import Size, Tensors
from p3kernels.bench.moments import entry


def _call(functions: Any, tensors: Tensors) -> tuple[Tensor, Tensor]:
    return functions.mlp_moments(tensors["mean"], tensors["var"], *split_parameters(tensors))


def _eager(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    mean, var = tensors["mean"], tensors["var"]
    weights, biases = split_parameters(tensors)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        stochastic = weight[:, weight.shape[1] - var.shape[1] :]
        mean, var = functional.linear(mean, weight, bias), functional.linear(var, stochastic.square())
        if layer < len(weights) - 1:
            mean, var = printed_moments.elu_moments(mean, var)
    return mean, var


SUMMARY = f"moments through the actor {' → '.join(map(str, SIZES))}, ELU, last {LATENT} inputs stochastic"
ENTRY = entry("mlp_moments", SUMMARY, _call, _eager)
