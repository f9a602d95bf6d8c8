"""The actor that the whole-network benchmarks run, and its bare matrix products."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from p3kernels.bench.entry import SEED, Size, Tensors
from triton_kernels.proof.actor import ACTOR, STOCHASTIC

SIZES = ACTOR
"""Widths of the paper's G1 actor."""
LATENT = STOCHASTIC
"""How many of the inputs, the last ones, are stochastic."""
ACTIONS = SIZES[-1]


def generator() -> torch.Generator:
    """A fresh generator: inputs do not depend on what ran before."""
    return torch.Generator().manual_seed(SEED)


def parameters(sizes: tuple[int, ...] = SIZES) -> Tensors:
    """weights.0 [O, I], biases.0 [O], …, initialised as `nn.Linear` does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        layers = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)]
    weights = {f"weights.{index}": layer.weight.detach() for index, layer in enumerate(layers)}
    return weights | {f"biases.{index}": layer.bias.detach() for index, layer in enumerate(layers)}


def split_parameters(tensors: Tensors) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and biases in the order of the layers."""
    layers = sum(name.startswith("weights.") for name in tensors)
    return [tensors[f"weights.{i}"] for i in range(layers)], [tensors[f"biases.{i}"] for i in range(layers)]


def moment_inputs(size: Size) -> Tensors:
    """A mean [B, 209] ~ N(0, 1), a var [B, 110] with standard deviations from 0.2 to 1, the actor's parameters."""
    source = generator()
    mean = torch.randn(size.batch, SIZES[0], generator=source)
    std = 0.2 + 0.8 * torch.rand(size.batch, LATENT, generator=source)
    return {"mean": mean, "var": std.square()} | parameters()


def moment_products(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    """The products of the moments of every layer, F.linear(mean, W, b) and F.linear(var, W ∘ W), and nothing else."""
    mean, var = tensors["mean"], tensors["var"]
    for weight, bias in zip(*split_parameters(tensors), strict=True):
        stochastic = weight[:, weight.shape[1] - var.shape[1] :]
        mean, var = functional.linear(mean, weight, bias), functional.linear(var, stochastic.square())
    return mean, var
