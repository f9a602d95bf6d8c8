"""Kernels of the gradients of a network that runs on samples of its latent inputs; see `sampled_layers.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import dot
from triton_kernels.kernels.latent_noise import latent_columns, noise_block
from triton_kernels.kernels.mixture_log_prob import add_to
from triton_kernels.kernels.moments_math import NONE
from triton_kernels.kernels.sampled_layers import _block, _latent_block, _through_activation


@triton.jit(do_not_specialize=["samples", "rows"])
def _sampled_linear_bwd_kernel(
    d_out_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    x_ptr: tl.tensor,
    d_x_ptr: tl.tensor,
    row_sum_ptr: tl.tensor,
    samples: tl.tensor,
    rows: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    stride_out: tl.tensor,
    stride_in: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    ROW_SUM: tl.constexpr,
    FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
) -> None:
    """d_x [n, R, I] = (d_out W) ∘ f′, x = f(…) the layer's input; ROW_SUM: row_sum [R, I] += Σ over samples."""
    in_blocks = tl.cdiv(inputs, BLOCK_I)
    first = (tl.program_id(0) // in_blocks).to(tl.int64) * BLOCK_M
    left = tl.minimum(rows - first, BLOCK_M).to(tl.int32)
    row = tl.arange(0, BLOCK_M)
    column = (tl.program_id(0) % in_blocks) * BLOCK_I + tl.arange(0, BLOCK_I)
    d_out_ptr += first * outputs
    x_ptr += first * inputs
    d_x_ptr += first * inputs
    row_sum_ptr += first * inputs
    inside = (row < left)[:, None] & (column < inputs)[None, :]
    at = row[:, None] * inputs + column[None, :]
    row_sum = tl.zeros([BLOCK_M, BLOCK_I], tl.float32)
    for _ in range(samples):
        d_x = tl.zeros([BLOCK_M, BLOCK_I], tl.float32)
        for begin in range(0, outputs, BLOCK_O):
            out = begin + tl.arange(0, BLOCK_O)
            d_out = _block(d_out_ptr, row, out, outputs, 1, left, outputs)
            weight = _block(weight_ptr, out, column, stride_out, stride_in, outputs, inputs)
            d_x = dot(d_out, weight, d_x, PRECISION)
        if ACTIVATION != NONE:
            d_x = _through_activation(d_x, tl.load(x_ptr + at, inside, 0.0), parameter, ACTIVATION)
        tl.store(d_x_ptr + at, d_x, inside)
        if ROW_SUM:
            row_sum += d_x
        d_out_ptr += rows.to(tl.int64) * outputs
        x_ptr += rows.to(tl.int64) * inputs
        d_x_ptr += rows.to(tl.int64) * inputs
    if ROW_SUM:
        add_to(row_sum_ptr + at, row_sum, inside, FIRST)


@triton.jit(do_not_specialize=["entries", "chunk"])
def _sampled_linear_bwd_weight_kernel(
    d_out_ptr: tl.tensor,
    x_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    entries: tl.tensor,
    chunk: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
) -> None:
    """parts [P, O, I + 1] += d_outᵀ x of a chunk of entries; the last column is the bias's, Σ d_out."""
    in_blocks = tl.maximum(tl.cdiv(inputs, BLOCK_I), 1)
    out_blocks = tl.cdiv(outputs, BLOCK_O)
    block = tl.program_id(0) % (in_blocks * out_blocks)
    part = tl.program_id(0) // (in_blocks * out_blocks)
    out = (block // in_blocks) * BLOCK_O + tl.arange(0, BLOCK_O)
    column = (block % in_blocks) * BLOCK_I + tl.arange(0, BLOCK_I)
    total = tl.zeros([BLOCK_O, BLOCK_I], tl.float32)
    bias = tl.zeros([BLOCK_O], tl.float32)
    first = part.to(tl.int64) * chunk
    count = tl.minimum(entries - first, chunk).to(tl.int32)
    d_out_ptr += first * outputs
    x_ptr += first * stride_row
    row = tl.arange(0, BLOCK_M)
    for begin in range(0, count, BLOCK_M):
        d_out = _block(d_out_ptr, row, out, outputs, 1, count - begin, outputs)
        x = _block(x_ptr, row, column, stride_row, stride_column, count - begin, inputs)
        total = dot(tl.trans(d_out), x, total, PRECISION)
        bias += tl.sum(d_out, 0)
        d_out_ptr += BLOCK_M * outputs
        x_ptr += BLOCK_M * stride_row
    line = parts_ptr + part.to(tl.int64) * outputs * (inputs + 1) + out * (inputs + 1)
    inside = (out < outputs)[:, None] & (column < inputs)[None, :]
    add_to(line[:, None] + column[None, :], total, inside, FIRST)
    add_to(line + inputs, bias, (out < outputs) & (block % in_blocks == 0), FIRST)


@triton.jit(do_not_specialize=["entries", "chunk", "rows", "first_sample", "first_row", "half"])
def _latent_linear_bwd_weight_kernel(
    d_out_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    std_ptr: tl.tensor,
    noise_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    entries: tl.tensor,
    chunk: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    outputs: tl.tensor,
    stride_noise_sample: tl.tensor,
    stride_noise_row: tl.tensor,
    stride_noise_column: tl.tensor,
    first_sample: tl.tensor,
    first_row: tl.tensor,
    half: tl.tensor,
    SOURCE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_Z: tl.constexpr,
) -> None:
    """parts [P, O, Z] += d_outᵀ z of a chunk of entries."""
    counter_blocks = tl.cdiv(columns, BLOCK_Z)
    out_blocks = tl.cdiv(outputs, BLOCK_O)
    block = tl.program_id(0) % (counter_blocks * out_blocks)
    part = tl.program_id(0) // (counter_blocks * out_blocks)
    out = (block // counter_blocks) * BLOCK_O + tl.arange(0, BLOCK_O)
    first_counter = (block % counter_blocks) * (BLOCK_Z // 4)
    column = latent_columns(first_counter, columns, BLOCK_Z)
    seed = tl.load(seed_ptr)
    total = tl.zeros([BLOCK_O, BLOCK_Z], tl.float32)
    first = part * chunk
    last = tl.minimum(first + chunk, entries)
    for begin in range(first, last, BLOCK_M):
        entry = begin + tl.arange(0, BLOCK_M)
        d_out = _block(d_out_ptr, entry, out, outputs, 1, last, outputs)
        z = _latent_block(
            mean_ptr,
            std_ptr,
            noise_ptr,
            stride_noise_sample,
            stride_noise_row,
            stride_noise_column,
            seed,
            rows_ptr,
            entry,
            column,
            last,
            rows,
            columns,
            first_sample,
            first_row,
            first_counter,
            half,
            SOURCE,
            HAS_ROWS,
            BLOCK_M,
            BLOCK_Z,
        )
        total = dot(tl.trans(d_out), z, total, PRECISION)
    inside = (out < outputs)[:, None] & (column < columns)[None, :]
    at = parts_ptr + part.to(tl.int64) * outputs * columns + (out[:, None] * columns + column[None, :])
    add_to(at, total, inside, FIRST)


@triton.jit(do_not_specialize=["samples", "rows", "first_sample", "first_row", "half"])
def _latent_linear_bwd_kernel(
    d_out_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    std_ptr: tl.tensor,
    noise_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    d_mean_ptr: tl.tensor,
    d_std_ptr: tl.tensor,
    d_noise_ptr: tl.tensor,
    samples: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    outputs: tl.tensor,
    stride_noise_sample: tl.tensor,
    stride_noise_row: tl.tensor,
    stride_noise_column: tl.tensor,
    stride_d_noise: tl.tensor,
    stride_out: tl.tensor,
    stride_in: tl.tensor,
    first_sample: tl.tensor,
    first_row: tl.tensor,
    half: tl.tensor,
    SOURCE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_D_NOISE: tl.constexpr,
    FIRST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Z: tl.constexpr,
    BLOCK_O: tl.constexpr,
) -> None:
    """d_mean [R, Z] += Σ d_z, d_std += Σ d_z ∘ noise, d_noise [n, R, Z] = d_z ∘ std, with d_z = d_out W_z."""
    counter_blocks = tl.cdiv(columns, BLOCK_Z)
    row = (tl.program_id(0) // counter_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    first_counter = (tl.program_id(0) % counter_blocks) * (BLOCK_Z // 4)
    column = latent_columns(first_counter, columns, BLOCK_Z)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row[:, None] * columns + column[None, :]
    seed = tl.load(seed_ptr)
    d_mean = tl.zeros([BLOCK_M, BLOCK_Z], tl.float32)
    d_std = tl.zeros([BLOCK_M, BLOCK_Z], tl.float32)
    for sample in range(samples):
        d_latent = tl.zeros([BLOCK_M, BLOCK_Z], tl.float32)
        for begin in range(0, outputs, BLOCK_O):
            out = begin + tl.arange(0, BLOCK_O)
            d_out = _block(d_out_ptr, row, out, outputs, 1, rows, outputs)
            weight = _block(weight_ptr, out, column, stride_out, stride_in, outputs, columns)
            d_latent = dot(d_out, weight, d_latent, PRECISION)
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
    parts: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    width: tl.tensor,
    stride_out: tl.tensor,
    stride_in: tl.tensor,
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
    tl.store(d_weight_ptr + out * stride_out + column * stride_in, total, inside & (column < inputs))
    tl.store(d_bias_ptr + out, total, inside & (column == inputs))
