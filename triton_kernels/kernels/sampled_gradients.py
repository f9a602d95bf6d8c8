"""Kernels of the gradients of a network that runs on samples of its latent inputs; see `sampled_layers.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import dot, halves, operand, scale_of
from triton_kernels.kernels.latent_noise import latent_columns, noise_block
from triton_kernels.kernels.mixture_log_prob import add_to
from triton_kernels.kernels.moments_math import NONE
from triton_kernels.kernels.sampled_layers import _block, _through_activation


@triton.jit
def _places(
    row: tl.tensor, first_column: tl.tensor, rows: tl.tensor, columns: tl.tensor, WIDTH: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Offsets of a block of a contiguous matrix [rows, columns], and which of them there are."""
    column = first_column + tl.arange(0, WIDTH)
    return row[:, None] * columns + column[None, :], (row < rows)[:, None] & (column < columns)[None, :]


@triton.jit
def _below(
    d_x: tl.tensor,
    x_ptr: tl.tensor,
    d_x_ptr: tl.tensor,
    row: tl.tensor,
    first_column: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """d_x through the activation that made x, written as an operand of products; without activation, as it is."""
    at, inside = _places(row, first_column, rows, columns, d_x.shape[1])
    if ACTIVATION != NONE:
        x = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
        d_x = _through_activation(d_x, x, parameter, ACTIVATION)
        tl.store(d_x_ptr + at, operand(d_x, d_x_ptr, PRECISION), inside)
    else:
        tl.store(d_x_ptr + at, d_x, inside)
    return d_x


@triton.jit(do_not_specialize=["samples", "rows"])
def _sampled_linear_bwd_kernel(
    d_out_ptr: tl.tensor,
    turned_ptr: tl.tensor,
    x_ptr: tl.tensor,
    d_x_ptr: tl.tensor,
    row_sum_ptr: tl.tensor,
    largest_ptr: tl.tensor,
    samples: tl.tensor,
    rows: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    stride_turned: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    ROW_SUM: tl.constexpr,
    SCALED: tl.constexpr,
    FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
) -> None:
    """d_x [n, R, I] = (d_out W) ∘ f′, x = f(…) the layer's input, `turned` Wᵀ; rounded if there is an activation.

    ROW_SUM: row_sum [R, I] += Σ over samples, without the gradients' scale where they are SCALED.
    """
    in_blocks = tl.cdiv(inputs, BLOCK_I)
    first = (tl.program_id(0) // in_blocks).to(tl.int64) * BLOCK_M
    left = tl.minimum(rows - first, BLOCK_M).to(tl.int32)
    row = tl.arange(0, BLOCK_M)
    first_column = (tl.program_id(0) % in_blocks) * BLOCK_I
    column = first_column + tl.arange(0, BLOCK_I)
    d_out_ptr += first * outputs
    x_ptr += first * inputs
    d_x_ptr += first * inputs
    row_sum_ptr += first * inputs
    sum0 = tl.zeros([BLOCK_M, BLOCK_I // 2], tl.float32)
    sum1 = tl.zeros([BLOCK_M, BLOCK_I // 2], tl.float32)
    for _ in range(samples):
        d_x = tl.zeros([BLOCK_M, BLOCK_I], tl.float32)
        for begin in range(0, outputs, BLOCK_O):
            out = begin + tl.arange(0, BLOCK_O)
            d_out = _block(d_out_ptr, row, out, outputs, left, outputs)
            turned = _block(turned_ptr, column, out, stride_turned, inputs, outputs)
            d_x = dot(d_out, tl.trans(turned), d_x, PRECISION)
        # Half of the columns after the other: all at once would need more registers than the products leave.
        d0, d1 = halves(d_x, BLOCK_M, BLOCK_I)
        d0 = _below(d0, x_ptr, d_x_ptr, row, first_column, left, inputs, parameter, ACTIVATION, PRECISION)
        d1 = _below(
            d1, x_ptr, d_x_ptr, row, first_column + BLOCK_I // 2, left, inputs, parameter, ACTIVATION, PRECISION
        )
        if ROW_SUM:
            sum0 += d0
            sum1 += d1
        d_out_ptr += rows.to(tl.int64) * outputs
        x_ptr += rows.to(tl.int64) * inputs
        d_x_ptr += rows.to(tl.int64) * inputs
    if ROW_SUM:
        inverse = scale_of(largest_ptr)[1] if SCALED else 1.0
        at, inside = _places(row, first_column, left, inputs, BLOCK_I // 2)
        add_to(row_sum_ptr + at, sum0 * inverse, inside, FIRST)
        at, inside = _places(row, first_column + BLOCK_I // 2, left, inputs, BLOCK_I // 2)
        add_to(row_sum_ptr + at, sum1 * inverse, inside, FIRST)


@triton.jit(do_not_specialize=["entries", "chunk"])
def _sampled_linear_bwd_weight_kernel(
    d_out_ptr: tl.tensor,
    x_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    entries: tl.tensor,
    chunk: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    stride_x: tl.tensor,
    HAS_BIAS: tl.constexpr,
    FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
) -> None:
    """parts [P, O, I] += d_outᵀ x of a chunk of entries; HAS_BIAS: one column more, the bias's, Σ d_out."""
    in_blocks = tl.maximum(tl.cdiv(inputs, BLOCK_I), 1)
    out_blocks = tl.cdiv(outputs, BLOCK_O)
    block = tl.program_id(0) % (in_blocks * out_blocks)
    part = tl.program_id(0) // (in_blocks * out_blocks)
    out = (block // in_blocks) * BLOCK_O + tl.arange(0, BLOCK_O)
    column = (block % in_blocks) * BLOCK_I + tl.arange(0, BLOCK_I)
    total = tl.zeros([BLOCK_O, BLOCK_I], tl.float32)
    # Summed over the rows of a block only at the end: a sum across threads costs more than these additions.
    bias = tl.zeros([BLOCK_M, BLOCK_O], tl.float32)
    first = part.to(tl.int64) * chunk
    count = tl.minimum(entries - first, chunk).to(tl.int32)
    d_out_ptr += first * outputs
    x_ptr += first * stride_x
    row = tl.arange(0, BLOCK_M)
    for begin in range(0, count, BLOCK_M):
        d_out = _block(d_out_ptr, row, out, outputs, count - begin, outputs)
        x = _block(x_ptr, row, column, stride_x, count - begin, inputs)
        total = dot(tl.trans(d_out), x, total, PRECISION)
        if HAS_BIAS:
            bias += d_out.to(tl.float32)
        d_out_ptr += BLOCK_M * outputs
        x_ptr += BLOCK_M * stride_x
    width = inputs + 1 if HAS_BIAS else inputs
    line = parts_ptr + part.to(tl.int64) * outputs * width + out * width
    # Half of the columns after the other: to add to all at once would need more registers than there are.
    totals = halves(total, BLOCK_O, BLOCK_I)
    for side in tl.static_range(2):
        column = (block % in_blocks) * BLOCK_I + side * (BLOCK_I // 2) + tl.arange(0, BLOCK_I // 2)
        inside = (out < outputs)[:, None] & (column < inputs)[None, :]
        add_to(line[:, None] + column[None, :], totals[side], inside, FIRST)
    if HAS_BIAS:
        add_to(line + inputs, tl.sum(bias, 0), (out < outputs) & (block % in_blocks == 0), FIRST)


@triton.jit(do_not_specialize=["samples", "rows", "first_sample", "first_row", "half"])
def _latent_linear_bwd_kernel(
    d_out_ptr: tl.tensor,
    turned_ptr: tl.tensor,
    std_ptr: tl.tensor,
    noise_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    d_mean_ptr: tl.tensor,
    d_std_ptr: tl.tensor,
    d_noise_ptr: tl.tensor,
    largest_ptr: tl.tensor,
    samples: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    outputs: tl.tensor,
    stride_noise_sample: tl.tensor,
    stride_noise_row: tl.tensor,
    stride_noise_column: tl.tensor,
    stride_d_noise: tl.tensor,
    stride_turned: tl.tensor,
    first_sample: tl.tensor,
    first_row: tl.tensor,
    half: tl.tensor,
    SOURCE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_D_NOISE: tl.constexpr,
    SCALED: tl.constexpr,
    FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Z: tl.constexpr,
    BLOCK_O: tl.constexpr,
) -> None:
    """d_mean [R, Z] += Σ d_z, d_std += Σ d_z ∘ noise, d_noise [n, R, Z] = d_z ∘ std, d_z = d_out W_z."""
    counter_blocks = tl.cdiv(columns, BLOCK_Z)
    row = (tl.program_id(0) // counter_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    first_counter = (tl.program_id(0) % counter_blocks) * (BLOCK_Z // 4)
    column = latent_columns(first_counter, columns, BLOCK_Z)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row[:, None] * columns + column[None, :]
    seed = tl.load(seed_ptr)
    inverse = scale_of(largest_ptr)[1] if SCALED else 1.0
    d_mean = tl.zeros([BLOCK_M, BLOCK_Z], tl.float32)
    d_std = tl.zeros([BLOCK_M, BLOCK_Z], tl.float32)
    for sample in range(samples):
        d_latent = tl.zeros([BLOCK_M, BLOCK_Z], tl.float32)
        for begin in range(0, outputs, BLOCK_O):
            out = begin + tl.arange(0, BLOCK_O)
            d_out = _block(d_out_ptr, row, out, outputs, rows, outputs)
            turned = _block(turned_ptr, column, out, stride_turned, columns, outputs)
            d_latent = dot(d_out, tl.trans(turned), d_latent, PRECISION)
        noise = noise_block(
            noise_ptr,
            stride_noise_sample,
            stride_noise_row,
            stride_noise_column,
            seed,
            rows_ptr,
            tl.zeros_like(row) + sample,
            row,
            row < rows,
            first_sample,
            first_row,
            first_counter,
            columns,
            half,
            SOURCE,
            HAS_ROWS,
            BLOCK_M,
            BLOCK_Z,
        )
        if SCALED:
            d_latent *= inverse
        d_mean += d_latent
        d_std += d_latent * noise
        if HAS_D_NOISE:
            std = tl.load(std_ptr + at, inside, 0.0).to(tl.float32)
            tl.store(d_noise_ptr + at, d_latent * std, inside)
            d_noise_ptr += stride_d_noise
        d_out_ptr += rows.to(tl.int64) * outputs
    add_to(d_mean_ptr + at, d_mean, inside, FIRST)
    add_to(d_std_ptr + at, d_std, inside, FIRST)


@triton.jit(do_not_specialize=["parts"])
def _sum_parts_kernel(
    parts_ptr: tl.tensor,
    d_weight_ptr: tl.tensor,
    d_bias_ptr: tl.tensor,
    largest_ptr: tl.tensor,
    parts: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    width: tl.tensor,
    stride_out: tl.tensor,
    stride_in: tl.tensor,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """d_weight [O, I] = Σ parts [P, O, width], first part first; column I, if there is one, is d_bias."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < outputs * width
    out = at // width
    column = at % width
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(parts):
        total += tl.load(parts_ptr + at, inside, 0.0)
        parts_ptr += outputs * width
    if SCALED:
        total *= scale_of(largest_ptr)[1]
    tl.store(d_weight_ptr + out * stride_out + column * stride_in, total, inside & (column < inputs))
    tl.store(d_bias_ptr + out, total, inside & (column == inputs))
