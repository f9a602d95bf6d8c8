"""What the matrix kernels of the moments share: tiles in and out, both products of a layer, activation of a tile.

An activation is applied to a finished tile in chunks of few rows, read back from where the tile was just written: some
hundreds of operations an element with two dozen live values would otherwise compete with the accumulators for
registers. The tile is in L1 or L2 at that time and costs no DRAM traffic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import dot, half, rounded, square_operand, weight_operand
from triton_kernels.kernels.moments_math import activation_gradients, activation_moments


@triton.jit
def tile(ptr: tl.tensor, row: tl.tensor, stride: tl.tensor, column: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """[R, C] from a matrix with contiguous rows, as float32, 0 outside; row offsets must be 64-bit."""
    tl.static_assert(row.dtype == tl.int64)
    return tl.load(ptr + row[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def add_products(
    total: tl.tensor,
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    row: tl.tensor,
    out: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    stride_x: tl.tensor,
    stride_weight: tl.tensor,
    MARKED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_IN: tl.constexpr,
) -> tl.tensor:
    """total [OUT, ROWS] + W xᵀ over the inputs first … last; MARKED: W is as `marked` makes it."""
    for begin in range(first, last, BLOCK_IN):
        column = begin + tl.arange(0, BLOCK_IN)
        inside = (column < last)[None, :]
        x = tile(x_ptr, row, stride_x, column, (row < rows)[:, None] & inside)
        weight = tile(weight_ptr, out, stride_weight, column, (out < outputs)[:, None] & inside)
        total = dot(weight_operand(weight, MARKED, PRECISION), tl.trans(x), total, PRECISION)
    return total


@triton.jit
def add_both_products(
    total_mean: tl.tensor,
    total_var: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    row: tl.tensor,
    out: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    stride_mean: tl.tensor,
    stride_var: tl.tensor,
    stride_weight: tl.tensor,
    MARKED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_IN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Both totals [OUT, ROWS], the second with W ∘ W; var's columns are counted from `first`. MARKED as above.

    The weight is the left operand: a tensor core takes that one from registers, where it is squared, so that the square
    needs no way through shared memory and no reading of its own.
    """
    for begin in range(first, last, BLOCK_IN):
        column = begin + tl.arange(0, BLOCK_IN)
        inside = (column < last)[None, :]
        row_inside = (row < rows)[:, None]
        mean = tile(mean_ptr, row, stride_mean, column, row_inside & inside)
        var = tile(var_ptr, row, stride_var, column - first, row_inside & inside)
        weight = tile(weight_ptr, out, stride_weight, column, (out < outputs)[:, None] & inside)
        total_mean = dot(weight_operand(weight, MARKED, PRECISION), tl.trans(mean), total_mean, PRECISION)
        total_var = dot(square_operand(weight, MARKED, PRECISION), tl.trans(var), total_var, PRECISION)
    return total_mean, total_var


@triton.jit
def store_tile(
    ptr: tl.tensor, row: tl.tensor, stride: tl.tensor, column: tl.tensor, value: tl.tensor, inside: tl.tensor
) -> None:
    """The opposite of `tile`."""
    tl.static_assert(row.dtype == tl.int64)
    tl.store(ptr + row[:, None] * stride + column[None, :], value, mask=inside)


@triton.jit
def pair_of(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Two numbers as float16 in the bits of one float32: the 11 bits of TF32, in half of its room.

    Beyond float16's range they are its largest: the density of a kink at a variance near zero times a gradient of 0
    is 0, not NaN.
    """
    low_bits = half(low).to(tl.int16, bitcast=True).to(tl.int32) & 65535
    high_bits = half(high).to(tl.int16, bitcast=True).to(tl.int32) << 16
    return (low_bits | high_bits).to(tl.float32, bitcast=True)


@triton.jit
def of_pair(pair: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The opposite of `pair_of`."""
    bits = pair.to(tl.int32, bitcast=True)
    low = bits.to(tl.int16).to(tl.float16, bitcast=True)
    high = (bits >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def activate_tile(
    state_mean_ptr: tl.tensor,
    state_var_ptr: tl.tensor,
    out_mean_ptr: tl.tensor,
    out_var_ptr: tl.tensor,
    first_row: tl.tensor,
    rows: tl.tensor,
    column: tl.tensor,
    columns: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    JACOBIAN: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
) -> None:
    """Activation moments of a tile that this program has just written to `state`, chunk by chunk; in place allowed.

    With JACOBIAN the activation's derivatives take the place of the moments in `state`, two numbers in each.
    """
    tl.debug_barrier()  # other threads of the program wrote what this one reads
    for begin in range(0, BLOCK_ROWS, CHUNK_ROWS):
        row = first_row + begin + tl.arange(0, CHUNK_ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        mean = tile(state_mean_ptr, row, columns, column, inside)
        var = tile(state_var_ptr, row, columns, column, inside)
        if JACOBIAN:
            mean, var, mean_mean, mean_var, var_mean, var_var = activation_gradients(mean, var, parameter, ACTIVATION)
            store_tile(state_mean_ptr, row, columns, column, pair_of(mean_mean, mean_var), inside)
            store_tile(state_var_ptr, row, columns, column, pair_of(var_mean, var_var), inside)
        else:
            mean, var = activation_moments(mean, var, parameter, ACTIVATION)
        store_tile(out_mean_ptr, row, columns, column, rounded(mean, PRECISION), inside)
        store_tile(out_var_ptr, row, columns, column, rounded(var, PRECISION), inside)
