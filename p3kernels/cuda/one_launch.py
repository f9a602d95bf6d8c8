"""Whole networks in one launch, without a gradient, activations staying in a block's shared memory.

Moments, the Monte Carlo likelihood of any number of samples, and the actor at one latent of each row. For the
likelihood a block draws the noise of its rows into registers, takes sample after sample through the network, and keeps
a running log-sum. Whatever does not fit here runs layer by layer: `p3kernels/layered`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from p3kernels.activations import Activation
from p3kernels.cuda import native
from p3kernels.records import MlpMixtureInputs, MlpMixtureOutputs, MlpMomentsInputs, MlpMomentsOutputs, activation_of

ONE_LAUNCH_ROWS = 4096
"""Above it, launches cost little beside the products, and torch's own products are better than ours."""


def moments_fit(mean: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether `mlp_moments` can take this: few rows, a network that fits."""
    rows, widths = mean.shape[0], [mean.shape[1], *(weight.shape[0] for weight in weights)]
    return rows <= ONE_LAUNCH_ROWS and native.moments_in_one_launch(widths, rows, mean)


def moments_before_triton(mean: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether `mlp_moments` is modelled to be faster than Triton's launch: no multiprocessor has two tiles of rows."""
    widths = [mean.shape[1], *(weight.shape[0] for weight in weights)]
    return moments_fit(mean, weights) and native.moments_a_multiprocessor(widths, mean.shape[0], mean) <= 1


def mlp_moments(inputs: MlpMomentsInputs) -> MlpMomentsOutputs:
    """Output moments [B, O], float32; nothing is kept."""
    shape = inputs.mean.shape[0], inputs.weights[-1].shape[0]
    out_mean, out_var = (torch.empty(shape, dtype=torch.float32, device=inputs.mean.device) for _ in range(2))
    network = native.Network(
        native.one_dtype(inputs.weights), [bias.contiguous() for bias in inputs.biases], activation_of(inputs)
    )
    moments = (inputs.mean.contiguous(), inputs.var.contiguous())
    native.mlp_moments(network, inputs.activate_last, *moments, out_mean, out_var)
    return MlpMomentsOutputs(out_mean, out_var, out_mean.new_empty(0))


def actions_fit(context: Tensor, latent_mean: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether `mlp_actions` can take this: few rows, a network that fits."""
    rows, columns = context.shape
    widths = [columns + latent_mean.shape[1], *(weight.shape[0] for weight in weights)]
    return rows <= ONE_LAUNCH_ROWS and native.actions_in_one_launch(widths, columns, rows, context)


def mlp_actions(
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor | None,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: Activation,
    seed: Tensor,
) -> Tensor:
    """actor([context, z]) [B, A], float32; z ~ N(latent_mean, latent_std²), or its mean.

    Args:
        context: [B, C].
        latent_mean: [B, Z].
        latent_std: [B, Z], or None for z = latent_mean.
        weights: One [O, I] a layer.
        biases: One [O] or None a layer.
        activation: Between the layers.
        seed: One int64 of the draw.
    """
    out = torch.empty(1, context.shape[0], weights[-1].shape[0], dtype=torch.float32, device=context.device)
    present = [None if bias is None else bias.contiguous() for bias in biases]
    network = native.Network(native.one_dtype(weights), present, activation)
    std = None if latent_std is None else latent_std.contiguous()
    native.mlp_actions(network, context.contiguous(), latent_mean.contiguous(), std, None, seed, 1, False, means=out)
    return out[0]


def likelihood_fits(inputs: MlpMixtureInputs) -> bool:
    """Whether `mlp_mixture_log_prob` can take this: as `actions_fit`, with noise that a kernel can draw or read."""
    sobol = inputs.noise is None and inputs.sampling == "sobol"
    return not sobol and actions_fit(inputs.context, inputs.latent_mean, inputs.weights)


def mlp_mixture_log_prob(inputs: MlpMixtureInputs) -> MlpMixtureOutputs:
    """log (1/N) Σ_i N(action | actor([context, z_i]), std²): [B], float32; nothing is kept."""
    log_prob = torch.empty(inputs.context.shape[0], dtype=torch.float32, device=inputs.action.device)
    biases = [bias.contiguous() for bias in inputs.biases]
    native.mlp_actions(
        native.Network(native.one_dtype(inputs.weights), biases, activation_of(inputs)),
        inputs.context.contiguous(),
        inputs.latent_mean.contiguous(),
        inputs.latent_std.contiguous(),
        None if inputs.noise is None else inputs.noise.contiguous(),
        inputs.seed,
        inputs.num_samples,
        inputs.sampling == "antithetic",
        rows=inputs.rows,
        likelihood=(inputs.action.contiguous(), inputs.std.contiguous(), math.log(inputs.num_samples), log_prob),
    )
    return MlpMixtureOutputs(log_prob, torch.empty_like(log_prob[:0]))
