"""The Monte Carlo likelihood of a latent-conditioned MLP policy on a GPU.

Up to `ONE_LAUNCH_ROWS` rows the forward pass is one launch, whatever the number of samples: a block draws the noise of
its rows into registers, takes sample after sample through the network in shared memory, and keeps a running log-sum.
The backward pass, and larger batches, run layer by layer with torch's matrix products.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from p3kernels.cuda import native
from p3kernels.cuda.latent_noise import DeviceNoiseSource
from p3kernels.cuda.mlp_moments import ONE_LAUNCH_ROWS
from p3kernels.layered import mlp_mixture_log_prob as layered

TILE_ROWS = 65536
"""Of samples × rows of the batch; the G1 actor's activations of so many are 240 MB."""


def in_one_launch(a: Any) -> bool:
    """Whether `forward` is one launch: few rows, a network that fits, noise that a kernel can draw or read."""
    rows, context = a.context.shape
    widths = [context + a.latent_mean.shape[1], *(weight.shape[0] for weight in a.weights)]
    sobol = a.noise is None and a.sampling == "sobol"
    return not sobol and rows <= ONE_LAUNCH_ROWS and native.actions_in_one_launch(widths, context, rows, a.action)


def forward(a: Any) -> Tensor:
    """log (1/N) Σ_i N(action | actor([context, z_i]), std²): [B], float32; `a` as in `ops/mlp_mixture_log_prob.py`."""
    if not in_one_launch(a):
        return layered.forward(_problem(a), False)[0]
    rows = a.context.shape[0]
    log_prob = torch.empty(rows, dtype=torch.float32, device=a.action.device)
    network = native.Network(native.one_dtype(a.weights), [b.contiguous() for b in a.biases], a.kind, a.parameter)
    latent = (a.context.contiguous(), a.latent_mean.contiguous(), a.latent_std.contiguous())
    noise = None if a.noise is None else a.noise.contiguous()
    likelihood = (a.action.contiguous(), a.std.contiguous(), math.log(a.num_samples), log_prob)
    native.mlp_actions(
        network,
        *latent,
        noise,
        a.seed,
        a.num_samples,
        a.sampling == "antithetic",
        rows=a.rows,
        likelihood=likelihood,
    )
    return log_prob


def backward(a: Any, log_prob: Tensor, d_log_prob: Tensor, need_noise: bool) -> layered.Gradients:
    """The gradient of every input, in its dtype."""
    d = layered.backward(_problem(a), log_prob, log_prob.new_empty(0), d_log_prob, need_noise)
    return layered.Gradients(
        d.action.to(a.action.dtype),
        d.context.to(a.context.dtype),
        d.latent_mean.to(a.latent_mean.dtype),
        d.latent_std.to(a.latent_std.dtype),
        [gradient.to(weight.dtype) for gradient, weight in zip(d.weights, a.weights, strict=True)],
        [gradient.to(bias.dtype) for gradient, bias in zip(d.biases, a.biases, strict=True)],
        d.std.to(a.std.dtype),
        None if d.noise is None else d.noise.to(a.noise.dtype),
    )


def _problem(a: Any) -> layered.Problem:
    return layered.Problem(
        a.action.float().contiguous(),
        a.context.float(),
        a.latent_mean.float(),
        a.latent_std.float(),
        [weight.float() for weight in a.weights],
        [bias.float().contiguous() for bias in a.biases],
        a.std.float().contiguous(),
        None if a.noise is None else a.noise.float(),
        a.seed,
        a.rows,
        a.num_samples,
        a.sampling,
        a.kind,
        a.parameter,
        kernels=native,
        noise_source=DeviceNoiseSource,
        tile_rows=TILE_ROWS,
    )
