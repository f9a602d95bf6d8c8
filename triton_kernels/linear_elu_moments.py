"""Moments through a linear layer and its activation: how the layer's forward and its input gradient are launched.

A layer maps mean [B, I] and var [B, J], J ≤ I, to mean Wᵀ + b and var (W ∘ W)ᵀ, then through ELU, LeakyReLU or nothing.
Both products share each weight tile, which is squared in registers. The first I − J inputs are deterministic: their
columns go through a loop of their own, with one product instead of two.
"""

from __future__ import annotations

from typing import NamedTuple

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


def fast(precision: str) -> bool:
    """Whether products round their operands so far that derivatives of 11 bits are as good."""
    return precision in ("tf32", "bf16")


def default_config(rows: int, columns: int, precision: str, names: tuple[str, str]) -> launch.Config:
    """Tiles of products [rows, columns]; plain multiply-adds and tf32x3 want smaller tiles.

    `names` are those of the block of columns and of the block that is summed over.
    """
    # Hopper's tensor cores and shared memory take large tiles; elsewhere registers or shared memory would run out.
    most = 128 if fast(precision) and launch.arch() == "sm_90" else 64
    width, height = block_of(columns, most), block_of(rows, most)
    return {
        "BLOCK_ROWS": height,
        names[0]: width,
        names[1]: 32 if fast(precision) else 16,
        "CHUNK_ROWS": chunk_rows(height, width),
        "num_warps": 8,
        "num_stages": 3 if launch.arch() == "sm_90" else 2,
    }


def forward_config(rows: int, inputs: int, outputs: int, precision: str) -> launch.Config:
    """What one layer's forward is launched with."""
    default = default_config(rows, outputs, precision, ("BLOCK_OUT", "BLOCK_IN"))
    key = (inputs, outputs, precision, launch.row_bucket(rows))
    return launch.tuned("linear_elu_moments_fwd_kernel", key, default)


def input_gradient_config(rows: int, inputs: int, outputs: int, precision: str, first: bool) -> launch.Config:
    """What one layer's input gradient is launched with; the first layer has no activation below it."""
    default = default_config(rows, inputs, precision, ("BLOCK_IN", "BLOCK_OUT"))
    key = (inputs, outputs, precision, "first" if first else "hidden", launch.row_bucket(rows))
    return launch.tuned("linear_elu_moments_bwd_input_kernel", key, default)


class Behind(NamedTuple):
    """What is behind a layer, and how its products round."""

    activation: int
    """`ELU`, `LEAKY_RELU` or `NONE` of `moments_math`."""
    parameter: float
    """ELU's alpha or LeakyReLU's slope."""
    precision: str
    """Precision of the products, see `dot`."""
    jacobian: bool
    """Whether the layer's state is the derivatives of the activation, two numbers of 16 bits in each."""


def layer_forward(
    moments: Moments,
    weight: Tensor,
    bias: Tensor,
    state: Moments,
    out: Moments,
    behind: Behind,
) -> None:
    """Fills `out` [B, O] and, if the layer has an activation, `state` [B, O].

    Args:
        moments: mean [B, I] and var [B, J], contiguous, as the products take them (see `pack`).
        weight: [O, at least I], rounded and contiguous.
        bias: [O], or of no elements where there is none.
        state: Pre-activation moments, float32, contiguous; may be `out` itself. With `behind.jacobian`, the derivatives
            of the activation instead.
        out: Moments of the layer's output [B, O], contiguous.
        behind: The activation behind the layer.
    """
    (mean, var), outputs = moments, weight.shape[0]
    rows, inputs = mean.shape
    deterministic = inputs - var.shape[1]
    config = forward_config(rows, inputs, outputs, behind.precision)
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
        *state,
        *out,
        rows,
        inputs,
        deterministic,
        outputs,
        mean.stride(0),
        var.stride(0),
        weight.stride(0),
        behind.parameter,
        ACTIVATION=behind.activation,
        JACOBIAN=behind.jacobian,
        HAS_BIAS=bias.numel() > 0,
        SPLIT=deterministic > 0,
        PRECISION=behind.precision,
        **config,
    )


def layer_input_gradient(
    d_out: Moments,
    turned: Tensor,
    outputs: int,
    inputs: int,
    state: Moments | None,
    d_in: tuple[Tensor | None, Tensor | None],
    deterministic: int,
    gap: int,
    behind: Behind,
) -> None:
    """Fills `d_in`, the gradients of a layer's inputs, taken through the activation of the layer below.

    Args:
        d_out: Gradients of the layer's pre-activation moments, [B, at least O] twice, contiguous and rounded.
        turned: Wᵀ [at least I, at least O], rounded and contiguous, with `gap` rows behind the deterministic ones.
        outputs: O.
        inputs: I.
        state: What `layer_forward` of the layer below left; None for the network's first layer.
        d_in: d_mean [B, I] and d_var [B, J], contiguous; either may be None where there is no layer below.
        deterministic: I − J.
        gap: See `turned`.
        behind: The activation behind the layer below.
    """
    rows = d_out[0].shape[0]
    first_column = 0 if d_in[0] is not None else deterministic
    config = input_gradient_config(rows, inputs, outputs, behind.precision, state is None)
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
        turned,
        *(state or (unused, unused)),
        *(unused if gradient is None else gradient for gradient in d_in),
        rows,
        inputs,
        deterministic,
        first_column,
        gap,
        outputs,
        d_out[0].stride(0),
        d_out[1].stride(0),
        turned.stride(0),
        behind.parameter,
        ACTIVATION=behind.activation,
        JACOBIAN=behind.jacobian,
        SPLIT=deterministic > first_column,
        WRITE_MEAN=d_in[0] is not None,
        WRITE_VAR=d_in[1] is not None,
        PRECISION=behind.precision,
        **config,
    )
