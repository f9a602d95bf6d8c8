"""Gradients of the weights of a moment MLP: tiles of every layer over parts of the batch, and the sum of the parts."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import dot
from triton_kernels.kernels.moment_tiles import store_tile, tile


@triton.jit
def _layer_tile(
    d_mean_ptr: tl.tensor,
    d_var_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    index: tl.tensor,
    inputs: tl.tensor,
    deterministic: tl.tensor,
    outputs: tl.tensor,
    stride_d_mean: tl.tensor,
    stride_d_var: tl.tensor,
    stride_mean: tl.tensor,
    stride_var: tl.tensor,
    stride_weight: tl.tensor,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
) -> None:
    """Tile number `index` of one layer, over rows begin … end; the weight's sums at partial_ptr, then the bias's."""
    deterministic_blocks = tl.cdiv(deterministic, BLOCK_IN)
    column_blocks = deterministic_blocks + tl.cdiv(inputs - deterministic, BLOCK_IN)
    block = index % column_blocks
    out = (index // column_blocks) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    out_inside = out < outputs
    total_mean = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
    # Summed over the rows of a block only at the end: a sum across threads costs more than these additions.
    total_bias = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
    column = block * BLOCK_IN + tl.arange(0, BLOCK_IN)
    last_column = deterministic
    if block >= deterministic_blocks:
        column += deterministic - deterministic_blocks * BLOCK_IN
        last_column = inputs
    column_inside = column < last_column
    if SPLIT and block < deterministic_blocks:
        for first in range(begin, end, BLOCK_ROWS):
            row = first + tl.arange(0, BLOCK_ROWS).to(tl.int64)
            row_inside = (row < end)[:, None]
            d_mean = tile(d_mean_ptr, row, stride_d_mean, out, row_inside & out_inside[None, :])
            mean = tile(mean_ptr, row, stride_mean, column, row_inside & column_inside[None, :])
            total_mean = dot(tl.trans(d_mean), mean, total_mean, PRECISION)
            total_bias += d_mean
    else:
        total_var = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
        for first in range(begin, end, BLOCK_ROWS):
            row = first + tl.arange(0, BLOCK_ROWS).to(tl.int64)
            row_inside = (row < end)[:, None]
            d_mean = tile(d_mean_ptr, row, stride_d_mean, out, row_inside & out_inside[None, :])
            d_var = tile(d_var_ptr, row, stride_d_var, out, row_inside & out_inside[None, :])
            mean = tile(mean_ptr, row, stride_mean, column, row_inside & column_inside[None, :])
            var = tile(var_ptr, row, stride_var, column - deterministic, row_inside & column_inside[None, :])
            total_mean = dot(tl.trans(d_mean), mean, total_mean, PRECISION)
            total_var = dot(tl.trans(d_var), var, total_var, PRECISION)
            total_bias += d_mean
        inside = out_inside[:, None] & column_inside[None, :]
        weight = tile(weight_ptr, out.to(tl.int64), stride_weight, column, inside)
        total_mean += 2.0 * weight * total_var
    store_tile(partial_ptr, out.to(tl.int64), inputs, column, total_mean, out_inside[:, None] & column_inside[None, :])
    if block == 0:
        bias_ptr = partial_ptr + outputs.to(tl.int64) * inputs
        tl.store(bias_ptr + out, tl.sum(total_bias, axis=0), mask=out_inside)


@triton.jit
def _linear_weight_gradients_kernel(
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    hidden_mean_ptrs: tl.tensor,
    hidden_var_ptrs: tl.tensor,
    d_mean_ptrs: tl.tensor,
    d_var_ptrs: tl.tensor,
    weight_ptrs: tl.tensor,
    partial_ptr: tl.tensor,
    rows: tl.tensor,
    rows_a_split: tl.tensor,
    tiles: tl.tensor,
    parameters: tl.tensor,
    deterministic: tl.tensor,
    widths: tl.tensor,
    stride_mean: tl.tensor,
    stride_var: tl.tensor,
    stride_d_mean: tl.tensor,
    stride_d_var: tl.tensor,
    stride_weights: tl.tensor,
    LAYERS: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
) -> None:
    """Arguments in the plural are tuples, one entry a layer; `widths` has I of the first and O of every layer."""
    # Neighbours in the grid share rows, so that what one of them reads the others find in L2.
    split = tl.program_id(0) // tiles
    index = tl.program_id(0) % tiles
    begin = split * rows_a_split
    end = tl.minimum(begin + rows_a_split, rows)
    partial_ptr += split.to(tl.int64) * parameters
    for layer in tl.static_range(LAYERS):
        inputs = widths[layer]
        outputs = widths[layer + 1]
        if layer == 0:
            count = tl.cdiv(outputs, BLOCK_OUT) * (
                tl.cdiv(deterministic, BLOCK_IN) + tl.cdiv(inputs - deterministic, BLOCK_IN)
            )
            if index < count:
                _layer_tile(
                    d_mean_ptrs[0],
                    d_var_ptrs[0],
                    mean_ptr,
                    var_ptr,
                    weight_ptrs[0],
                    partial_ptr,
                    begin,
                    end,
                    index,
                    inputs,
                    deterministic,
                    outputs,
                    stride_d_mean if LAYERS == 1 else outputs,
                    stride_d_var if LAYERS == 1 else outputs,
                    stride_mean,
                    stride_var,
                    stride_weights[0],
                    SPLIT,
                    PRECISION,
                    BLOCK_OUT,
                    BLOCK_IN,
                    BLOCK_ROWS,
                )
        else:
            count = tl.cdiv(outputs, BLOCK_OUT) * tl.cdiv(inputs, BLOCK_IN)
            if (index >= 0) & (index < count):
                _layer_tile(
                    d_mean_ptrs[layer],
                    d_var_ptrs[layer],
                    hidden_mean_ptrs[layer - 1],
                    hidden_var_ptrs[layer - 1],
                    weight_ptrs[layer],
                    partial_ptr,
                    begin,
                    end,
                    index,
                    inputs,
                    0,
                    outputs,
                    stride_d_mean if layer == LAYERS - 1 else outputs,
                    stride_d_var if layer == LAYERS - 1 else outputs,
                    inputs,
                    inputs,
                    stride_weights[layer],
                    False,
                    PRECISION,
                    BLOCK_OUT,
                    BLOCK_IN,
                    BLOCK_ROWS,
                )
        index -= count
        partial_ptr += (inputs + 1).to(tl.int64) * outputs


@triton.jit
def _sum_partials_kernel(
    partial_ptr: tl.tensor,
    out_ptrs: tl.tensor,
    sizes: tl.tensor,
    places: tl.tensor,
    parameters: tl.tensor,
    splits: tl.tensor,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out_k = Σ_s partial[s, k's part], in the order of s; each in its own dtype.

    An output has `sizes` elements; its part has `places`, which differ for a bias that does not exist.
    """
    block = tl.program_id(0)
    for k in tl.static_range(OUTPUTS):
        blocks = tl.cdiv(sizes[k], BLOCK)
        if (block >= 0) & (block < blocks):
            place = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            at = place
            inside = place < sizes[k]
            total = tl.zeros([BLOCK], tl.float32)
            for _ in range(splits):
                total += tl.load(partial_ptr + at, mask=inside, other=0.0)
                at += parameters
            tl.store(out_ptrs[k] + place, total, mask=inside)
        block -= blocks
        partial_ptr += places[k]
