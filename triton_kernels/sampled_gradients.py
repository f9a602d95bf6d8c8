"""How the kernels of `kernels/sampled_gradients.py` are launched: gradients of layers that run on samples."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from triton_kernels.kernels.moments_math import NONE
from triton_kernels.kernels.sampled_gradients import (
    _latent_linear_bwd_kernel,
    _sampled_linear_bwd_kernel,
    _sampled_linear_bwd_weight_kernel,
    _sum_parts_kernel,
)
from triton_kernels.launch import Config, block_of, row_bucket, start, tuned
from triton_kernels.sampled_layers import LatentTile, kind_of, large_tiles, small_tiles

PROGRAMS = 264
"""Programs of a weight's gradient, at least, where there are entries enough: two for each of an H100's 132 SMs."""
SMALLEST_PART = 512
"""Entries that a partial sum of a weight's gradient is worth."""
SUM_BLOCK = 256


def linear_bwd_config(entries: int, inputs: int, outputs: int, kind: str) -> Config:
    """The configuration of `_sampled_linear_bwd_kernel`."""
    fma, large = kind == "ieee", large_tiles(kind)
    default = {
        "BLOCK_M": block_of(entries, 128 if large else 32 if fma or small_tiles(kind) else 64),
        "BLOCK_I": block_of(inputs, 128 if large else 64),
        "BLOCK_O": 64 if large else 32,
    }
    warps, stages = (4, 2) if fma else (8, 3)
    key = (inputs, outputs, kind, row_bucket(entries))
    return tuned("sampled_linear_bwd_kernel", key, {**default, "num_warps": warps, "num_stages": stages})


def linear_backward(
    d_out: Tensor,
    turned: Tensor,
    x: Tensor | None,
    d_x: Tensor,
    row_sum: Tensor | None,
    samples: int,
    activation: int,
    parameter: float,
    precision: str,
    *,
    first: bool,
    largest: Tensor | None = None,
) -> None:
    """d_x [n R, I] = (d_out [n R, O] · W) ∘ f′, with f′ from x = f(…), whose place d_x may take; rounded if there is x.

    `turned` [I, at least O] is Wᵀ, rounded, rows contiguous; d_out is rounded, too. With `row_sum` [R, I], also the sum
    over the samples, added to what is there unless `first`; it has no scale, where `largest` says that d_out has one.
    """
    (entries, outputs), inputs = d_out.shape, turned.shape[0]
    # Only a sum over samples has to have all samples of a row in one program.
    samples, rows = (samples, entries // samples) if row_sum is not None else (1, entries)
    config = linear_bwd_config(rows, inputs, outputs, kind_of(d_out, precision))
    grid = triton.cdiv(rows, config["BLOCK_M"]) * triton.cdiv(inputs, config["BLOCK_I"])
    start(
        _sampled_linear_bwd_kernel,
        grid,
        d_out,
        turned,
        d_x if x is None else x,
        d_x,
        d_x if row_sum is None else row_sum,
        d_x if largest is None else largest,
        samples,
        rows,
        inputs,
        outputs,
        turned.stride(0),
        parameter,
        activation if x is not None else NONE.value,
        row_sum is not None,
        largest is not None,
        first,
        precision,
        **config,
    )


def weight_bwd_config(entries: int, inputs: int, outputs: int, kind: str) -> Config:
    """The configuration of `_sampled_linear_bwd_weight_kernel`."""
    large = large_tiles(kind) and outputs > 64
    default = {
        "BLOCK_M": 64 if large else 32,
        "BLOCK_O": block_of(outputs, 128 if large else 64),
        "BLOCK_I": block_of(inputs, 128 if large else 64),
    }
    key = (inputs, outputs, kind, row_bucket(entries))
    warps = 8 if large else 4
    return tuned("sampled_linear_bwd_weight_kernel", key, {**default, "num_warps": warps, "num_stages": 3})


class WeightGradient:
    """The partial sums of one layer's weight gradient, over all tiles.

    Args:
        weight: The layer's [O, I], or the columns of it that see the latent inputs.
        operands: A tensor of the dtype that `add` will be given.
        entries: Entries of a tile.
        precision: Precision of the products.
        has_bias: Whether its bias's gradient is wanted, too.
    """

    def __init__(
        self, weight: Tensor, operands: Tensor, entries: int, precision: str, *, has_bias: bool = True
    ) -> None:
        self._precision, self._has_bias = precision, has_bias
        self._first = True
        outputs, inputs = weight.shape
        self._config = weight_bwd_config(entries, inputs, outputs, kind_of(operands, precision))
        self._blocks = triton.cdiv(outputs, self._config["BLOCK_O"])
        self._blocks *= max(1, triton.cdiv(inputs, self._config["BLOCK_I"]))
        parts = min(triton.cdiv(PROGRAMS, self._blocks), triton.cdiv(entries, SMALLEST_PART))
        shape = (parts, outputs, inputs + 1 if has_bias else inputs)
        self._parts = torch.empty(shape, dtype=torch.float32, device=weight.device)

    def _chunk(self, entries: int) -> int:
        block = self._config["BLOCK_M"]
        return triton.cdiv(triton.cdiv(entries, self._parts.shape[0]), block) * block

    def add(self, d_out: Tensor, x: Tensor) -> None:
        """d_out [M, O] contiguous, x [M, I], rows contiguous; both rounded."""
        entries = d_out.shape[0]
        start(
            _sampled_linear_bwd_weight_kernel,
            self._blocks * self._parts.shape[0],
            d_out,
            x,
            self._parts,
            entries,
            self._chunk(entries),
            x.shape[1],
            d_out.shape[1],
            x.stride(0),
            self._has_bias,
            self._first,
            self._precision,
            **self._config,
        )
        self._first = False

    def finish(self, d_weight: Tensor, d_bias: Tensor | None = None, largest: Tensor | None = None) -> None:
        """Writes d_weight [O, I], of any strides, and d_bias [O], if it was made; `largest` as in `linear_backward`."""
        parts, outputs, width = self._parts.shape
        start(
            _sum_parts_kernel,
            triton.cdiv(outputs * width, SUM_BLOCK),
            self._parts,
            d_weight,
            d_weight if d_bias is None else d_bias,
            d_weight if largest is None else largest,
            parts,
            outputs,
            d_weight.shape[1],
            width,
            *d_weight.stride(),
            largest is not None,
            BLOCK=SUM_BLOCK,
        )


def latent_bwd_config(rows: int, columns: int, outputs: int, kind: str) -> Config:
    """The configuration of `_latent_linear_bwd_kernel`."""
    large = large_tiles(kind)
    default = {
        "BLOCK_M": block_of(rows, 32 if small_tiles(kind) else 64),
        "BLOCK_Z": block_of(columns, 128 if large else 64),
        "BLOCK_O": 16 if kind == "ieee" else 64 if large else 32,
    }
    key = (columns, outputs, kind, row_bucket(rows))
    return tuned("latent_linear_bwd_kernel", key, {**default, "num_warps": 8, "num_stages": 2})


def latent_backward(
    d_out: Tensor,
    turned: Tensor,
    tile: LatentTile,
    d_mean: Tensor,
    d_std: Tensor,
    d_noise: Tensor | None,
    precision: str,
    *,
    first: bool,
    largest: Tensor | None = None,
) -> None:
    """Adds to d_mean and d_std [R, Z]; writes d_noise [n, R, Z], rows contiguous; none of them with d_out's scale.

    `turned` and `largest` as for `linear_backward`.
    """
    (rows, columns), outputs = tile.mean.shape, d_out.shape[1]
    config = latent_bwd_config(rows, columns, outputs, kind_of(d_out, precision))
    grid = triton.cdiv(rows, config["BLOCK_M"]) * triton.cdiv(columns, config["BLOCK_Z"])
    start(
        _latent_linear_bwd_kernel,
        grid,
        d_out,
        turned,
        tile.std,
        tile.noise_pointer,
        tile.seed,
        tile.rows_pointer,
        d_mean,
        d_std,
        d_mean if d_noise is None else d_noise,
        d_mean if largest is None else largest,
        tile.samples,
        rows,
        columns,
        outputs,
        *tile.noise_strides,
        0 if d_noise is None else d_noise.stride(0),
        turned.stride(0),
        *tile.place,
        tile.source,
        tile.rows is not None,
        d_noise is not None,
        largest is not None,
        first,
        precision,
        **config,
    )
