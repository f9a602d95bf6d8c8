"""Kernels of the likelihood of a mixture of Gaussians: log (1/N) Σ_i N(action | means_i, std²).

One program has a block of rows and goes over the samples once, with a running maximum and a sum relative to it. The
means are read, or made on the spot by the last linear layer of a network from its inputs, so that they are never
written. The state of a row (maximum, sum) can be carried from one launch to the next: samples may come in tiles.

The backward pass goes over the samples once more: a component's weight is exp(log N(action | means_i) − log Σ). It
writes the gradient of the means and sums those of action and std in registers; a std shared by all rows is summed by
blocks of rows first, blocks by torch afterwards, so no order depends on the schedule.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import dot, operand, scale_of

LOG_SQRT_2PI = tl.constexpr(0.9189385332046727)


@triton.jit
def _means_of_sample(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    row_inside: tl.tensor,
    inputs: tl.tensor,
    actions: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    stride_out: tl.tensor,
    stride_in: tl.tensor,
    HAS_LAYER: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_I: tl.constexpr,
) -> tl.tensor:
    """[BLOCK_B, BLOCK_A] of one sample, read from x_ptr [R, A] or made of x_ptr [R, I] by the layer."""
    if HAS_LAYER:
        means = tl.zeros([BLOCK_B, BLOCK_A], tl.float32) + bias
        for begin in range(0, inputs, BLOCK_I):
            i = begin + tl.arange(0, BLOCK_I)
            x = tl.load(
                x_ptr + row[:, None] * stride_row + i[None, :] * stride_column,
                row_inside[:, None] & (i < inputs)[None, :],
                0.0,
            )
            weight = tl.load(
                weight_ptr + column[None, :] * stride_out + i[:, None] * stride_in,
                (column < actions)[None, :] & (i < inputs)[:, None],
                0.0,
            )
            means = dot(x, weight, means, PRECISION)
    else:
        means = tl.load(x_ptr + row[:, None] * stride_row + column[None, :] * stride_column, inside, 0.0)
        means = means.to(tl.float32)
    return means


@triton.jit
def _load_std(
    std_ptr: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    actions: tl.tensor,
    ROW_STD: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """1 / std, [1, A] or [R, A], and a component's constant −Σ log std − A log √(2π), [1] or [R]."""
    if ROW_STD:
        std = tl.load(std_ptr + row[:, None] * actions + column[None, :], inside, 1.0).to(tl.float32)
    else:
        std = tl.load(std_ptr + column[None, :], (column < actions)[None, :], 1.0).to(tl.float32)
    return 1.0 / std, -tl.sum(tl.log(std), 1) - LOG_SQRT_2PI * actions


@triton.jit(do_not_specialize=["samples", "rows"])
def _mixture_log_prob_fwd_kernel(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    action_ptr: tl.tensor,
    std_ptr: tl.tensor,
    state_ptr: tl.tensor,
    log_prob_ptr: tl.tensor,
    samples: tl.tensor,
    rows: tl.tensor,
    inputs: tl.tensor,
    actions: tl.tensor,
    stride_state: tl.tensor,
    stride_sample: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    stride_out: tl.tensor,
    stride_in: tl.tensor,
    log_samples: tl.tensor,
    HAS_LAYER: tl.constexpr,
    ROW_STD: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_I: tl.constexpr,
) -> None:
    # A 64-bit base and 32-bit offsets from it: 64-bit offsets would take two registers an element.
    first = tl.program_id(0).to(tl.int64) * BLOCK_B
    row = tl.arange(0, BLOCK_B)
    column = tl.arange(0, BLOCK_A)
    row_inside = row < tl.minimum(rows - first, BLOCK_B).to(tl.int32)
    x_ptr += first * stride_row
    action_ptr += first * actions
    if ROW_STD:
        std_ptr += first * actions
    state_ptr += first
    log_prob_ptr += first
    inside = row_inside[:, None] & (column < actions)[None, :]
    action = tl.load(action_ptr + row[:, None] * actions + column[None, :], inside, 0.0).to(tl.float32)
    inverse, constant = _load_std(std_ptr, row, column, inside, actions, ROW_STD)
    bias = tl.zeros([1, BLOCK_A], tl.float32)
    if HAS_LAYER:
        bias = tl.load(bias_ptr + column, column < actions, 0.0).to(tl.float32)[None, :]
    if FIRST:
        highest = tl.full([BLOCK_B], -float("inf"), tl.float32)
        total = tl.zeros([BLOCK_B], tl.float32)
    else:
        highest = tl.load(state_ptr + row, row_inside, 0.0)
        total = tl.load(state_ptr + stride_state + row, row_inside, 0.0)
    for _ in range(samples):
        means = _means_of_sample(
            x_ptr,
            weight_ptr,
            bias,
            row,
            column,
            inside,
            row_inside,
            inputs,
            actions,
            stride_row,
            stride_column,
            stride_out,
            stride_in,
            HAS_LAYER,
            PRECISION,
            BLOCK_B,
            BLOCK_A,
            BLOCK_I,
        )
        z = tl.where(inside, (action - means) * inverse, 0.0)
        exponent = -0.5 * tl.sum(z * z, 1)
        # A NaN becomes the maximum, makes the sum NaN, and there it stays.
        new = tl.where(exponent <= highest, highest, exponent)
        # Nothing but zero likelihoods so far: the differences would be inf - inf, the sum is to stay 0.
        safe = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(highest - safe) + tl.exp(exponent - safe)
        highest = new
        x_ptr += stride_sample
    if LAST:
        log_prob = tl.where(total == 0.0, -float("inf"), highest + tl.log(total) + constant - log_samples)
        tl.store(log_prob_ptr + row, log_prob, row_inside)
    else:
        tl.store(state_ptr + row, highest, row_inside)
        tl.store(state_ptr + stride_state + row, total, row_inside)


@triton.jit
def add_to(at: tl.tensor, value: tl.tensor, inside: tl.tensor, FIRST: tl.constexpr) -> None:
    """*at += value, or = for the first tile, which finds nothing there."""
    if not FIRST:
        value += tl.load(at, inside, 0.0)
    tl.store(at, value, inside)


@triton.jit(do_not_specialize=["samples", "rows"])
def _mixture_log_prob_bwd_kernel(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    action_ptr: tl.tensor,
    std_ptr: tl.tensor,
    log_prob_ptr: tl.tensor,
    d_log_prob_ptr: tl.tensor,
    d_means_ptr: tl.tensor,
    d_action_ptr: tl.tensor,
    d_std_ptr: tl.tensor,
    largest_ptr: tl.tensor,
    samples: tl.tensor,
    rows: tl.tensor,
    inputs: tl.tensor,
    actions: tl.tensor,
    stride_sample: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    stride_out: tl.tensor,
    stride_in: tl.tensor,
    stride_d_sample: tl.tensor,
    log_samples: tl.tensor,
    HAS_LAYER: tl.constexpr,
    ROW_STD: tl.constexpr,
    SCALED: tl.constexpr,
    FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_I: tl.constexpr,
) -> None:
    """Writes d_means [n, R, A], an operand of products but in "ieee"; SCALED: times `scale_of` largest_ptr."""
    # A 64-bit base and 32-bit offsets from it: 64-bit offsets would take two registers an element.
    first = tl.program_id(0).to(tl.int64) * BLOCK_B
    row = tl.arange(0, BLOCK_B)
    column = tl.arange(0, BLOCK_A)
    row_inside = row < tl.minimum(rows - first, BLOCK_B).to(tl.int32)
    x_ptr += first * stride_row
    action_ptr += first * actions
    if ROW_STD:
        std_ptr += first * actions
    log_prob_ptr += first
    d_log_prob_ptr += first
    d_means_ptr += first * actions
    d_action_ptr += first * actions
    inside = row_inside[:, None] & (column < actions)[None, :]
    at = row[:, None] * actions + column[None, :]
    action = tl.load(action_ptr + at, inside, 0.0).to(tl.float32)
    inverse, constant = _load_std(std_ptr, row, column, inside, actions, ROW_STD)
    bias = tl.zeros([1, BLOCK_A], tl.float32)
    if HAS_LAYER:
        bias = tl.load(bias_ptr + column, column < actions, 0.0).to(tl.float32)[None, :]
    log_prob = tl.load(log_prob_ptr + row, row_inside, 0.0)
    d_log_prob = tl.load(d_log_prob_ptr + row, row_inside, 0.0).to(tl.float32)
    shift = constant - (log_prob + log_samples)
    # A row without any likelihood has no direction to improve in: gradient 0.
    dead = log_prob == -float("inf")
    d_action = tl.zeros([BLOCK_B, BLOCK_A], tl.float32)
    d_std = tl.zeros([BLOCK_B, BLOCK_A], tl.float32)
    total = tl.zeros([BLOCK_B], tl.float32)
    scale = scale_of(largest_ptr)[0] if SCALED else 1.0
    for _ in range(samples):
        means = _means_of_sample(
            x_ptr,
            weight_ptr,
            bias,
            row,
            column,
            inside,
            row_inside,
            inputs,
            actions,
            stride_row,
            stride_column,
            stride_out,
            stride_in,
            HAS_LAYER,
            PRECISION,
            BLOCK_B,
            BLOCK_A,
            BLOCK_I,
        )
        z = tl.where(inside, (action - means) * inverse, 0.0)
        exponent = -0.5 * tl.sum(z * z, 1)
        weight = tl.where(dead, 0.0, d_log_prob * tl.exp(exponent + shift))
        z = tl.where((weight == 0.0)[:, None], 0.0, z)  # infinite, perhaps
        gradient = weight[:, None] * z * inverse
        tl.store(d_means_ptr + at, operand(gradient * scale, d_means_ptr, PRECISION), inside)
        d_action -= gradient
        d_std += gradient * z
        total += weight
        x_ptr += stride_sample
        d_means_ptr += stride_d_sample
    d_std -= total[:, None] * inverse
    add_to(d_action_ptr + at, d_action, inside, FIRST)
    if ROW_STD:
        add_to(d_std_ptr + first * actions + at, d_std, inside, FIRST)
    else:
        part = tl.sum(tl.where(inside, d_std, 0.0), 0)
        add_to(d_std_ptr + tl.program_id(0) * actions + column, part, column < actions, FIRST)
