"""How the layers of a network that runs on samples of its latent inputs are launched, forward.

A tile holds n samples of R rows as n · R entries, sample after sample. Gradients draw the same noise again. Sums over
entries that end in a weight's gradient go to partial sums, a fixed range of entries each, which a tile adds to and
which `_sum_parts_kernel` adds up at the end: no order depends on the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
from torch import Tensor

from triton_kernels.kernels.latent_noise import ANTITHETIC, GIVEN, IID
from triton_kernels.kernels.sampled_layers import _latent_linear_fwd_kernel, _sampled_linear_fwd_kernel
from triton_kernels.launch import Config, block_of, row_bucket, start, tuned

MOST_ROWS = 1024
"""Most rows of a block in any configuration."""


@dataclass(frozen=True)
class LatentTile:
    """n samples of the latent inputs of R rows: where their distribution is and where their noise comes from."""

    mean: Tensor
    """[R, Z], contiguous."""
    std: Tensor
    """[R, Z], contiguous."""
    noise: Tensor | None
    """[n, R, Z] where it is not drawn."""
    seed: Tensor
    """One int64 on the device."""
    rows: Tensor | None
    """[R] int64, contiguous: the rows' numbers, where they are not their places."""
    samples: int
    first_sample: int
    first_row: int
    half: int
    """ceil(N / 2), where mirrored samples begin."""
    antithetic: bool

    @property
    def entries(self) -> int:
        """n · R."""
        return self.samples * self.mean.shape[0]

    @property
    def source(self) -> int:
        """SOURCE of `noise_block`."""
        if self.noise is not None:
            return GIVEN.value
        return ANTITHETIC.value if self.antithetic else IID.value

    @property
    def noise_pointer(self) -> Tensor:
        """A tensor to hand to the kernel, whether it reads it or not; its strides alike."""
        return self.mean if self.noise is None else self.noise

    @property
    def noise_strides(self) -> tuple[int, ...]:
        """Strides of sample, row and column."""
        return (0, 0, 0) if self.noise is None else self.noise.stride()

    @property
    def rows_pointer(self) -> Tensor:
        """A tensor of int64 to hand to the kernel, whether it reads it or not."""
        return self.seed if self.rows is None else self.rows

    @property
    def place(self) -> tuple[int, int, int]:
        """first_sample, first_row, half: in a kernel's order."""
        return self.first_sample, self.first_row, self.half


def near(x: Tensor) -> Tensor:
    """x [.., R, C] with the places of a block within 32-bit offsets of each other: a copy where they are not."""
    row, column = x.stride()[-2:]
    return x if MOST_ROWS * row + x.shape[-1] * column < 2**31 else x.contiguous()


def linear_fwd_config(entries: int, inputs: int, outputs: int, precision: str) -> Config:
    """The configuration of `_sampled_linear_fwd_kernel`."""
    fma = precision == "ieee"
    default = {
        "BLOCK_M": block_of(entries, 128),
        "BLOCK_O": block_of(outputs, 64 if fma else 128),
        "BLOCK_I": 16 if fma else 32,
    }
    key = (inputs, outputs, precision, row_bucket(entries))
    return tuned("sampled_linear_fwd_kernel", key, {**default, "num_warps": 8, "num_stages": 3})


def linear_forward(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, activation: int, parameter: float, precision: str
) -> None:
    """out [M, O] = f(x Wᵀ + b): x [M, I] and weight [O, I] of any strides, out contiguous."""
    x = near(x)
    (entries, inputs), outputs = x.shape, weight.shape[0]
    config = linear_fwd_config(entries, inputs, outputs, precision)
    grid = triton.cdiv(entries, config["BLOCK_M"]) * triton.cdiv(outputs, config["BLOCK_O"])
    start(
        _sampled_linear_fwd_kernel,
        grid,
        x,
        weight,
        bias,
        out,
        entries,
        inputs,
        outputs,
        *x.stride(),
        *weight.stride(),
        parameter,
        activation,
        precision,
        **config,
    )


def latent_fwd_config(entries: int, columns: int, outputs: int, precision: str) -> Config:
    """The configuration of `_latent_linear_fwd_kernel`."""
    default = {"BLOCK_M": block_of(entries, 64), "BLOCK_O": block_of(outputs, 128), "BLOCK_Z": 16}
    key = (columns, outputs, precision, row_bucket(entries))
    return tuned("latent_linear_fwd_kernel", key, {**default, "num_warps": 8, "num_stages": 2})


def latent_forward(
    tile: LatentTile,
    weight: Tensor,
    context_part: Tensor,
    out: Tensor,
    activation: int,
    parameter: float,
    precision: str,
) -> None:
    """out [n R, O] = f(z W_zᵀ + context_part): weight [O, Z] of any strides, context_part [R, O], out contiguous."""
    (rows, columns), outputs = tile.mean.shape, weight.shape[0]
    config = latent_fwd_config(tile.entries, columns, outputs, precision)
    grid = triton.cdiv(tile.entries, config["BLOCK_M"]) * triton.cdiv(outputs, config["BLOCK_O"])
    start(
        _latent_linear_fwd_kernel,
        grid,
        tile.mean,
        tile.std,
        tile.noise_pointer,
        tile.seed,
        tile.rows_pointer,
        weight,
        context_part,
        out,
        tile.entries,
        rows,
        columns,
        outputs,
        *tile.noise_strides,
        *weight.stride(),
        *tile.place,
        parameter,
        activation,
        tile.source,
        tile.rows is not None,
        precision,
        **config,
    )
