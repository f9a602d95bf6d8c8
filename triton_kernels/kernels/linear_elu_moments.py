"""A layer of moments: its forward kernel and the gradient of its inputs."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import halves, rounded
from triton_kernels.kernels.moment_tiles import (
    activate_tile,
    add_both_products,
    add_products,
    of_pair,
    store_tile,
    tile,
)
from triton_kernels.kernels.moments_math import NONE, activation_gradients


@triton.jit
def _linear_elu_moments_fwd_kernel(
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    state_mean_ptr: tl.tensor,
    state_var_ptr: tl.tensor,
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
    JACOBIAN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
) -> None:
    """The first `deterministic` of the inputs have no variance; `state` see `activate_tile`."""
    # Neighbours in the grid share rows: the layer's input is read once from DRAM and then from L2.
    out_blocks = tl.cdiv(outputs, BLOCK_OUT)
    first_row = (tl.program_id(0) // out_blocks).to(tl.int64) * BLOCK_ROWS
    out = (tl.program_id(0) % out_blocks) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    row = first_row + tl.arange(0, BLOCK_ROWS)
    wide = out.to(tl.int64)
    total_mean = tl.zeros([BLOCK_OUT, BLOCK_ROWS], tl.float32)
    total_var = tl.zeros([BLOCK_OUT, BLOCK_ROWS], tl.float32)
    if SPLIT:
        total_mean = add_products(
            total_mean,
            mean_ptr,
            weight_ptr,
            row,
            wide,
            0,
            deterministic,
            rows,
            outputs,
            stride_mean,
            stride_weight,
            True,
            PRECISION,
            BLOCK_IN,
        )
    total_mean, total_var = add_both_products(
        total_mean,
        total_var,
        mean_ptr,
        var_ptr,
        weight_ptr,
        row,
        wide,
        deterministic,
        inputs,
        rows,
        outputs,
        stride_mean,
        stride_var,
        stride_weight,
        True,
        PRECISION,
        BLOCK_IN,
    )
    mean, var = tl.trans(total_mean), tl.trans(total_var)
    if HAS_BIAS:
        mean += tl.load(bias_ptr + out, mask=out < outputs, other=0.0).to(tl.float32)[None, :]
    inside = (row < rows)[:, None] & (out < outputs)[None, :]
    if ACTIVATION == NONE:
        store_tile(out_mean_ptr, row, outputs, out, mean, inside)
        store_tile(out_var_ptr, row, outputs, out, var, inside)
    else:
        store_tile(state_mean_ptr, row, outputs, out, mean, inside)
        store_tile(state_var_ptr, row, outputs, out, var, inside)
        activate_tile(
            state_mean_ptr,
            state_var_ptr,
            out_mean_ptr,
            out_var_ptr,
            first_row,
            rows,
            out,
            outputs,
            parameter,
            ACTIVATION,
            JACOBIAN,
            PRECISION,
            BLOCK_ROWS,
            CHUNK_ROWS,
        )


@triton.jit
def _linear_elu_moments_bwd_input_kernel(
    d_out_mean_ptr: tl.tensor,
    d_out_var_ptr: tl.tensor,
    turned_ptr: tl.tensor,
    state_mean_ptr: tl.tensor,
    state_var_ptr: tl.tensor,
    d_mean_ptr: tl.tensor,
    d_var_ptr: tl.tensor,
    rows: tl.tensor,
    inputs: tl.tensor,
    deterministic: tl.tensor,
    first_column: tl.tensor,
    gap: tl.tensor,
    outputs: tl.tensor,
    stride_d_mean: tl.tensor,
    stride_d_var: tl.tensor,
    stride_turned: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    JACOBIAN: tl.constexpr,
    SPLIT: tl.constexpr,
    WRITE_MEAN: tl.constexpr,
    WRITE_VAR: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    CHUNK_ROWS: tl.constexpr,
) -> None:
    """d_mean = d_out_mean W and d_var = d_out_var (W ∘ W), through the activation of the layer below where it has one.

    `turned` is Wᵀ, its rows the columns of d_mean, with a gap behind the first `deterministic`, which are written only
    to d_mean. `state` is what the forward pass left of the layer below: derivatives, or its pre-activation moments.
    Columns run from `first_column` (the deterministic ones left out when only d_var [B, J] is wanted).
    """
    deterministic_blocks = tl.cdiv(deterministic - first_column, BLOCK_IN)
    column_blocks = deterministic_blocks + tl.cdiv(inputs - deterministic, BLOCK_IN)
    first_row = (tl.program_id(0) // column_blocks).to(tl.int64) * BLOCK_ROWS
    block = tl.program_id(0) % column_blocks
    row = first_row + tl.arange(0, BLOCK_ROWS)
    row_inside = (row < rows)[:, None]
    total_mean = tl.zeros([BLOCK_IN, BLOCK_ROWS], tl.float32)
    if SPLIT and block < deterministic_blocks:
        column = first_column + block * BLOCK_IN + tl.arange(0, BLOCK_IN)
        total_mean = add_products(
            total_mean,
            d_out_mean_ptr,
            turned_ptr,
            row,
            column.to(tl.int64),
            0,
            outputs,
            rows,
            deterministic,
            stride_d_mean,
            stride_turned,
            True,
            PRECISION,
            BLOCK_OUT,
        )
        inside = row_inside & (column < deterministic)[None, :]
        store_tile(d_mean_ptr, row, inputs, column, tl.trans(total_mean), inside)
        return
    column = deterministic + (block - deterministic_blocks) * BLOCK_IN + tl.arange(0, BLOCK_IN)
    total_var = tl.zeros([BLOCK_IN, BLOCK_ROWS], tl.float32)
    total_mean, total_var = add_both_products(
        total_mean,
        total_var,
        d_out_mean_ptr,
        d_out_var_ptr,
        turned_ptr,
        row,
        column.to(tl.int64) + gap,
        0,
        outputs,
        rows,
        inputs + gap,
        stride_d_mean,
        stride_d_var,
        stride_turned,
        True,
        PRECISION,
        BLOCK_OUT,
    )
    # Half of the rows at a time: with the derivatives of all of them there would be more than registers hold.
    lower_mean, upper_mean = halves(total_mean, BLOCK_IN, BLOCK_ROWS)
    lower_var, upper_var = halves(total_var, BLOCK_IN, BLOCK_ROWS)
    for half in tl.static_range(2):
        d_mean = tl.trans(upper_mean if half == 1 else lower_mean)
        d_var = tl.trans(upper_var if half == 1 else lower_var)
        half_row = first_row + half * (BLOCK_ROWS // 2) + tl.arange(0, BLOCK_ROWS // 2)
        half_inside = (half_row < rows)[:, None] & (column < inputs)[None, :]
        if JACOBIAN:
            mean_mean, mean_var = of_pair(tile(state_mean_ptr, half_row, inputs, column, half_inside))
            var_mean, var_var = of_pair(tile(state_var_ptr, half_row, inputs, column, half_inside))
            d_pre_mean = rounded(d_mean * mean_mean + d_var * var_mean, PRECISION)
            d_pre_var = rounded(d_mean * mean_var + d_var * var_var, PRECISION)
            store_tile(d_mean_ptr, half_row, inputs, column, d_pre_mean, half_inside)
            store_tile(d_var_ptr, half_row, inputs, column, d_pre_var, half_inside)
        else:
            if WRITE_MEAN:
                store_tile(d_mean_ptr, half_row, inputs, column, d_mean, half_inside)
            if WRITE_VAR:
                width, at = inputs - deterministic, column - deterministic
                store_tile(d_var_ptr, half_row, width, at, d_var, half_inside)
    if not JACOBIAN and ACTIVATION != NONE:
        tl.debug_barrier()  # other threads of the program wrote what this one reads
        for begin in range(0, BLOCK_ROWS, CHUNK_ROWS):
            chunk_row = first_row + begin + tl.arange(0, CHUNK_ROWS)
            chunk_inside = (chunk_row < rows)[:, None] & (column < inputs)[None, :]
            mean = tile(state_mean_ptr, chunk_row, inputs, column, chunk_inside)
            var = tile(state_var_ptr, chunk_row, inputs, column, chunk_inside)
            d_above_mean = tile(d_mean_ptr, chunk_row, inputs, column, chunk_inside)
            d_above_var = tile(d_var_ptr, chunk_row, inputs, column, chunk_inside)
            _m, _v, mean_mean, mean_var, var_mean, var_var = activation_gradients(mean, var, parameter, ACTIVATION)
            d_pre_mean = d_above_mean * mean_mean + d_above_var * var_mean
            d_pre_var = d_above_mean * mean_var + d_above_var * var_var
            store_tile(d_mean_ptr, chunk_row, inputs, column, d_pre_mean, chunk_inside)
            store_tile(d_var_ptr, chunk_row, inputs, column, d_pre_var, chunk_inside)
