"""A layer of moments: its forward kernel and the gradient of its inputs."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import dot
from triton_kernels.kernels.moment_tiles import activate_tile, layer_products, store_tile, tile
from triton_kernels.kernels.moments_math import NONE, activation_gradients


@triton.jit
def _linear_elu_moments_fwd_kernel(
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    pre_mean_ptr: tl.tensor,
    pre_var_ptr: tl.tensor,
    out_mean_ptr: tl.tensor,
    out_var_ptr: tl.tensor,
    rows: tl.tensor,
    inputs: tl.tensor,
    deterministic: tl.tensor,
    outputs: tl.tensor,
    stride_mean: tl.tensor,
    stride_var: tl.tensor,
    stride_weight: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
) -> None:
    # Neighbours in the grid share rows: the layer's input is read once from DRAM and then from L2.
    out_blocks = tl.cdiv(outputs, BLOCK_OUT)
    first_row = (tl.program_id(0) // out_blocks).to(tl.int64) * BLOCK_ROWS
    out = (tl.program_id(0) % out_blocks) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    row = first_row + tl.arange(0, BLOCK_ROWS)
    row_inside = row < rows
    mean, var = layer_products(
        mean_ptr,
        var_ptr,
        weight_ptr,
        row,
        row_inside,
        out,
        inputs,
        outputs,
        deterministic,
        stride_mean,
        stride_var,
        stride_weight,
        SPLIT,
        PRECISION,
        BLOCK_ROWS,
        BLOCK_OUT,
        BLOCK_IN,
    )
    if HAS_BIAS:
        mean += tl.load(bias_ptr + out, mask=out < outputs, other=0.0).to(tl.float32)[None, :]
    inside = row_inside[:, None] & (out < outputs)[None, :]
    if ACTIVATION == NONE:
        store_tile(out_mean_ptr, row, outputs, out, mean, inside)
        store_tile(out_var_ptr, row, outputs, out, var, inside)
    else:
        store_tile(pre_mean_ptr, row, outputs, out, mean, inside)
        store_tile(pre_var_ptr, row, outputs, out, var, inside)
        activate_tile(
            pre_mean_ptr,
            pre_var_ptr,
            out_mean_ptr,
            out_var_ptr,
            first_row,
            rows,
            out,
            outputs,
            parameter,
            ACTIVATION,
            BLOCK_ROWS,
            CHUNK_ROWS,
        )


@triton.jit
def _linear_elu_moments_bwd_input_kernel(
    d_out_mean_ptr: tl.tensor,
    d_out_var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    below_mean_ptr: tl.tensor,
    below_var_ptr: tl.tensor,
    d_mean_ptr: tl.tensor,
    d_var_ptr: tl.tensor,
    in_mean_ptr: tl.tensor,
    in_var_ptr: tl.tensor,
    rows: tl.tensor,
    inputs: tl.tensor,
    deterministic: tl.tensor,
    first_column: tl.tensor,
    outputs: tl.tensor,
    stride_d_mean: tl.tensor,
    stride_d_var: tl.tensor,
    stride_weight: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    SPLIT: tl.constexpr,
    WRITE_MEAN: tl.constexpr,
    WRITE_VAR: tl.constexpr,
    WRITE_INPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
) -> None:
    """d_mean = d_out_mean W and d_var = d_out_var (W ∘ W), through the activation of the layer below where it has one.

    Then `below` are that layer's saved pre-activation moments, d_mean and d_var [B, I] the gradients of them, and
    with WRITE_INPUTS `in` get the activation moments again, for the weights' gradient. Columns run from `first_column`
    (the deterministic ones left out when only d_var [B, J] is wanted).
    """
    deterministic_blocks = tl.cdiv(deterministic - first_column, BLOCK_IN)
    column_blocks = deterministic_blocks + tl.cdiv(inputs - deterministic, BLOCK_IN)
    first_row = (tl.program_id(0) // column_blocks).to(tl.int64) * BLOCK_ROWS
    block = tl.program_id(0) % column_blocks
    row = first_row + tl.arange(0, BLOCK_ROWS)
    row_inside = (row < rows)[:, None]
    d_mean = tl.zeros([BLOCK_ROWS, BLOCK_IN], tl.float32)
    d_var = tl.zeros([BLOCK_ROWS, BLOCK_IN], tl.float32)
    if SPLIT and block < deterministic_blocks:
        column = first_column + block * BLOCK_IN + tl.arange(0, BLOCK_IN)
        column_inside = (column < deterministic)[None, :]
        for begin in range(0, outputs, BLOCK_OUT):
            out = begin + tl.arange(0, BLOCK_OUT)
            d_out_mean = tile(d_out_mean_ptr, row, stride_d_mean, out, row_inside & (out < outputs)[None, :])
            weight_inside = (out < outputs)[:, None] & column_inside
            weight = tile(weight_ptr, out.to(tl.int64), stride_weight, column, weight_inside)
            d_mean = dot(d_out_mean, weight, d_mean, PRECISION)
        store_tile(d_mean_ptr, row, inputs, column, d_mean, row_inside & column_inside)
        return
    column = deterministic + (block - deterministic_blocks) * BLOCK_IN + tl.arange(0, BLOCK_IN)
    column_inside = (column < inputs)[None, :]
    for begin in range(0, outputs, BLOCK_OUT):
        out = begin + tl.arange(0, BLOCK_OUT)
        out_inside = row_inside & (out < outputs)[None, :]
        weight_inside = (out < outputs)[:, None] & column_inside
        d_out_mean = tile(d_out_mean_ptr, row, stride_d_mean, out, out_inside)
        d_out_var = tile(d_out_var_ptr, row, stride_d_var, out, out_inside)
        weight = tile(weight_ptr, out.to(tl.int64), stride_weight, column, weight_inside)
        d_mean = dot(d_out_mean, weight, d_mean, PRECISION)
        d_var = dot(d_out_var, weight * weight, d_var, PRECISION)
    inside = row_inside & column_inside
    if WRITE_MEAN:
        store_tile(d_mean_ptr, row, inputs, column, d_mean, inside)
    if WRITE_VAR:
        store_tile(d_var_ptr, row, inputs - deterministic, column - deterministic, d_var, inside)
    if ACTIVATION != NONE:
        tl.debug_barrier()  # other threads of the program wrote what this one reads
        for begin in range(0, BLOCK_ROWS, CHUNK_ROWS):
            chunk_row = first_row + begin + tl.arange(0, CHUNK_ROWS)
            chunk_inside = (chunk_row < rows)[:, None] & column_inside
            mean = tile(below_mean_ptr, chunk_row, inputs, column, chunk_inside)
            var = tile(below_var_ptr, chunk_row, inputs, column, chunk_inside)
            d_above_mean = tile(d_mean_ptr, chunk_row, inputs, column, chunk_inside)
            d_above_var = tile(d_var_ptr, chunk_row, inputs, column, chunk_inside)
            in_mean, in_var, mean_mean, mean_var, var_mean, var_var = activation_gradients(
                mean, var, parameter, ACTIVATION
            )
            d_pre_mean = d_above_mean * mean_mean + d_above_var * var_mean
            d_pre_var = d_above_mean * mean_var + d_above_var * var_var
            store_tile(d_mean_ptr, chunk_row, inputs, column, d_pre_mean, chunk_inside)
            store_tile(d_var_ptr, chunk_row, inputs, column, d_pre_var, chunk_inside)
            if WRITE_INPUTS:
                store_tile(in_mean_ptr, chunk_row, inputs, column, in_mean, chunk_inside)
                store_tile(in_var_ptr, chunk_row, inputs, column, in_var, chunk_inside)
