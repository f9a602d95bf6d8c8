"""Benchmark of `mlp_mixture_log_prob`: the Monte Carlo likelihood of the whole actor, over the number of samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import p3kernels
from p3kernels import reference
from p3kernels.bench.actor import ACTIONS, LATENT, SIZES, generator, parameters, split_parameters
from p3kernels.bench.entry import SEED, Bound, Entry, Size, Tensors
from p3kernels.bench.mixture_log_prob import eager_mixture_log_prob


def _inputs(size: Size) -> Tensors:
    source = generator()
    return {
        "action": 0.5 * torch.randn(size.batch, ACTIONS, generator=source),
        "context": torch.randn(size.batch, SIZES[0] - LATENT, generator=source),
        "latent_mean": torch.randn(size.batch, LATENT, generator=source),
        "latent_std": 0.2 + 0.8 * torch.rand(size.batch, LATENT, generator=source),
        "std": 0.5 + 0.5 * torch.rand(ACTIONS, generator=source),
    } | parameters()


def _policy(tensors: Tensors) -> dict[str, Any]:
    """Arguments of the op that say which action, policy and network it is about."""
    weights, biases = split_parameters(tensors)
    inputs = {name: tensors[name] for name in ("action", "context", "latent_mean", "latent_std", "std")}
    return {**inputs, "weights": weights, "biases": biases}


def _ours(tensors: Tensors, size: Size) -> tuple[Tensor]:
    log_prob = p3kernels.mlp_mixture_log_prob(
        **_policy(tensors),
        num_samples=size.samples or 1,
        seed=SEED,
        noise=tensors.get("noise"),
    )
    return (log_prob,)


def _eager(tensors: Tensors, _: Size) -> tuple[Tensor]:
    latent = tensors["latent_mean"] + tensors["latent_std"] * tensors["noise"]
    hidden = torch.cat([tensors["context"].expand(latent.shape[0], -1, -1), latent], -1)
    weights, biases = split_parameters(tensors)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        hidden = functional.linear(hidden, weight, bias)
        if layer < len(weights) - 1:
            hidden = functional.elu(hidden)
    return eager_mixture_log_prob(tensors["action"], hidden, tensors["std"])


def _reference(tensors: Tensors, _: Size) -> tuple[Tensor]:
    log_prob = reference.mlp_mixture_log_prob(
        **_policy(tensors),
        noise=tensors["noise"],
    )
    return (log_prob,)


def _draw(size: Size) -> Tensors:
    return {"noise": torch.randn(size.samples or 1, size.batch, LATENT)}


def _reference_draw(size: Size) -> Tensors:
    noise = reference.latent_noise(SEED, size.samples or 1, size.batch, LATENT, "iid", torch.float64)
    return {"noise": noise}


def _expanded(tensors: Tensors, size: Size) -> Tensors:
    weights_and_biases = {name: tensor for name, tensor in tensors.items() if name.startswith(("weights", "biases"))}
    expanded = torch.randn((size.samples or 1) * size.batch, SIZES[0], generator=generator())
    return {"expanded": expanded} | weights_and_biases


def _products(tensors: Tensors, _: Size) -> tuple[Tensor]:
    hidden = tensors["expanded"]
    for weight, bias in zip(*split_parameters(tensors), strict=True):
        hidden = functional.linear(hidden, weight, bias)
    return (hidden,)


ENTRY = Entry(
    name="mlp_mixture_log_prob",
    summary=f"Monte Carlo likelihood of the actor {' → '.join(map(str, SIZES))}, ELU, {LATENT} latents, N samples",
    outputs=("log_prob",),
    inputs=_inputs,
    ours=_ours,
    eager=_eager,
    reference=_reference,
    bound=Bound("GEMMs", _expanded, _products),
    over_samples=True,
    draw=_draw,
    reference_draw=_reference_draw,
    measures_memory=True,
)
