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
from triton_kernels.kernels.sampled_layers import _latent_draw_kernel, _sampled_linear_fwd_kernel
from triton_kernels.launch import Config, arch, block_of, row_bucket, start, tuned

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
        """n · R, the number of entries."""
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


def kind_of(x: Tensor, precision: str) -> str:
    """How a product with x is named in a tuning key: its precision, and whether operands are kept in 16 bits."""
    return f"{precision} of 16 bits" if x.element_size() == 2 else precision


def large_tiles(kind: str) -> bool:
    """Whether registers and shared memory take the largest tiles: Hopper's, with operands of 16 bits."""
    return kind.endswith("16 bits") and arch() == "sm_90"


def small_tiles(kind: str) -> bool:
    """Whether operands take registers that accumulators want: tf32x3 where a product reads them from registers."""
    return kind == "tf32x3" and arch() != "sm_90"


def linear_fwd_config(entries: int, inputs: int, outputs: int, kind: str) -> Config:
    """The configuration of `_sampled_linear_fwd_kernel`."""
    fma, large = kind == "ieee", large_tiles(kind)
    default = {
        "BLOCK_M": block_of(entries, 128),
        "BLOCK_O": block_of(outputs, 64 if fma else 256 if large else 128),
        "BLOCK_I": 16 if fma or small_tiles(kind) else 64 if large else 32,
    }
    key = (inputs, outputs, kind, row_bucket(entries))
    return tuned("sampled_linear_fwd_kernel", key, {**default, "num_warps": 8, "num_stages": 2 if fma else 3})


def linear_forward(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, activation: int, parameter: float, precision: str
) -> None:
    """out [M, O] = f(x Wᵀ + b), rounded for the next product where there is an activation.

    Args:
        x: [M, I], rounded, rows contiguous.
        weight: [O, at least I], rounded, rows contiguous, of the dtype of x.
        bias: [O], or [R, O] for sample after sample of R rows; contiguous.
        out: [M, O], contiguous.
        activation: Code of the activation, or `NONE`.
        parameter: Its parameter.
        precision: Precision of the product.
    """
    (entries, inputs), outputs = x.shape, weight.shape[0]
    config = linear_fwd_config(entries, inputs, outputs, kind_of(x, precision))
    grid = triton.cdiv(entries, config["BLOCK_M"]) * triton.cdiv(outputs, config["BLOCK_O"])
    start(
        _sampled_linear_fwd_kernel,
        grid,
        x,
        weight,
        bias,
        out,
        entries,
        bias.shape[0],
        inputs,
        outputs,
        x.stride(0),
        weight.stride(0),
        parameter,
        activation,
        bias.dim() == 2,
        precision,
        **config,
    )


def draw_config(rows: int, columns: int) -> Config:
    """The configuration of `_latent_draw_kernel`."""
    default = {"BLOCK_M": block_of(rows, 32), "BLOCK_Z": block_of(columns, 64), "num_warps": 4, "num_stages": 1}
    return tuned("latent_draw_kernel", (columns, row_bucket(rows)), default)


def draw(tile: LatentTile, z: Tensor, precision: str) -> None:
    """Fills z [n R, Z], rows contiguous, with the tile's latent inputs, rounded for products."""
    rows, columns = tile.mean.shape
    config = draw_config(rows, columns)
    grid = triton.cdiv(rows, config["BLOCK_M"]) * triton.cdiv(columns, config["BLOCK_Z"])
    start(
        _latent_draw_kernel,
        grid,
        tile.mean,
        tile.std,
        tile.noise_pointer,
        tile.seed,
        tile.rows_pointer,
        z,
        tile.samples,
        rows,
        columns,
        z.stride(0),
        *tile.noise_strides,
        *tile.place,
        tile.source,
        tile.rows is not None,
        precision,
        **config,
    )
