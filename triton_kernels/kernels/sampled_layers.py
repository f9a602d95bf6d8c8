"""Layers of a network that runs on samples of its latent inputs, forward.

A tile holds n samples of R rows as n · R entries, sample after sample. The first layer draws its latent inputs
z = mean + std ∘ noise while it multiplies (or reads the noise, where it was given); the part that the context adds is
the same for all samples of a row and comes in as one tensor. The columns of z go through the products in the order in
which the counters give them (see `latent_noise.py`).

Addresses: a program has a 64-bit base and 32-bit offsets from it; 64-bit offsets would take two registers an element.
A tile's own tensors are small enough for 32 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import dot
from triton_kernels.kernels.latent_noise import latent_columns, noise_block
from triton_kernels.kernels.moments_math import ELU, LEAKY_RELU


@triton.jit
def _activate(x: tl.tensor, parameter: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """f(x); ELU by a series near 0, where e^x − 1 would cancel."""
    if ACTIVATION == ELU:
        series = 1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668 + x * (8.3333338e-3 + x * 1.3888889e-3))))
        below = tl.where(x > -0.35, x * (series + 1.9841270e-4 * x * x * x * x * x * x), tl.exp(x) - 1.0)
        x = tl.where(x > 0.0, x, parameter * below)
    if ACTIVATION == LEAKY_RELU:
        x = tl.where(x > 0.0, x, parameter * x)
    return x


@triton.jit
def _through_activation(d: tl.tensor, y: tl.tensor, parameter: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """d · f′(x) from y = f(x)."""
    if ACTIVATION == ELU:
        d = tl.where(y > 0.0, d, d * (y + parameter))
    if ACTIVATION == LEAKY_RELU:
        d = tl.where(y > 0.0, d, d * parameter)
    return d


@triton.jit
def _block(
    ptr: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
) -> tl.tensor:
    """[len(row), len(column)] of a matrix [rows, columns], as float32, 0 outside."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(ptr + row[:, None] * stride_row + column[None, :] * stride_column, inside, 0.0).to(tl.float32)


@triton.jit
def _latent_block(
    mean_ptr: tl.tensor,
    std_ptr: tl.tensor,
    noise_ptr: tl.tensor,
    stride_noise_sample: tl.tensor,
    stride_noise_row: tl.tensor,
    stride_noise_column: tl.tensor,
    seed: tl.tensor,
    rows_ptr: tl.tensor,
    entry: tl.tensor,
    column: tl.tensor,
    entries: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    first_sample: tl.tensor,
    first_row: tl.tensor,
    first_counter: tl.tensor,
    half: tl.tensor,
    SOURCE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Z: tl.constexpr,
) -> tl.tensor:
    """z [M, BLOCK_Z] of the tile's entries, 0 outside; column = latent_columns(first_counter, …)."""
    row = entry % rows
    noise = noise_block(
        noise_ptr,
        stride_noise_sample,
        stride_noise_row,
        stride_noise_column,
        seed,
        rows_ptr,
        entry // rows,
        row,
        entry < entries,
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
    at = row[:, None] * columns + column[None, :]
    inside = (entry < entries)[:, None] & (column < columns)[None, :]
    mean = tl.load(mean_ptr + at, inside, 0.0).to(tl.float32)
    std = tl.load(std_ptr + at, inside, 0.0).to(tl.float32)
    return mean + std * noise


@triton.jit(do_not_specialize=["rows"])
def _sampled_linear_fwd_kernel(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    stride_out: tl.tensor,
    stride_in: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
) -> None:
    """out [M, O] = f(x Wᵀ + b)."""
    # Neighbours in the grid share rows: x is read once from DRAM, then from L2.
    out_blocks = tl.cdiv(outputs, BLOCK_O)
    first = (tl.program_id(0) // out_blocks).to(tl.int64) * BLOCK_M
    left = tl.minimum(rows - first, BLOCK_M).to(tl.int32)
    row = tl.arange(0, BLOCK_M)
    out = (tl.program_id(0) % out_blocks) * BLOCK_O + tl.arange(0, BLOCK_O)
    x_ptr += first * stride_row
    out_ptr += first * outputs
    bias = tl.load(bias_ptr + out, out < outputs, 0.0).to(tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_O], tl.float32) + bias[None, :]
    for begin in range(0, inputs, BLOCK_I):
        column = begin + tl.arange(0, BLOCK_I)
        x = _block(x_ptr, row, column, stride_row, stride_column, left, inputs)
        weight = _block(weight_ptr, out, column, stride_out, stride_in, outputs, inputs)
        total = dot(x, tl.trans(weight), total, PRECISION)
    inside = (row < left)[:, None] & (out < outputs)[None, :]
    tl.store(out_ptr + row[:, None] * outputs + out[None, :], _activate(total, parameter, ACTIVATION), inside)


@triton.jit(do_not_specialize=["entries", "rows", "first_sample", "first_row", "half"])
def _latent_linear_fwd_kernel(
    mean_ptr: tl.tensor,
    std_ptr: tl.tensor,
    noise_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    context_part_ptr: tl.tensor,
    out_ptr: tl.tensor,
    entries: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    outputs: tl.tensor,
    stride_noise_sample: tl.tensor,
    stride_noise_row: tl.tensor,
    stride_noise_column: tl.tensor,
    stride_out: tl.tensor,
    stride_in: tl.tensor,
    first_sample: tl.tensor,
    first_row: tl.tensor,
    half: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    SOURCE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_Z: tl.constexpr,
) -> None:
    """out [n R, O] = f(z W_zᵀ + context_part), the part [R, O] with the bias in it."""
    out_blocks = tl.cdiv(outputs, BLOCK_O)
    entry = (tl.program_id(0) // out_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    out = (tl.program_id(0) % out_blocks) * BLOCK_O + tl.arange(0, BLOCK_O)
    seed = tl.load(seed_ptr)
    total = tl.zeros([BLOCK_M, BLOCK_O], tl.float32)
    for first_counter in range(0, (columns + 3) // 4, BLOCK_Z // 4):
        column = latent_columns(first_counter, columns, BLOCK_Z)
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
            entries,
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
        weight = _block(weight_ptr, out, column, stride_out, stride_in, outputs, columns)
        total = dot(z, tl.trans(weight), total, PRECISION)
    inside = (entry < entries)[:, None] & (out < outputs)[None, :]
    total += tl.load(context_part_ptr + (entry % rows)[:, None] * outputs + out[None, :], inside, 0.0)
    at = entry[:, None] * outputs + out[None, :]
    tl.store(out_ptr + at, _activate(total, parameter, ACTIVATION), inside)
