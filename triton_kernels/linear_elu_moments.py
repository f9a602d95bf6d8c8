"""Moments through a linear layer and its activation: the layer's forward kernel and its two backward kernels.

A layer maps mean [B, I] and var [B, J], J ≤ I, to mean Wᵀ + b and var (W ∘ W)ᵀ, then through ELU, LeakyReLU or nothing.
Both products share each weight tile, which is squared in registers. The first I − J inputs are deterministic: their
columns go through a loop of their own, with one product instead of two.
"""

from __future__ import annotations

import triton
from torch import Tensor

from triton_kernels import launch
from triton_kernels.kernels.linear_elu_moments import (
    _linear_elu_moments_bwd_input_kernel,
    _linear_elu_moments_fwd_kernel,
)
from triton_kernels.launch import block_of

Moments = tuple[Tensor, Tensor]


def rows_contiguous(matrix: Tensor) -> Tensor:
    """The matrix itself where its rows are contiguous (their stride may be anything), else a copy."""
    return matrix if matrix.stride(1) == 1 or matrix.shape[1] <= 1 else matrix.contiguous()


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
        precision: Precision of the products, see `dot`.
    """
    (mean, var), (outputs, inputs) = moments, weight.shape
    rows, deterministic = mean.shape[0], inputs - var.shape[1]
    config = forward_config(rows, inputs, outputs, precision)
    programs = triton.cdiv(rows, config["BLOCK_ROWS"]) * triton.cdiv(outputs, config["BLOCK_OUT"])
    if programs == 0:
        return
    launch.start(
        _linear_elu_moments_fwd_kernel,
        programs,
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
        activation: Activation of the layer below, `NONE` if there is none.
        parameter: Its parameter.
        precision: Precision of the products, see `dot`.
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
    launch.start(
        _linear_elu_moments_bwd_input_kernel,
        programs,
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
