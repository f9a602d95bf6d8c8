"""How the kernels of `kernels/sampled_gradients.py` are launched: gradients of layers that run on samples."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from triton_kernels.kernels.moments_math import NONE
from triton_kernels.kernels.sampled_gradients import (
    _latent_linear_bwd_kernel,
    _latent_linear_bwd_weight_kernel,
    _sampled_linear_bwd_kernel,
    _sampled_linear_bwd_weight_kernel,
    _sum_parts_kernel,
)
from triton_kernels.launch import Config, block_of, row_bucket, start, tuned
from triton_kernels.sampled_layers import LatentTile, near

PROGRAMS = 264
"""Programs of a weight's gradient, at least, where there are entries enough: two for each of an H100's 132 SMs."""
SMALLEST_PART = 512
"""Entries that a partial sum of a weight's gradient is worth."""
SUM_BLOCK = 256


def linear_bwd_config(entries: int, inputs: int, outputs: int, precision: str) -> Config:
    """The configuration of `_sampled_linear_bwd_kernel`."""
    fma = precision == "ieee"
    default = {"BLOCK_M": block_of(entries, 32 if fma else 64), "BLOCK_I": block_of(inputs, 64), "BLOCK_O": 32}
    warps, stages = (4, 2) if fma else (8, 3)
    key = (inputs, outputs, precision, row_bucket(entries))
    return tuned("sampled_linear_bwd_kernel", key, {**default, "num_warps": warps, "num_stages": stages})


def linear_backward(
    d_out: Tensor,
    weight: Tensor,
    x: Tensor | None,
    d_x: Tensor,
    row_sum: Tensor | None,
    samples: int,
    activation: int,
    parameter: float,
    precision: str,
    *,
    first: bool,
) -> None:
    """d_x [n R, I] = (d_out [n R, O] · weight) ∘ f′, with f′ from x = f(…), whose place d_x may take.

    With `row_sum` [R, I], also its sum over the samples, added to what is there unless `first`.
    """
    (entries, outputs), inputs = d_out.shape, weight.shape[1]
    # Only a sum over samples has to have all samples of a row in one program.
    samples, rows = (samples, entries // samples) if row_sum is not None else (1, entries)
    config = linear_bwd_config(rows, inputs, outputs, precision)
    grid = triton.cdiv(rows, config["BLOCK_M"]) * triton.cdiv(inputs, config["BLOCK_I"])
    start(
        _sampled_linear_bwd_kernel,
        grid,
        d_out,
        weight,
        d_x if x is None else x,
        d_x,
        d_x if row_sum is None else row_sum,
        samples,
        rows,
        inputs,
        outputs,
        *weight.stride(),
        parameter,
        activation if x is not None else NONE.value,
        row_sum is not None,
        first,
        precision,
        **config,
    )


def weight_bwd_config(entries: int, inputs: int, outputs: int, precision: str) -> Config:
    """The configuration of `_sampled_linear_bwd_weight_kernel`."""
    default = {"BLOCK_M": 32, "BLOCK_O": block_of(outputs, 64), "BLOCK_I": block_of(inputs, 64)}
    key = (inputs, outputs, precision, row_bucket(entries))
    return tuned("sampled_linear_bwd_weight_kernel", key, {**default, "num_warps": 4, "num_stages": 3})


def latent_weight_bwd_config(entries: int, columns: int, outputs: int, precision: str) -> Config:
    """The configuration of `_latent_linear_bwd_weight_kernel`."""
    fma = precision == "ieee"
    default = {
        "BLOCK_M": 16 if fma else 32,
        "BLOCK_O": block_of(outputs, 64),
        "BLOCK_Z": block_of(columns, 64 if fma else 128),
    }
    key = (columns, outputs, precision, row_bucket(entries))
    return tuned("latent_linear_bwd_weight_kernel", key, {**default, "num_warps": 8, "num_stages": 2})


class WeightGradient:
    """The partial sums of one layer's weight gradient, over all tiles.

    Args:
        weight: The layer's [O, I], or the columns of it that see the latent inputs.
        entries: Entries of a tile.
        precision: Precision of the products.
        latent: Whether the layer's input is drawn; then it has no bias.
    """

    def __init__(self, weight: Tensor, entries: int, precision: str, *, latent: bool = False) -> None:
        self._weight, self._precision, self._latent = weight, precision, latent
        self._first = True
        outputs, inputs = weight.shape
        self._config = (latent_weight_bwd_config if latent else weight_bwd_config)(entries, inputs, outputs, precision)
        block = self._config["BLOCK_Z" if latent else "BLOCK_I"]
        self._blocks = triton.cdiv(outputs, self._config["BLOCK_O"]) * max(1, triton.cdiv(inputs, block))
        parts = min(triton.cdiv(PROGRAMS, self._blocks), triton.cdiv(entries, SMALLEST_PART))
        shape = (parts, outputs, inputs if latent else inputs + 1)
        self._parts = torch.empty(shape, dtype=torch.float32, device=weight.device)

    def _chunk(self, entries: int) -> int:
        block = self._config["BLOCK_M"]
        return triton.cdiv(triton.cdiv(entries, self._parts.shape[0]), block) * block

    def add(self, d_out: Tensor, x: Tensor) -> None:
        """d_out [M, O] contiguous, x [M, I] of any strides."""
        x = near(x)
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
            *x.stride(),
            self._first,
            self._precision,
            **self._config,
        )
        self._first = False

    def add_latent(self, d_out: Tensor, tile: LatentTile) -> None:
        """d_out [n R, O] contiguous."""
        rows, columns = tile.mean.shape
        start(
            _latent_linear_bwd_weight_kernel,
            self._blocks * self._parts.shape[0],
            d_out,
            tile.mean,
            tile.std,
            tile.noise_pointer,
            tile.seed,
            tile.rows_pointer,
            self._parts,
            tile.entries,
            self._chunk(tile.entries),
            rows,
            columns,
            d_out.shape[1],
            *tile.noise_strides,
            *tile.place,
            tile.source,
            tile.rows is not None,
            self._first,
            self._precision,
            **self._config,
        )
        self._first = False

    def finish(self, d_weight: Tensor, d_bias: Tensor | None = None) -> None:
        """Writes d_weight [O, I], of any strides, and d_bias [O]; a latent weight has none."""
        parts, outputs, width = self._parts.shape
        start(
            _sum_parts_kernel,
            triton.cdiv(outputs * width, SUM_BLOCK),
            self._parts,
            d_weight,
            d_weight if d_bias is None else d_bias,
            parts,
            outputs,
            d_weight.shape[1],
            width,
            *d_weight.stride(),
            BLOCK=SUM_BLOCK,
        )


def latent_bwd_config(rows: int, columns: int, outputs: int, precision: str) -> Config:
    """The configuration of `_latent_linear_bwd_kernel`."""
    default = {"BLOCK_M": block_of(rows, 64), "BLOCK_Z": block_of(columns, 64), "BLOCK_O": 32}
    key = (columns, outputs, precision, row_bucket(rows))
    return tuned("latent_linear_bwd_kernel", key, {**default, "num_warps": 8, "num_stages": 2})


def latent_backward(
    d_out: Tensor,
    weight: Tensor,
    tile: LatentTile,
    d_mean: Tensor,
    d_std: Tensor,
    d_noise: Tensor | None,
    precision: str,
    *,
    first: bool,
) -> None:
    """Adds to d_mean and d_std [R, Z]; writes d_noise [n, R, Z], rows contiguous."""
    (rows, columns), outputs = tile.mean.shape, weight.shape[0]
    config = latent_bwd_config(rows, columns, outputs, precision)
    grid = triton.cdiv(rows, config["BLOCK_M"]) * triton.cdiv(columns, config["BLOCK_Z"])
    start(
        _latent_linear_bwd_kernel,
        grid,
        d_out,
        weight,
        tile.std,
        tile.noise_pointer,
        tile.seed,
        tile.rows_pointer,
        d_mean,
        d_std,
        d_mean if d_noise is None else d_noise,
        tile.samples,
        rows,
        columns,
        outputs,
        *tile.noise_strides,
        0 if d_noise is None else d_noise.stride(0),
        *weight.stride(),
        *tile.place,
        tile.source,
        tile.rows is not None,
        d_noise is not None,
        first,
        precision,
        **config,
    )
