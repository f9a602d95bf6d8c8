"""Likelihood of an action under a mixture of Gaussians: log (1/N) Σ_i N(action | means_i, std²), forward and backward.

The kernels are in `kernels/mixture_log_prob.py`; here is how they are launched, on all samples or on a tile of them.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from triton_kernels.kernels.mixture_log_prob import _mixture_log_prob_bwd_kernel, _mixture_log_prob_fwd_kernel
from triton_kernels.launch import Config, fitting, row_bucket, start, tuned
from triton_kernels.sampled_layers import near, small_tiles

Layer = tuple[Tensor, Tensor]
"""weight [A, I] and bias [A]."""


def block_config(kernel: str, rows: int, actions: int, inputs: int, precision: str) -> Config:
    """Blocks of the kernel `kernel`; inputs = 0 where the means are read and not made by a layer."""
    block_a = triton.next_power_of_2(actions)
    if inputs == 0:
        default = {"BLOCK_B": max(1, 512 // block_a), "BLOCK_A": block_a, "BLOCK_I": 16}
    else:
        default = {"BLOCK_B": 32 if small_tiles(precision) else 64, "BLOCK_A": max(16, block_a), "BLOCK_I": 32}
    key = (actions, inputs, precision if inputs > 0 else "ieee", row_bucket(rows))
    warps, stages = (8, 2) if inputs > 0 else (4, 1)
    return tuned(kernel, key, {**default, "num_warps": warps, "num_stages": stages})


def forward_tile(
    x: Tensor,
    layer: Layer | None,
    action: Tensor,
    std: Tensor,
    state: Tensor,
    log_prob: Tensor,
    num_samples: int,
    *,
    first: bool,
    last: bool,
    precision: str = "ieee",
) -> None:
    """Takes a tile of samples into the rows' state, or with the `last` one into `log_prob`.

    Args:
        x: [n, R, A] means, or [n, R, I] inputs of `layer`.
        layer: The last linear layer, or None.
        action: [R, A], contiguous.
        std: [A] or [R, A], contiguous.
        state: [2, R], maximum and sum; columns contiguous. Read unless `first`, written unless `last`.
        log_prob: [R], written if `last`.
        num_samples: N of the whole, not of the tile.
        first: Whether no sample came before.
        last: Whether no sample comes after.
        precision: Precision of the layer's product.
    """
    samples, rows, inputs = x.shape
    actions = action.shape[1]
    weight, bias = layer if layer is not None else (action, action)
    config = block_config("mixture_log_prob_fwd_kernel", rows, actions, inputs if layer is not None else 0, precision)
    start(
        _mixture_log_prob_fwd_kernel,
        triton.cdiv(rows, config["BLOCK_B"]),
        x,
        weight,
        bias,
        action,
        std,
        state,
        log_prob,
        samples,
        rows,
        inputs,
        actions,
        state.stride(0),
        *x.stride(),
        *weight.stride(),
        math.log(num_samples),
        layer is not None,
        std.dim() == 2,
        first,
        last,
        precision,
        **config,
    )


def backward_tile(
    x: Tensor,
    layer: Layer | None,
    action: Tensor,
    std: Tensor,
    log_prob: Tensor,
    d_log_prob: Tensor,
    d_means: Tensor,
    d_action: Tensor,
    d_std: Tensor,
    num_samples: int,
    *,
    first: bool,
    largest: Tensor | None = None,
    precision: str = "ieee",
) -> None:
    """Gradients of a tile of samples: writes `d_means` [n, R, A], adds to `d_action` and `d_std` unless `first`.

    `d_std` is [R, A] as std is, or the sums of blocks of rows, [P, A] with P of `std_parts`, where std is [A].
    With `largest` [], `d_means` is written times the power of two that brings that number to between 1 and 2.
    """
    samples, rows, inputs = x.shape
    actions = action.shape[1]
    weight, bias = layer if layer is not None else (action, action)
    config = _backward_config(rows, actions, inputs if layer is not None else 0, precision)
    start(
        _mixture_log_prob_bwd_kernel,
        triton.cdiv(rows, config["BLOCK_B"]),
        x,
        weight,
        bias,
        action,
        std,
        log_prob,
        d_log_prob,
        d_means,
        d_action,
        d_std,
        d_std if largest is None else largest,
        samples,
        rows,
        inputs,
        actions,
        *x.stride(),
        *weight.stride(),
        d_means.stride(0),
        math.log(num_samples),
        layer is not None,
        std.dim() == 2,
        largest is not None,
        first,
        precision,
        **config,
    )


def _backward_config(rows: int, actions: int, inputs: int, precision: str) -> Config:
    return block_config("mixture_log_prob_bwd_kernel", rows, actions, inputs, precision)


def std_parts(rows: int, actions: int, inputs: int, precision: str) -> int:
    """Blocks of rows whose sums of d_std `backward_tile` writes for std [A]; inputs = 0 without a layer."""
    return triton.cdiv(rows, _backward_config(rows, actions, inputs, precision)["BLOCK_B"])


@fitting
def forward(action: Tensor, means: Tensor, std: Tensor) -> Tensor:
    """[B, A], [N, B, A], [A] | [B, A] → [B], float32."""
    means = near(means)
    log_prob = torch.empty(action.shape[0], dtype=torch.float32, device=action.device)
    if action.shape[0] > 0:
        state = log_prob[None]  # of one tile there is nothing to carry
        forward_tile(
            means, None, action.contiguous(), std.contiguous(), state, log_prob, means.shape[0], first=True, last=True
        )
    return log_prob


@fitting
def backward(
    d_log_prob: Tensor, log_prob: Tensor, action: Tensor, means: Tensor, std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """d_action [B, A], d_means [N, B, A] and d_std of the shape of std, each in its input's dtype."""
    means = near(means)
    d_action = torch.empty(action.shape, dtype=action.dtype, device=action.device)
    d_means = torch.empty(means.shape, dtype=means.dtype, device=means.device)
    rows, actions = action.shape
    if rows == 0:
        return d_action, d_means, torch.zeros_like(std, memory_format=torch.contiguous_format)
    parts = std_parts(rows, actions, 0, "ieee")
    shape, dtype = (std.shape, std.dtype) if std.dim() == 2 else ((parts, actions), torch.float32)
    d_std = torch.empty(shape, dtype=dtype, device=std.device)
    backward_tile(
        means,
        None,
        action.contiguous(),
        std.contiguous(),
        log_prob,
        d_log_prob.contiguous(),
        d_means,
        d_action,
        d_std,
        means.shape[0],
        first=True,
    )
    return d_action, d_means, d_std if std.dim() == 2 else d_std.sum(0).to(std.dtype)
