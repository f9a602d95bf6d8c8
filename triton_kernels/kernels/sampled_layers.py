"""Layers of a network that runs on samples of its latent inputs, forward.

A tile holds n samples of R rows as n · R entries, sample after sample. Its latent inputs z = mean + std ∘ noise are
drawn once (or the noise is read, where it was given) and written; the part that the context adds to the first layer is
the same for all samples of a row and comes in as one tensor. Everything that goes into a product is rounded where it is
written (see `dot.py`).

Addresses: a program has a 64-bit base and 32-bit offsets from it; 64-bit offsets would take two registers an element.
A tile's own tensors are small enough for 32 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import dot, halves, operand
from triton_kernels.kernels.latent_noise import latent_columns, noise_block
from triton_kernels.kernels.moments_math import ELU, LEAKY_RELU, NONE


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
    ptr: tl.tensor, row: tl.tensor, column: tl.tensor, stride: tl.tensor, rows: tl.tensor, columns: tl.tensor
) -> tl.tensor:
    """[len(row), len(column)] of a matrix [rows, columns] with contiguous rows, 0 outside."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(ptr + row[:, None] * stride + column[None, :], inside, 0.0)


@triton.jit(do_not_specialize=["samples", "rows", "first_sample", "first_row", "half"])
def _latent_draw_kernel(
    mean_ptr: tl.tensor,
    std_ptr: tl.tensor,
    noise_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    z_ptr: tl.tensor,
    samples: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride_z: tl.tensor,
    stride_noise_sample: tl.tensor,
    stride_noise_row: tl.tensor,
    stride_noise_column: tl.tensor,
    first_sample: tl.tensor,
    first_row: tl.tensor,
    half: tl.tensor,
    SOURCE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Z: tl.constexpr,
) -> None:
    """z [n, R, Z] = mean + std ∘ noise, rounded for products."""
    counter_blocks = tl.cdiv(columns, BLOCK_Z)
    row = (tl.program_id(0) // counter_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    first_counter = (tl.program_id(0) % counter_blocks) * (BLOCK_Z // 4)
    column = latent_columns(first_counter, columns, BLOCK_Z)
    seed = tl.load(seed_ptr)
    at = row[:, None] * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    mean = tl.load(mean_ptr + at, inside, 0.0).to(tl.float32)
    std = tl.load(std_ptr + at, inside, 0.0).to(tl.float32)
    for sample in range(samples):
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
        z = operand(mean + std * noise, z_ptr, PRECISION)
        tl.store(z_ptr + row[:, None] * stride_z + column[None, :], z, inside)
        z_ptr += rows.to(tl.int64) * stride_z


@triton.jit(do_not_specialize=["rows", "part_rows"])
def _sampled_linear_fwd_kernel(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    part_rows: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    stride_x: tl.tensor,
    stride_weight: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    PART: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
) -> None:
    """out [M, O] = f(x Wᵀ + b), rounded if there is an activation; PART: b [part_rows, O] repeats, else it is [O]."""
    # Neighbours in the grid share rows: x is read once from DRAM, then from L2.
    out_blocks = tl.cdiv(outputs, BLOCK_O)
    first = (tl.program_id(0) // out_blocks).to(tl.int64) * BLOCK_M
    left = tl.minimum(rows - first, BLOCK_M).to(tl.int32)
    row = tl.arange(0, BLOCK_M)
    out = (tl.program_id(0) % out_blocks) * BLOCK_O + tl.arange(0, BLOCK_O)
    x_ptr += first * stride_x
    out_ptr += first * outputs
    total = tl.zeros([BLOCK_M, BLOCK_O], tl.float32)
    for begin in range(0, inputs, BLOCK_I):
        column = begin + tl.arange(0, BLOCK_I)
        x = _block(x_ptr, row, column, stride_x, left, inputs)
        weight = _block(weight_ptr, out, column, stride_weight, outputs, inputs)
        total = dot(x, tl.trans(weight), total, PRECISION)
    # Half of the columns after the other: all at once would need more registers than the products leave.
    part_row = (first.to(tl.int32) + row) % part_rows if PART else row
    totals = halves(total, BLOCK_M, BLOCK_O)
    for side in tl.static_range(2):
        out = (tl.program_id(0) % out_blocks) * BLOCK_O + side * (BLOCK_O // 2) + tl.arange(0, BLOCK_O // 2)
        inside = (row < left)[:, None] & (out < outputs)[None, :]
        if PART:
            bias = tl.load(bias_ptr + part_row[:, None] * outputs + out[None, :], inside, 0.0)
        else:
            bias = tl.load(bias_ptr + out, out < outputs, 0.0).to(tl.float32)[None, :]
        y = _activate(totals[side] + bias, parameter, ACTIVATION)
        if ACTIVATION != NONE:
            y = operand(y, out_ptr, PRECISION)
        tl.store(out_ptr + row[:, None] * outputs + out[None, :], y, inside)
