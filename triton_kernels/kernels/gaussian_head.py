"""Kernels of what PPO asks of a diagonal Gaussian policy: log-likelihood, entropy and KL divergence in one pass.

One program has a block of rows and all of their actions. A std that all rows share has its gradient summed by blocks of
rows first, blocks by torch afterwards, so no order depends on the schedule.
"""

from __future__ import annotations

import triton
import triton.language as tl

_HALF_LOG_2PI = tl.constexpr(0.9189385332046727)


@triton.jit
def log_of_one_and(x: tl.tensor) -> tl.tensor:
    """log(1 + x), accurate for small x: the rounding of 1 + x is divided out again."""
    u = 1.0 + x
    exact = u == 1.0
    return tl.where(exact, x, tl.log(u) * (x / tl.where(exact, 1.0, u - 1.0)))


@triton.jit
def rows_of(
    ptr: tl.tensor, row: tl.tensor, column: tl.tensor, stride: tl.tensor, inside: tl.tensor, other: tl.constexpr
) -> tl.tensor:
    """[BLOCK_B, BLOCK_A] of a matrix whose columns are contiguous, as float32."""
    return tl.load(ptr + row[:, None] * stride + column[None, :], inside, other).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def _gaussian_head_fwd_kernel(
    action_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    std_ptr: tl.tensor,
    old_mean_ptr: tl.tensor,
    old_std_ptr: tl.tensor,
    log_prob_ptr: tl.tensor,
    entropy_ptr: tl.tensor,
    kl_ptr: tl.tensor,
    rows: tl.tensor,
    actions: tl.tensor,
    stride_action: tl.tensor,
    stride_mean: tl.tensor,
    stride_var: tl.tensor,
    stride_std: tl.tensor,
    stride_old_mean: tl.tensor,
    stride_old_std: tl.tensor,
    BLOCK_B: tl.constexpr,
    BLOCK_A: tl.constexpr,
) -> None:
    """[R] each. A std shared by all rows has stride 0."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    column = tl.arange(0, BLOCK_A)
    inside = (row < rows)[:, None] & (column < actions)[None, :]
    action = rows_of(action_ptr, row, column, stride_action, inside, 0.0)
    mean = rows_of(mean_ptr, row, column, stride_mean, inside, 0.0)
    std = rows_of(std_ptr, row, column, stride_std, inside, 1.0)
    total = rows_of(var_ptr, row, column, stride_var, inside, 0.0) + std * std
    old_std = rows_of(old_std_ptr, row, column, stride_old_std, inside, 1.0)
    shift = rows_of(old_mean_ptr, row, column, stride_old_mean, inside, 0.0) - mean
    logs = 0.5 * tl.sum(tl.where(inside, tl.log(total), 0.0), 1) + _HALF_LOG_2PI * actions
    away = action - mean
    log_prob = -0.5 * tl.sum(tl.where(inside, away * away / total, 0.0), 1) - logs
    excess = (old_std * old_std - total) / total
    parts = excess - log_of_one_and(excess) + shift * shift / total
    kl = 0.5 * tl.sum(tl.where(inside, parts, 0.0), 1)
    tl.store(log_prob_ptr + row, log_prob, row < rows)
    tl.store(entropy_ptr + row, logs + 0.5 * actions, row < rows)
    tl.store(kl_ptr + row, kl, row < rows)


@triton.jit(do_not_specialize=["rows"])
def _gaussian_head_bwd_kernel(
    action_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    std_ptr: tl.tensor,
    old_mean_ptr: tl.tensor,
    old_std_ptr: tl.tensor,
    d_log_prob_ptr: tl.tensor,
    d_entropy_ptr: tl.tensor,
    d_kl_ptr: tl.tensor,
    d_action_ptr: tl.tensor,
    d_mean_ptr: tl.tensor,
    d_var_ptr: tl.tensor,
    d_std_ptr: tl.tensor,
    rows: tl.tensor,
    actions: tl.tensor,
    stride_action: tl.tensor,
    stride_mean: tl.tensor,
    stride_var: tl.tensor,
    stride_std: tl.tensor,
    stride_old_mean: tl.tensor,
    stride_old_std: tl.tensor,
    HAS_LOG_PROB: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    HAS_KL: tl.constexpr,
    HAS_D_ACTION: tl.constexpr,
    ROW_STD: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_A: tl.constexpr,
) -> None:
    """Gradients [R, A], contiguous; d_std [R, A], or [P, A] of the blocks' sums where all rows share std."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    column = tl.arange(0, BLOCK_A)
    inside = (row < rows)[:, None] & (column < actions)[None, :]
    std = rows_of(std_ptr, row, column, stride_std, inside, 1.0)
    mean = rows_of(mean_ptr, row, column, stride_mean, inside, 0.0)
    inverse = 1.0 / (rows_of(var_ptr, row, column, stride_var, inside, 0.0) + std * std)
    d_mean = tl.zeros([BLOCK_B, BLOCK_A], tl.float32)
    d_var = tl.zeros([BLOCK_B, BLOCK_A], tl.float32)
    at = row[:, None] * actions + column[None, :]
    if HAS_LOG_PROB:
        gradient = tl.load(d_log_prob_ptr + row, row < rows, 0.0).to(tl.float32)[:, None]
        away = (rows_of(action_ptr, row, column, stride_action, inside, 0.0) - mean) * inverse
        d_mean += gradient * away
        d_var += 0.5 * gradient * (away * away - inverse)
        if HAS_D_ACTION:
            tl.store(d_action_ptr + at, -gradient * away, inside)
    elif HAS_D_ACTION:
        tl.store(d_action_ptr + at, d_mean, inside)
    if HAS_ENTROPY:
        d_var += 0.5 * tl.load(d_entropy_ptr + row, row < rows, 0.0).to(tl.float32)[:, None] * inverse
    if HAS_KL:
        gradient = tl.load(d_kl_ptr + row, row < rows, 0.0).to(tl.float32)[:, None]
        shift = (rows_of(old_mean_ptr, row, column, stride_old_mean, inside, 0.0) - mean) * inverse
        old_std = rows_of(old_std_ptr, row, column, stride_old_std, inside, 1.0) * inverse
        d_mean -= gradient * shift
        d_var += 0.5 * gradient * (inverse - old_std * old_std - shift * shift)
    tl.store(d_mean_ptr + at, d_mean, inside)
    tl.store(d_var_ptr + at, d_var, inside)
    d_std = 2.0 * std * d_var
    if ROW_STD:
        tl.store(d_std_ptr + at, d_std, inside)
    else:
        part = tl.sum(tl.where(inside, d_std, 0.0), 0)
        tl.store(d_std_ptr + tl.program_id(0) * actions + column, part, column < actions)
