"""Benchmark of `mlp_covariance` on the whole actor, as `CovarianceMatching` calls it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import p3kernels
from p3kernels.bench.actor import (
    ACTIONS,
    LATENT,
    SIZES,
    generator,
    moment_products,
    parameters,
    split_parameters,
)
from p3kernels.bench.entry import Bound, Size, Tensors
from p3kernels.bench.moments import entry
from p3kernels.reference.mlp_covariance import latent_directions

RANK = p3kernels.CovarianceMatching().rank


def _directions(dtype: torch.dtype) -> Tensor | None:
    """Directions of the float32 weights, for every contestant: the truth is along the same ones."""
    directions = latent_directions(split_parameters(parameters())[0], LATENT, RANK)
    return None if directions is None else directions.to(dtype)


def _call(functions: Any, tensors: Tensors) -> tuple[Tensor, Tensor]:
    directions = _directions(tensors["mean"].dtype)
    return functions.mlp_covariance(tensors["mean"], tensors["var"], *split_parameters(tensors), directions=directions)


def _expanded(tensors: Tensors, size: Size) -> Tensors:
    source = generator()
    rows = torch.randn(size.batch * ACTIONS, SIZES[-2], generator=source)
    tangents = torch.randn(size.batch * RANK, LATENT, generator=source)
    return {"rows": rows, "tangents": tangents, **tensors}


def _products(tensors: Tensors, size: Size) -> tuple[Tensor, ...]:
    weights = [
        weight[:, -LATENT:] if not layer else weight for layer, weight in enumerate(split_parameters(tensors)[0])
    ]
    rows, tangents = tensors["rows"], tensors["tangents"]
    for weight in reversed(weights[:-1]):
        rows = rows @ weight
    for weight in weights[:-1]:
        tangents = tangents @ weight.t()
    return (rows, tangents, *moment_products(tensors, size))


SUMMARY = f"mean and covariance of the actor {' → '.join(map(str, SIZES))}, ELU, {LATENT} latents, {RANK} directions"
ENTRY = entry("mlp_covariance", SUMMARY, _call, second="covariance", bound=Bound("GEMMs", _expanded, _products))
