"""Moments through a whole network in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import rounded
from triton_kernels.kernels.moment_tiles import activate_tile, add_both_products, add_products, store_tile, tile


@triton.jit
def _rounded_copy(
    from_ptr: tl.tensor,
    to_ptr: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Rows `row` of a matrix [rows, columns], rounded for products, at the same rows of a contiguous one."""
    for begin in range(0, columns, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        value = tile(from_ptr, row, stride, column, inside)
        store_tile(to_ptr, row, columns, column, rounded(value, PRECISION), inside)


@triton.jit
def _mlp_moments_fwd_kernel(
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptrs: tl.tensor,
    bias_ptrs: tl.tensor,
    scratch_ptr: tl.tensor,
    out_mean_ptr: tl.tensor,
    out_var_ptr: tl.tensor,
    rows: tl.tensor,
    widest: tl.tensor,
    deterministic: tl.tensor,
    widths: tl.tensor,
    stride_mean: tl.tensor,
    stride_var: tl.tensor,
    stride_weights: tl.tensor,
    parameter: tl.tensor,
    LAYERS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BIASES: tl.constexpr,
    SPLIT: tl.constexpr,
    COPIED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
) -> None:
    """Arguments in the plural are tuples, one entry a layer; `widths` has I of the first and O of every layer.

    scratch [4, rows, widest]: mean and var of one hidden layer, and of the next; the inputs to begin
    with where COPIED says that they have to be rounded. Bit k of BIASES: layer k has a bias.
    """
    first_row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS
    row = first_row + tl.arange(0, BLOCK_ROWS)
    plane = rows.to(tl.int64) * widest
    if COPIED:
        stochastic = widths[0] - deterministic
        _rounded_copy(mean_ptr, scratch_ptr + 2 * plane, row, rows, widths[0], stride_mean, PRECISION, BLOCK_OUT)
        _rounded_copy(var_ptr, scratch_ptr + 3 * plane, row, rows, stochastic, stride_var, PRECISION, BLOCK_OUT)
        tl.debug_barrier()  # the first layer reads what all threads of the program wrote
    for layer in tl.static_range(LAYERS):
        inputs = widths[layer]
        outputs = widths[layer + 1]
        first = deterministic if layer == 0 else 0
        to_mean_ptr = scratch_ptr + (layer % 2) * 2 * plane
        to_var_ptr = to_mean_ptr + plane
        from_mean_ptr = scratch_ptr + ((layer + 1) % 2) * 2 * plane
        from_var_ptr = from_mean_ptr + plane
        for begin in range(0, outputs, BLOCK_OUT):
            out = begin + tl.arange(0, BLOCK_OUT)
            total_mean = tl.zeros([BLOCK_OUT, BLOCK_ROWS], tl.float32)
            total_var = tl.zeros([BLOCK_OUT, BLOCK_ROWS], tl.float32)
            if SPLIT and layer == 0:
                total_mean = add_products(
                    total_mean,
                    mean_ptr if layer == 0 and not COPIED else from_mean_ptr,
                    weight_ptrs[layer],
                    row,
                    out.to(tl.int64),
                    0,
                    first,
                    rows,
                    outputs,
                    stride_mean if layer == 0 and not COPIED else inputs,
                    stride_weights[layer],
                    False,
                    PRECISION,
                    BLOCK_IN,
                )
            total_mean, total_var = add_both_products(
                total_mean,
                total_var,
                mean_ptr if layer == 0 and not COPIED else from_mean_ptr,
                var_ptr if layer == 0 and not COPIED else from_var_ptr,
                weight_ptrs[layer],
                row,
                out.to(tl.int64),
                first,
                inputs,
                rows,
                outputs,
                stride_mean if layer == 0 and not COPIED else inputs,
                stride_var if layer == 0 and not COPIED else inputs - first,
                stride_weights[layer],
                False,
                PRECISION,
                BLOCK_IN,
            )
            mean, var = tl.trans(total_mean), tl.trans(total_var)
            if (BIASES >> layer) % 2 == 1:
                mean += tl.load(bias_ptrs[layer] + out, mask=out < outputs, other=0.0).to(tl.float32)[None, :]
            inside = (row < rows)[:, None] & (out < outputs)[None, :]
            if layer == LAYERS - 1:
                store_tile(out_mean_ptr, row, outputs, out, mean, inside)
                store_tile(out_var_ptr, row, outputs, out, var, inside)
            else:
                store_tile(to_mean_ptr, row, outputs, out, mean, inside)
                store_tile(to_var_ptr, row, outputs, out, var, inside)
                activate_tile(
                    to_mean_ptr,
                    to_var_ptr,
                    to_mean_ptr,
                    to_var_ptr,
                    first_row,
                    rows,
                    out,
                    outputs,
                    parameter,
                    ACTIVATION,
                    False,
                    PRECISION,
                    BLOCK_ROWS,
                    CHUNK_ROWS,
                )
        if layer < LAYERS - 1:
            tl.debug_barrier()  # the next layer reads what all threads of the program wrote
