"""Kernels of what a PPO update computes beside its networks: the terms of its loss, and what bounds its step.

A term is a sum over rows: every program writes that of its block, torch adds the blocks, so no order depends on the
schedule. The backward kernels compute what they need again from the inputs; nothing is kept for them. NaN goes through
every comparison here: where one is, it is in the result.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.gaussian_head import rows_of
from triton_kernels.kernels.latent_terms import bounded

LARGEST_LOG_RATIO = tl.constexpr(80.0)


@triton.jit
def surrogate_of(
    ratio: tl.tensor, advantage: tl.tensor, clip: tl.tensor, dual_clip: tl.tensor, DUAL: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """A row's gain and its derivative by the ratio."""
    free = ratio * advantage
    held = bounded(ratio, 1.0 - clip, 1.0 + clip) * advantage
    gain = tl.where(free < held, free, held)
    slope = tl.where(free > held, 0.0, advantage)
    if DUAL:
        least = dual_clip * advantage
        bound = (advantage < 0.0) & (gain < least)
        gain = tl.where(bound, least, gain)
        slope = tl.where(bound, 0.0, slope)
    return gain, slope


@triton.jit
def value_error_of(
    value: tl.tensor, old_value: tl.tensor, target: tl.tensor, clip: tl.tensor, CLIPPED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """A row's squared error and its derivative by the value."""
    away = value - target
    error, slope = away * away, 2.0 * away
    if CLIPPED:
        move = value - old_value
        held = old_value + bounded(move, -clip, clip) - target
        other = held * held
        held_slope = tl.where((move >= -clip) & (move <= clip), 2.0 * held, 0.0)
        share = tl.where(error > other, 1.0, tl.where(error == other, 0.5, 0.0))
        slope = share * slope + (1.0 - share) * held_slope
        error = tl.where(error > other, error, other)
    return error, slope


@triton.jit(do_not_specialize=["rows"])
def _policy_terms_fwd_kernel(
    log_prob_ptr: tl.tensor,
    old_log_prob_ptr: tl.tensor,
    advantage_ptr: tl.tensor,
    value_ptr: tl.tensor,
    old_value_ptr: tl.tensor,
    target_ptr: tl.tensor,
    kl_ptr: tl.tensor,
    drawn_ptr: tl.tensor,
    losses_ptr: tl.tensor,
    numbers_ptr: tl.tensor,
    rows: tl.tensor,
    stride_log_prob: tl.tensor,
    stride_old_log_prob: tl.tensor,
    stride_advantage: tl.tensor,
    stride_value: tl.tensor,
    stride_old_value: tl.tensor,
    stride_target: tl.tensor,
    stride_kl: tl.tensor,
    stride_drawn: tl.tensor,
    clip: tl.tensor,
    dual_clip: tl.tensor,
    share: tl.tensor,
    DUAL: tl.constexpr,
    CLIPPED: tl.constexpr,
    HAS_DRAWN: tl.constexpr,
    BLOCK_B: tl.constexpr,
) -> None:
    """losses [P, 2]: of policy and value; numbers [P, 3]: KL, clipped ratios, rows drawn: sums times `share`."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    inside = row < rows
    log_ratio = tl.load(log_prob_ptr + row * stride_log_prob, inside, 0.0)
    log_ratio -= tl.load(old_log_prob_ptr + row * stride_old_log_prob, inside, 0.0)
    advantage = tl.load(advantage_ptr + row * stride_advantage, inside, 0.0)
    ratio = tl.exp(tl.where(log_ratio > LARGEST_LOG_RATIO, LARGEST_LOG_RATIO, log_ratio))
    gain, _ = surrogate_of(ratio, advantage, clip, dual_clip, DUAL)
    error, _ = value_error_of(
        tl.load(value_ptr + row * stride_value, inside, 0.0),
        tl.load(old_value_ptr + row * stride_old_value, inside, 0.0),
        tl.load(target_ptr + row * stride_target, inside, 0.0),
        clip,
        CLIPPED,
    )
    kl = tl.load(kl_ptr + row * stride_kl, inside, 0.0)
    drawn = tl.where(inside, 1.0, 0.0)
    if HAS_DRAWN:
        drawn = tl.load(drawn_ptr + row * stride_drawn, inside, 0.0)
    outside = tl.where(tl.abs(tl.exp(log_ratio) - 1.0) > clip, 1.0, 0.0)
    losses_ptr += tl.program_id(0) * 2
    numbers_ptr += tl.program_id(0) * 3
    tl.store(losses_ptr, -share * tl.sum(tl.where(inside, gain, 0.0), 0))
    tl.store(losses_ptr + 1, share * tl.sum(tl.where(inside, error, 0.0), 0))
    tl.store(numbers_ptr, share * tl.sum(tl.where(inside, kl * drawn, 0.0), 0))
    tl.store(numbers_ptr + 1, share * tl.sum(tl.where(inside, outside * drawn, 0.0), 0))
    tl.store(numbers_ptr + 2, share * tl.sum(drawn, 0))


@triton.jit(do_not_specialize=["rows"])
def _policy_terms_bwd_kernel(
    log_prob_ptr: tl.tensor,
    old_log_prob_ptr: tl.tensor,
    advantage_ptr: tl.tensor,
    value_ptr: tl.tensor,
    old_value_ptr: tl.tensor,
    target_ptr: tl.tensor,
    d_terms_ptr: tl.tensor,
    d_log_prob_ptr: tl.tensor,
    d_value_ptr: tl.tensor,
    rows: tl.tensor,
    stride_log_prob: tl.tensor,
    stride_old_log_prob: tl.tensor,
    stride_advantage: tl.tensor,
    stride_value: tl.tensor,
    stride_old_value: tl.tensor,
    stride_target: tl.tensor,
    clip: tl.tensor,
    dual_clip: tl.tensor,
    share: tl.tensor,
    DUAL: tl.constexpr,
    CLIPPED: tl.constexpr,
    BLOCK_B: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    inside = row < rows
    log_ratio = tl.load(log_prob_ptr + row * stride_log_prob, inside, 0.0)
    log_ratio -= tl.load(old_log_prob_ptr + row * stride_old_log_prob, inside, 0.0)
    ratio = tl.exp(tl.where(log_ratio > LARGEST_LOG_RATIO, LARGEST_LOG_RATIO, log_ratio))
    advantage = tl.load(advantage_ptr + row * stride_advantage, inside, 0.0)
    _, slope = surrogate_of(ratio, advantage, clip, dual_clip, DUAL)
    slope = tl.where(log_ratio > LARGEST_LOG_RATIO, 0.0, slope * ratio)
    tl.store(d_log_prob_ptr + row, -share * tl.load(d_terms_ptr) * slope, inside)
    _, slope = value_error_of(
        tl.load(value_ptr + row * stride_value, inside, 0.0),
        tl.load(old_value_ptr + row * stride_old_value, inside, 0.0),
        tl.load(target_ptr + row * stride_target, inside, 0.0),
        clip,
        CLIPPED,
    )
    tl.store(d_value_ptr + row, share * tl.load(d_terms_ptr + 1) * slope, inside)


@triton.jit
def difference(
    prediction_ptr: tl.tensor,
    target_ptr: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    stride_prediction: tl.tensor,
    stride_target: tl.tensor,
    BLOCK_C: tl.constexpr,
) -> tl.tensor:
    """[BLOCK_B, BLOCK_C]: prediction - target, 0 outside."""
    column = tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    prediction = rows_of(prediction_ptr, row, column, stride_prediction, inside, 0.0)
    return prediction - rows_of(target_ptr, row, column, stride_target, inside, 0.0)


@triton.jit(do_not_specialize=["rows"])
def _squared_errors_fwd_kernel(
    predictions: tl.tensor,
    targets: tl.tensor,
    mask_ptr: tl.tensor,
    count_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    least: tl.tensor,
    rows: tl.tensor,
    widths: tl.tensor,
    prediction_strides: tl.tensor,
    target_strides: tl.tensor,
    stride_mask: tl.tensor,
    shares: tl.tensor,
    PAIRS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """parts [P, PAIRS]: Σ (prediction - target)² times its share; of the first pair over mask / max(count, least).

    Arguments in the plural are tuples, one entry a pair.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    parts_ptr += tl.program_id(0) * PAIRS
    for k in tl.static_range(PAIRS):
        away = difference(
            predictions[k],
            targets[k],
            row,
            rows,
            widths[k],
            prediction_strides[k],
            target_strides[k],
            BLOCK_C,
        )
        errors = tl.sum(away * away, 1)
        if k == 0:
            errors *= tl.load(mask_ptr + row * stride_mask, row < rows, 0.0) / tl.maximum(tl.load(count_ptr), least)
        tl.store(parts_ptr + k, shares[k] * tl.sum(errors, 0))


@triton.jit(do_not_specialize=["rows"])
def _squared_errors_bwd_kernel(
    predictions: tl.tensor,
    targets: tl.tensor,
    mask_ptr: tl.tensor,
    count_ptr: tl.tensor,
    d_terms_ptr: tl.tensor,
    d_predictions: tl.tensor,
    least: tl.tensor,
    rows: tl.tensor,
    widths: tl.tensor,
    prediction_strides: tl.tensor,
    target_strides: tl.tensor,
    stride_mask: tl.tensor,
    shares: tl.tensor,
    PAIRS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    for k in tl.static_range(PAIRS):
        away = difference(
            predictions[k],
            targets[k],
            row,
            rows,
            widths[k],
            prediction_strides[k],
            target_strides[k],
            BLOCK_C,
        )
        slope = 2.0 * shares[k] * tl.load(d_terms_ptr + k) * away
        if k == 0:
            mask = tl.load(mask_ptr + row * stride_mask, row < rows, 0.0)
            slope *= (mask / tl.maximum(tl.load(count_ptr), least))[:, None]
        column = tl.arange(0, BLOCK_C)
        inside = (row < rows)[:, None] & (column < widths[k])[None, :]
        tl.store(d_predictions[k] + row[:, None] * widths[k] + column[None, :], slope, inside)


@triton.jit
def _gradient_bounds_kernel(
    norms_ptr: tl.tensor,
    loss_ptr: tl.tensor,
    divisors_ptr: tl.tensor,
    broken_ptr: tl.tensor,
    taken_ptr: tl.tensor,
    parameters: tl.tensor,
    first: tl.tensor,
    max_norm: tl.tensor,
    BLOCK_P: tl.constexpr,
) -> None:
    """One program: the two parts' norms over `max_norm`, at least 1, and whether anything is not finite, as 0 or 1."""
    place = tl.arange(0, BLOCK_P)
    norms = tl.load(norms_ptr + place, place < parameters, 0.0)
    squares = norms * norms
    one = tl.sqrt(tl.sum(tl.where(place < first, squares, 0.0), 0))
    two = tl.sqrt(tl.sum(tl.where(place >= first, squares, 0.0), 0))
    total = tl.load(loss_ptr) + one + two
    tl.store(divisors_ptr, tl.where(one > max_norm, one / max_norm, 1.0))
    tl.store(divisors_ptr + 1, tl.where(two > max_norm, two / max_norm, 1.0))
    taken = total - total == 0.0  # x - x is 0 for every number, NaN for what is none
    tl.store(broken_ptr, tl.where(taken, 0.0, 1.0))
    tl.store(taken_ptr, taken)
