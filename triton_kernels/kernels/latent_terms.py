"""Kernels of a latent: its distribution from what the encoder's heads give, and its divergence from the prior.

A sum over rows is written by blocks, which torch adds, so no order depends on the schedule. The backward kernels
compute what they need again from the inputs; nothing is kept for them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.gaussian_head import rows_of

LOWEST_LOG_STD = tl.constexpr(-6.0)
HIGHEST_LOG_STD = tl.constexpr(2.0)


@triton.jit
def bounded(x: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """x within [low, high]; NaN stays."""
    return tl.where(x < low, low, tl.where(x > high, high, x))


@triton.jit(do_not_specialize=["rows"])
def _latent_heads_fwd_kernel(
    first_ptr: tl.tensor,
    second_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    std_ptr: tl.tensor,
    velocity_ptr: tl.tensor,
    rows: tl.tensor,
    first_latent: tl.tensor,
    second_latent: tl.tensor,
    velocity_size: tl.tensor,
    stride_first: tl.tensor,
    stride_second: tl.tensor,
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """first [R, 2 Z1 + V], second [R, 2 Z2]: means, log-variances, V → mean, std [R, Z1 + Z2], velocity [R, V]."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    column = tl.arange(0, BLOCK_C)
    latent = first_latent + second_latent
    is_first = (column < first_latent)[None, :]
    other = column - first_latent
    has = (row < rows)[:, None] & (column < latent)[None, :]
    at_first = row[:, None] * stride_first + column[None, :]
    at_second = row[:, None] * stride_second + other[None, :]
    mean = tl.where(
        is_first,
        tl.load(first_ptr + at_first, has & is_first, 0.0),
        tl.load(second_ptr + at_second, has & (column >= first_latent)[None, :], 0.0),
    )
    log_var = tl.where(
        is_first,
        tl.load(first_ptr + at_first + first_latent, has & is_first, 0.0),
        tl.load(second_ptr + at_second + second_latent, has & (column >= first_latent)[None, :], 0.0),
    )
    std = tl.exp(bounded(0.5 * log_var, LOWEST_LOG_STD, HIGHEST_LOG_STD))
    tl.store(mean_ptr + row[:, None] * latent + column[None, :], mean, has)
    tl.store(std_ptr + row[:, None] * latent + column[None, :], std, has)
    moves = (row < rows)[:, None] & (column < velocity_size)[None, :]
    velocity = tl.load(first_ptr + at_first + 2 * first_latent, moves, 0.0)
    tl.store(velocity_ptr + row[:, None] * velocity_size + column[None, :], velocity, moves)


@triton.jit(do_not_specialize=["rows"])
def _latent_heads_bwd_kernel(
    first_ptr: tl.tensor,
    second_ptr: tl.tensor,
    d_mean_ptr: tl.tensor,
    d_std_ptr: tl.tensor,
    d_velocity_ptr: tl.tensor,
    d_first_ptr: tl.tensor,
    d_second_ptr: tl.tensor,
    rows: tl.tensor,
    first_latent: tl.tensor,
    second_latent: tl.tensor,
    velocity_size: tl.tensor,
    stride_first: tl.tensor,
    stride_second: tl.tensor,
    HAS_MEAN: tl.constexpr,
    HAS_STD: tl.constexpr,
    HAS_VELOCITY: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    column = tl.arange(0, BLOCK_C)
    latent = first_latent + second_latent
    is_first = (column < first_latent)[None, :]
    has = (row < rows)[:, None] & (column < latent)[None, :]
    in_first, in_second = has & is_first, has & (column >= first_latent)[None, :]
    width_first, width_second = 2 * first_latent + velocity_size, 2 * second_latent
    at = row[:, None] * latent + column[None, :]
    other = (column - first_latent)[None, :]
    d_mean = tl.zeros([BLOCK_B, BLOCK_C], tl.float32)
    d_log_var = tl.zeros([BLOCK_B, BLOCK_C], tl.float32)
    if HAS_MEAN:
        d_mean = tl.load(d_mean_ptr + at, has, 0.0)
    if HAS_STD:
        half = 0.5 * tl.where(
            is_first,
            tl.load(first_ptr + row[:, None] * stride_first + first_latent + column[None, :], in_first, 0.0),
            tl.load(second_ptr + row[:, None] * stride_second + second_latent + other, in_second, 0.0),
        )
        # Beyond the bounds the std is a constant.
        within = (half >= LOWEST_LOG_STD) & (half <= HIGHEST_LOG_STD)
        std = tl.exp(bounded(half, LOWEST_LOG_STD, HIGHEST_LOG_STD))
        d_log_var = tl.where(within, 0.5 * tl.load(d_std_ptr + at, has, 0.0) * std, 0.0)
    tl.store(d_first_ptr + row[:, None] * width_first + column[None, :], d_mean, in_first)
    tl.store(d_first_ptr + row[:, None] * width_first + first_latent + column[None, :], d_log_var, in_first)
    tl.store(d_second_ptr + row[:, None] * width_second + other, d_mean, in_second)
    tl.store(d_second_ptr + row[:, None] * width_second + second_latent + other, d_log_var, in_second)
    moves = (row < rows)[:, None] & (column < velocity_size)[None, :]
    d_velocity = tl.zeros([BLOCK_B, BLOCK_C], tl.float32)
    if HAS_VELOCITY:
        d_velocity = tl.load(d_velocity_ptr + row[:, None] * velocity_size + column[None, :], moves, 0.0)
    tl.store(d_first_ptr + row[:, None] * width_first + 2 * first_latent + column[None, :], d_velocity, moves)


@triton.jit(do_not_specialize=["rows"])
def _latent_kl_fwd_kernel(
    mean_ptr: tl.tensor,
    std_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    rows: tl.tensor,
    latent: tl.tensor,
    first_latent: tl.tensor,
    first_share: tl.tensor,
    second_share: tl.tensor,
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """parts [P]: Σ KL(N(mean, std²) ‖ N(0, 1)), columns before `first_latent` times the first share."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    column = tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None] & (column < latent)[None, :]
    mean = rows_of(mean_ptr, row, column, latent, inside, 0.0)
    std = rows_of(std_ptr, row, column, latent, inside, 1.0)
    share = tl.where(column < first_latent, first_share, second_share)[None, :]
    kl = (0.5 * (mean * mean + std * std - 1.0) - tl.log(std)) * share
    tl.store(parts_ptr + tl.program_id(0), tl.sum(tl.sum(tl.where(inside, kl, 0.0), 1), 0))


@triton.jit(do_not_specialize=["rows"])
def _latent_kl_bwd_kernel(
    mean_ptr: tl.tensor,
    std_ptr: tl.tensor,
    d_kl_ptr: tl.tensor,
    d_mean_ptr: tl.tensor,
    d_std_ptr: tl.tensor,
    rows: tl.tensor,
    latent: tl.tensor,
    first_latent: tl.tensor,
    first_share: tl.tensor,
    second_share: tl.tensor,
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    column = tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None] & (column < latent)[None, :]
    at = row[:, None] * latent + column[None, :]
    share = tl.where(column < first_latent, first_share, second_share)[None, :] * tl.load(d_kl_ptr)
    std = tl.load(std_ptr + at, inside, 1.0)
    tl.store(d_mean_ptr + at, share * tl.load(mean_ptr + at, inside, 0.0), inside)
    tl.store(d_std_ptr + at, share * (std - 1.0 / std), inside)
