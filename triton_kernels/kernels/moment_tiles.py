"""What the matrix kernels of the moments share: tiles in and out, both products of a layer, activation of a tile.

An activation is applied to a finished tile in chunks of few rows, read back from where the tile was just written (its
pre-activation moments, which the backward pass wants anyway): 300 operations an element with some 25 live values would
otherwise compete with the accumulators for registers. The tile is in L1 or L2 at that time and costs no DRAM traffic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import dot
from triton_kernels.kernels.moments_math import activation_moments


@triton.jit
def tile(ptr: tl.tensor, row: tl.tensor, stride: tl.tensor, column: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """[R, C] from a matrix with contiguous rows, as float32, 0 outside; row offsets must be 64-bit."""
    tl.static_assert(row.dtype == tl.int64)
    return tl.load(ptr + row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def layer_products(
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    row: tl.tensor,
    row_inside: tl.tensor,
    out: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    deterministic: tl.tensor,
    stride_mean: tl.tensor,
    stride_var: tl.tensor,
    stride_weight: tl.tensor,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """mean Wᵀ and var (W ∘ W)ᵀ of rows `row` and output columns `out`; the first `deterministic` inputs have no var."""
    total_mean = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
    total_var = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
    out_inside = (out < outputs)[:, None]
    out = out.to(tl.int64)
    if SPLIT:
        for begin in range(0, deterministic, BLOCK_IN):
            column = begin + tl.arange(0, BLOCK_IN)
            inside = (column < deterministic)[None, :]
            mean = tile(mean_ptr, row, stride_mean, column, row_inside[:, None] & inside)
            weight = tile(weight_ptr, out, stride_weight, column, out_inside & inside)
            total_mean = dot(mean, tl.trans(weight), total_mean, PRECISION)
    for begin in range(deterministic, inputs, BLOCK_IN):
        column = begin + tl.arange(0, BLOCK_IN)
        inside = (column < inputs)[None, :]
        mean = tile(mean_ptr, row, stride_mean, column, row_inside[:, None] & inside)
        var = tile(var_ptr, row, stride_var, column - deterministic, row_inside[:, None] & inside)
        weight = tile(weight_ptr, out, stride_weight, column, out_inside & inside)
        total_mean = dot(mean, tl.trans(weight), total_mean, PRECISION)
        total_var = dot(var, tl.trans(weight * weight), total_var, PRECISION)
    return total_mean, total_var


@triton.jit
def store_tile(
    ptr: tl.tensor, row: tl.tensor, stride: tl.tensor, column: tl.tensor, value: tl.tensor, inside: tl.tensor
) -> None:
    """The opposite of `tile`."""
    tl.static_assert(row.dtype == tl.int64)
    tl.store(ptr + row[:, None] * stride + column[None, :], value, mask=inside)


@triton.jit
def activate_tile(
    pre_mean_ptr: tl.tensor,
    pre_var_ptr: tl.tensor,
    out_mean_ptr: tl.tensor,
    out_var_ptr: tl.tensor,
    first_row: tl.tensor,
    rows: tl.tensor,
    column: tl.tensor,
    columns: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
) -> None:
    """Activation moments of a tile that this program has just written, chunk by chunk; in place allowed."""
    tl.debug_barrier()  # other threads of the program wrote what this one reads
    for begin in range(0, BLOCK_ROWS, CHUNK_ROWS):
        row = first_row + begin + tl.arange(0, CHUNK_ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        mean = tile(pre_mean_ptr, row, columns, column, inside)
        var = tile(pre_var_ptr, row, columns, column, inside)
        mean, var = activation_moments(mean, var, parameter, ACTIVATION)
        store_tile(out_mean_ptr, row, columns, column, mean, inside)
        store_tile(out_var_ptr, row, columns, column, var, inside)
