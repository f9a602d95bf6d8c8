"""Moments through a linear layer and its activation: the layer's forward kernel and its two backward kernels.

A layer maps mean [B, I] and var [B, J], J ≤ I, to mean Wᵀ + b and var (W ∘ W)ᵀ, then through ELU, LeakyReLU or nothing.
Both products share each weight tile, which is squared in registers. The first I − J inputs are deterministic: their
columns go through a loop of their own, with one product instead of two.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from triton_kernels import launch
from triton_kernels.dot import dot
from triton_kernels.moment_tiles import activate_tile, layer_products, store_tile, tile
from triton_kernels.moments_math import NONE, activation_gradients

Moments = tuple[Tensor, Tensor]


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


def rows_contiguous(matrix: Tensor) -> Tensor:
    """The matrix itself where its rows are contiguous (their stride may be anything), else a copy."""
    return matrix if matrix.stride(1) == 1 or matrix.shape[1] <= 1 else matrix.contiguous()


def block_of(size: int, most: int) -> int:
    """The power of two that covers `size`, within what a dot needs and `most`."""
    return min(max(triton.next_power_of_2(size), 16), most)


def chunk_rows(height: int, width: int) -> int:
    """Rows that an activation is applied to at a time: 4 elements for each of 256 threads, some 100 registers.

    In the interpreter, where registers do not count and every step does, the whole tile.
    """
    return height if launch.interpreted() else min(height, 1024 // width)


def default_config(
    rows: int, columns: int, precision: str, names: tuple[str, str], most_columns: int = 128
) -> launch.Config:
    """Tiles of products [rows, columns]: wgmma takes 64 rows; plain multiply-adds and tf32x3 want smaller tiles.

    `names` are those of the block of columns and of the block that is summed over.
    """
    width = block_of(columns, most_columns if precision in ("tf32", "bf16") else 64)
    height = block_of(rows, 64)
    return {
        "BLOCK_ROWS": height,
        names[0]: width,
        names[1]: 32 if precision in ("tf32", "bf16") else 16,
        "CHUNK_ROWS": chunk_rows(height, width),
        "num_warps": 8,
        "num_stages": 3,
    }


def forward_config(rows: int, inputs: int, outputs: int, precision: str) -> launch.Config:
    """What one layer's forward is launched with."""
    default = default_config(rows, outputs, precision, ("BLOCK_OUT", "BLOCK_IN"))
    key = (inputs, outputs, precision, launch.row_bucket(rows))
    return launch.tuned("linear_elu_moments_fwd_kernel", key, default)


def input_gradient_config(rows: int, inputs: int, outputs: int, precision: str, first: bool) -> launch.Config:
    """What one layer's input gradient is launched with; the first layer has no activation below it."""
    default = default_config(rows, inputs, precision, ("BLOCK_IN", "BLOCK_OUT"), 64 if first else 128)
    key = (inputs, outputs, precision, "first" if first else "hidden", launch.row_bucket(rows))
    return launch.tuned("linear_elu_moments_bwd_input_kernel", key, default)


def layer_forward(
    moments: Moments,
    weight: Tensor,
    bias: Tensor,
    pre: Moments,
    out: Moments,
    activation: int,
    parameter: float,
    precision: str,
) -> None:
    """Fills `out` [B, O] and, if the layer has an activation, `pre` [B, O], which may be `out` itself.

    Args:
        moments: mean [B, I] and var [B, J], rows contiguous.
        weight: [O, I], rows contiguous.
        bias: [O], or of no elements where there is none.
        pre: Pre-activation moments [B, O], contiguous.
        out: Moments of the layer's output [B, O], contiguous.
        activation: `ELU`, `LEAKY_RELU` or `NONE` of `moments_math`.
        parameter: ELU's alpha or LeakyReLU's slope.
        precision: Of the products, see `dot`.
    """
    (mean, var), (outputs, inputs) = moments, weight.shape
    rows, deterministic = mean.shape[0], inputs - var.shape[1]
    config = forward_config(rows, inputs, outputs, precision)
    programs = triton.cdiv(rows, config["BLOCK_ROWS"]) * triton.cdiv(outputs, config["BLOCK_OUT"])
    if programs == 0:
        return
    _linear_elu_moments_fwd_kernel[(programs,)](
        mean,
        var,
        weight,
        bias,
        *pre,
        *out,
        rows,
        inputs,
        deterministic,
        outputs,
        mean.stride(0),
        var.stride(0),
        weight.stride(0),
        parameter,
        ACTIVATION=activation,
        HAS_BIAS=bias.numel() > 0,
        SPLIT=deterministic > 0,
        PRECISION=precision,
        **config,
    )


def layer_input_gradient(
    d_out: Moments,
    weight: Tensor,
    below: Moments | None,
    d_in: tuple[Tensor | None, Tensor | None],
    again: Moments | None,
    deterministic: int,
    activation: int,
    parameter: float,
    precision: str,
) -> None:
    """Fills `d_in`, the gradients of a layer's inputs, taken through the activation of the layer below.

    Args:
        d_out: Gradients of the layer's pre-activation moments, [B, O] twice, rows contiguous.
        weight: [O, I], rows contiguous.
        below: The saved pre-activation moments [B, I] of the layer below; None for the network's first layer.
        d_in: d_mean [B, I] and d_var [B, J], contiguous; either may be None where there is no layer below.
        again: Where the inputs [B, I] are written again, for the weights' gradients; None if not wanted.
        deterministic: I − J.
        activation: Of the layer below, `NONE` if there is none.
        parameter: Its parameter.
        precision: Of the products, see `dot`.
    """
    (outputs, inputs), rows = weight.shape, d_out[0].shape[0]
    first_column = 0 if d_in[0] is not None else deterministic
    config = input_gradient_config(rows, inputs, outputs, precision, below is None)
    columns = triton.cdiv(deterministic - first_column, config["BLOCK_IN"])
    columns += triton.cdiv(inputs - deterministic, config["BLOCK_IN"])
    programs = triton.cdiv(rows, config["BLOCK_ROWS"]) * columns
    if programs == 0:
        return
    unused = d_out[0]  # for arguments that the kernel will not touch
    _linear_elu_moments_bwd_input_kernel[(programs,)](
        *d_out,
        weight,
        *(below or (unused, unused)),
        *(unused if gradient is None else gradient for gradient in d_in),
        *(again or (unused, unused)),
        rows,
        inputs,
        deterministic,
        first_column,
        outputs,
        d_out[0].stride(0),
        d_out[1].stride(0),
        weight.stride(0),
        parameter,
        ACTIVATION=activation,
        SPLIT=deterministic > first_column,
        WRITE_MEAN=d_in[0] is not None,
        WRITE_VAR=d_in[1] is not None,
        WRITE_INPUTS=again is not None,
        PRECISION=precision,
        **config,
    )
