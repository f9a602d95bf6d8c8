"""Gradients of the weights of a moment MLP: products over parts of the batch, and the sum of the parts."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import dot
from triton_kernels.kernels.moment_tiles import store_tile, tile


@triton.jit
def _product_tile(
    d_ptr: tl.tensor,
    x_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    index: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    stride_d: tl.tensor,
    stride_x: tl.tensor,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
) -> None:
    """Tile number `index` of dᵀ x [O, I] over rows begin … end at partial_ptr; with BIAS, then Σ d [O]."""
    column_blocks = tl.cdiv(inputs, BLOCK_IN)
    column = (index % column_blocks) * BLOCK_IN + tl.arange(0, BLOCK_IN)
    out = (index // column_blocks) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    total = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
    # Summed over the rows of a block only at the end: a sum across threads costs more than these additions.
    total_bias = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
    for first in range(begin, end, BLOCK_ROWS):
        row = first + tl.arange(0, BLOCK_ROWS).to(tl.int64)
        row_inside = (row < end)[:, None]
        d = tile(d_ptr, row, stride_d, out, row_inside & (out < outputs)[None, :])
        x = tile(x_ptr, row, stride_x, column, row_inside & (column < inputs)[None, :])
        total = dot(tl.trans(d), x, total, PRECISION)
        if BIAS:
            total_bias += d
    inside = (out < outputs)[:, None] & (column < inputs)[None, :]
    store_tile(partial_ptr, out.to(tl.int64), inputs, column, total, inside)
    if BIAS and index % column_blocks == 0:
        bias_ptr = partial_ptr + outputs.to(tl.int64) * inputs
        tl.store(bias_ptr + out, tl.sum(total_bias, axis=0), mask=out < outputs)


@triton.jit
def _linear_weight_gradients_kernel(
    mean_ptrs: tl.tensor,
    var_ptrs: tl.tensor,
    d_mean_ptrs: tl.tensor,
    d_var_ptrs: tl.tensor,
    partial_ptr: tl.tensor,
    rows: tl.tensor,
    rows_a_split: tl.tensor,
    tiles: tl.tensor,
    places: tl.tensor,
    mean_widths: tl.tensor,
    var_widths: tl.tensor,
    outputs: tl.tensor,
    d_strides: tl.tensor,
    LAYERS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
) -> None:
    """The sums of every layer's mean product, bias and var product, one after the other, for a part of the batch.

    Arguments in the plural but `rows`, `tiles` and `places` are tuples, one entry a layer. `places` are the sums of a
    part. The means' products and the variances' are tiles of their own: one accumulator of twice the width reads less.
    """
    # Neighbours in the grid share rows, so that what one of them reads the others find in L2.
    split = tl.program_id(0) // tiles
    index = tl.program_id(0) % tiles
    begin = split * rows_a_split
    end = tl.minimum(begin + rows_a_split, rows)
    partial_ptr += split.to(tl.int64) * places
    for layer in tl.static_range(LAYERS):
        out_blocks = tl.cdiv(outputs[layer], BLOCK_OUT)
        count = out_blocks * tl.cdiv(mean_widths[layer], BLOCK_IN)
        if (index >= 0) & (index < count):
            _product_tile(
                d_mean_ptrs[layer],
                mean_ptrs[layer],
                partial_ptr,
                begin,
                end,
                index,
                mean_widths[layer],
                outputs[layer],
                d_strides[layer],
                mean_widths[layer],
                True,
                PRECISION,
                BLOCK_OUT,
                BLOCK_IN,
                BLOCK_ROWS,
            )
        index -= count
        partial_ptr += outputs[layer].to(tl.int64) * (mean_widths[layer] + 1)
        count = out_blocks * tl.cdiv(var_widths[layer], BLOCK_IN)
        if (index >= 0) & (index < count):
            _product_tile(
                d_var_ptrs[layer],
                var_ptrs[layer],
                partial_ptr,
                begin,
                end,
                index,
                var_widths[layer],
                outputs[layer],
                d_strides[layer],
                var_widths[layer],
                False,
                PRECISION,
                BLOCK_OUT,
                BLOCK_IN,
                BLOCK_ROWS,
            )
        index -= count
        partial_ptr += outputs[layer].to(tl.int64) * var_widths[layer]


@triton.jit
def _sum_partials_kernel(
    partial_ptr: tl.tensor,
    weight_ptrs: tl.tensor,
    d_weight_ptrs: tl.tensor,
    d_bias_ptrs: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    deterministic: tl.tensor,
    gaps: tl.tensor,
    mean_widths: tl.tensor,
    var_widths: tl.tensor,
    stride_weights: tl.tensor,
    places: tl.tensor,
    splits: tl.tensor,
    LAYERS: tl.constexpr,
    BIASES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """d_weight = Σ mean products + 2 W ∘ Σ var products and d_bias, over the parts in their order; each in its dtype.

    In the products the inputs behind the first `deterministic` lie behind a gap. Bit k of BIASES: layer k has a bias.
    """
    block = tl.program_id(0)
    for layer in tl.static_range(LAYERS):
        width = inputs[layer]
        size = outputs[layer].to(tl.int64) * width
        blocks = tl.cdiv(size, BLOCK).to(tl.int32)
        if (block >= 0) & (block < blocks):
            place = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            out = place // width
            column = (place % width).to(tl.int32)
            inside = place < size
            stochastic = column >= deterministic[layer]
            at_mean = partial_ptr + out * mean_widths[layer] + column + tl.where(stochastic, gaps[layer], 0)
            at_var = partial_ptr + outputs[layer].to(tl.int64) * (mean_widths[layer] + 1)
            at_var += out * var_widths[layer] + column - deterministic[layer]
            mean = tl.zeros([BLOCK], tl.float32)
            var = tl.zeros([BLOCK], tl.float32)
            for _ in range(splits):
                mean += tl.load(at_mean, mask=inside, other=0.0)
                var += tl.load(at_var, mask=inside & stochastic, other=0.0)
                at_mean += places
                at_var += places
            weight = tl.load(weight_ptrs[layer] + out * stride_weights[layer] + column, mask=inside, other=0.0)
            tl.store(d_weight_ptrs[layer] + place, mean + 2.0 * weight.to(tl.float32) * var, mask=inside)
        block -= blocks
        if (BIASES >> layer) % 2 == 1:
            blocks = tl.cdiv(outputs[layer], BLOCK)
            if (block >= 0) & (block < blocks):
                out = block * BLOCK + tl.arange(0, BLOCK)
                at = partial_ptr + outputs[layer].to(tl.int64) * mean_widths[layer] + out
                bias = tl.zeros([BLOCK], tl.float32)
                for _ in range(splits):
                    bias += tl.load(at, mask=out < outputs[layer], other=0.0)
                    at += places
                tl.store(d_bias_ptrs[layer] + out, bias, mask=out < outputs[layer])
            block -= blocks
        partial_ptr += outputs[layer].to(tl.int64) * (mean_widths[layer] + 1 + var_widths[layer])
