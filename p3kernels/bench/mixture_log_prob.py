"""Benchmark of `mixture_log_prob`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import p3kernels
from p3kernels import reference
from p3kernels.bench.actor import ACTIONS, generator
from p3kernels.bench.entry import Entry, Size, Tensors


def _inputs(size: Size) -> Tensors:
    source = generator()
    return {
        "action": torch.randn(size.batch, ACTIONS, generator=source),
        "means": 0.5 * torch.randn(size.samples or 1, size.batch, ACTIONS, generator=source),
        "std": 0.5 + 0.5 * torch.rand(ACTIONS, generator=source),
    }


def eager_mixture_log_prob(action: Tensor, means: Tensor, std: Tensor) -> tuple[Tensor]:
    """[B, A], [N, B, A], [A] → [B]: log (1/N) Σ_i N(action | means_i, std²) by torch.distributions and logsumexp."""
    log_probs = torch.distributions.Normal(means, std, validate_args=False).log_prob(action).sum(-1)
    return (torch.logsumexp(log_probs, 0) - math.log(means.shape[0]),)


ENTRY = Entry(
    name="mixture_log_prob",
    summary=f"likelihood of {ACTIONS} actions under N equally weighted Gaussians",
    outputs=("log_prob",),
    inputs=_inputs,
    ours=lambda tensors, _: (p3kernels.mixture_log_prob(tensors["action"], tensors["means"], tensors["std"]),),
    eager=lambda tensors, _: eager_mixture_log_prob(tensors["action"], tensors["means"], tensors["std"]),
    reference=lambda tensors, _: (reference.mixture_log_prob(tensors["action"], tensors["means"], tensors["std"]),),
    over_samples=True,
)
