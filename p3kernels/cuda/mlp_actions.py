"""The actor at one latent of each row, in one launch: what a rollout step of a sampled policy needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from p3kernels.cuda import native
from p3kernels.cuda.mlp_moments import ONE_LAUNCH_ROWS


def in_one_launch(context: Tensor, latent_mean: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether `sampled_actions` can take this: few rows, a network that fits."""
    rows, columns = context.shape
    widths = [columns + latent_mean.shape[1], *(weight.shape[0] for weight in weights)]
    return rows <= ONE_LAUNCH_ROWS and native.actions_in_one_launch(widths, columns, rows, context)


def sampled_actions(
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor | None,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    kind: int,
    parameter: float,
    seed: Tensor,
) -> Tensor:
    """actor([context, z]) [B, A], float32, without a gradient; z ~ N(latent_mean, latent_std²), or its mean.

    Args:
        context: [B, C].
        latent_mean: [B, Z].
        latent_std: [B, Z], or None for z = latent_mean.
        weights: One [O, I] a layer.
        biases: One [O] or None a layer.
        kind: The activation.
        parameter: Its parameter.
        seed: One int64 of the draw.
    """
    out = torch.empty(1, context.shape[0], weights[-1].shape[0], dtype=torch.float32, device=context.device)
    present = [None if bias is None else bias.contiguous() for bias in biases]
    network = native.Network(native.one_dtype(weights), present, kind, parameter)
    std = None if latent_std is None else latent_std.contiguous()
    native.mlp_actions(network, context.contiguous(), latent_mean.contiguous(), std, None, seed, 1, False, means=out)
    return out[0]
