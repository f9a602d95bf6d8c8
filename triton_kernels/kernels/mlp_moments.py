"""Moments through a whole network in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.moment_tiles import activate_tile, layer_products, store_tile


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
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
) -> None:
    """Arguments in the plural are tuples, one entry a layer; `widths` has I of the first and O of every layer.

    scratch [4, rows, widest]: mean and var of one hidden layer, and of the next. Bit k of BIASES: layer k has a bias.
    """
    first_row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS
    row = first_row + tl.arange(0, BLOCK_ROWS)
    row_inside = row < rows
    plane = rows.to(tl.int64) * widest
    for layer in tl.static_range(LAYERS):
        inputs = widths[layer]
        outputs = widths[layer + 1]
        to_mean_ptr = scratch_ptr + (layer % 2) * 2 * plane
        to_var_ptr = to_mean_ptr + plane
        from_mean_ptr = scratch_ptr + ((layer + 1) % 2) * 2 * plane
        from_var_ptr = from_mean_ptr + plane
        for begin in range(0, outputs, BLOCK_OUT):
            out = begin + tl.arange(0, BLOCK_OUT)
            mean, var = layer_products(
                mean_ptr if layer == 0 else from_mean_ptr,
                var_ptr if layer == 0 else from_var_ptr,
                weight_ptrs[layer],
                row,
                row_inside,
                out,
                inputs,
                outputs,
                deterministic if layer == 0 else 0,
                stride_mean if layer == 0 else inputs,
                stride_var if layer == 0 else inputs,
                stride_weights[layer],
                SPLIT and layer == 0,
                PRECISION,
                BLOCK_ROWS,
                BLOCK_OUT,
                BLOCK_IN,
            )
            if (BIASES >> layer) % 2 == 1:
                mean += tl.load(bias_ptrs[layer] + out, mask=out < outputs, other=0.0).to(tl.float32)[None, :]
            inside = row_inside[:, None] & (out < outputs)[None, :]
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
                    BLOCK_ROWS,
                    CHUNK_ROWS,
                )
        if layer < LAYERS - 1:
            tl.debug_barrier()  # the next layer reads what all threads of the program wrote
