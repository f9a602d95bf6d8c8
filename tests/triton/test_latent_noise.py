"""The kernels' noise: the reference's numbers to float32 rounding, for any tile of it, drawn or read."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from p3kernels.reference.latent_noise import SHIFT_STREAM, latent_noise, normal
from triton_kernels.kernels.latent_noise import latent_columns, noise_block, philox_normals
from triton_kernels.sampled_layers import LatentTile


@triton.jit
def _noise_kernel(
    out_ptr,
    noise_ptr,
    seed_ptr,
    rows_ptr,
    entries,
    rows,
    columns,
    stride_sample,
    stride_row,
    stride_column,
    first_sample,
    first_row,
    half,
    SOURCE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Z: tl.constexpr,
):
    entry = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    for first_counter in range(0, (columns + 3) // 4, BLOCK_Z // 4):
        column = latent_columns(first_counter, columns, BLOCK_Z)
        noise = noise_block(
            noise_ptr,
            stride_sample,
            stride_row,
            stride_column,
            tl.load(seed_ptr),
            rows_ptr,
            entry // rows,
            entry % rows,
            entry < entries,
            first_sample,
            first_row,
            first_counter,
            columns,
            half,
            SOURCE,
            HAS_ROWS,
            BLOCK_M,
            BLOCK_Z,
        )
        inside = (entry < entries)[:, None] & (column < columns)[None, :]
        tl.store(out_ptr + entry[:, None] * columns + column[None, :], noise, inside)


@triton.jit
def _stream_kernel(out_ptr, seed_ptr, stream, BLOCK_Z: tl.constexpr):
    row = tl.arange(0, 16)
    normals = philox_normals(tl.load(seed_ptr), stream, tl.zeros_like(row), row, 0, 16, BLOCK_Z)
    tl.store(out_ptr + row[:, None] * BLOCK_Z + latent_columns(0, BLOCK_Z, BLOCK_Z)[None, :], normals)


def drawn(tile: LatentTile, block: int = 16, entries: int = 16) -> torch.Tensor:
    """[n, R, Z] of a tile; what is not written is NaN."""
    rows, columns = tile.mean.shape
    out = torch.full((tile.samples, rows, columns), math.nan)
    _noise_kernel[(triton.cdiv(tile.entries, entries),)](
        out,
        tile.noise_pointer,
        tile.seed,
        tile.rows_pointer,
        tile.entries,
        rows,
        columns,
        *tile.noise_strides,
        *tile.place,
        tile.source,
        tile.rows is not None,
        entries,
        block,
    )
    return out


def tile_of(shape, seed=5, *, samples=None, first=(0, 0), antithetic=False, noise=None, numbers=None) -> LatentTile:
    n, rows, columns = shape
    half = ((samples or n) + 1) // 2
    params = torch.zeros(rows, columns), torch.ones(rows, columns)
    return LatentTile(*params, noise, torch.tensor([seed]), numbers, n, *first, half, antithetic)


# A quotient of 24 bits, a logarithm, a square root, a polynomial: a few roundings of numbers below 7.
TOLERANCE = 1e-6


@pytest.mark.parametrize("columns", [1, 3, 4, 5, 16, 29])
@pytest.mark.parametrize("antithetic", [False, True])
def test_is_the_references_noise(antithetic, columns):
    for seed in (0, 1, 2**31, 2**62 + 12345, 2**63 - 1):
        got = drawn(tile_of((7, 5, columns), seed, antithetic=antithetic))
        expected = latent_noise(seed, 7, 5, columns, "antithetic" if antithetic else "iid", torch.float64)
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=TOLERANCE)


def test_tails_and_uniforms_near_one():
    """Many numbers: the extreme words too, where a float32 uniform would be 0 or 1."""
    got = drawn(tile_of((3, 1500, 32)), 64, 1024)
    expected = latent_noise(5, 3, 1500, 32, "iid", torch.float64)
    assert expected.abs().max() > 4
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("samples", [1, 2, 7, 10])
def test_antithetic_mirrors(samples):
    noise = drawn(tile_of((samples, 3, 6), antithetic=True))
    half = (samples + 1) // 2
    assert torch.equal(noise[half:], -noise[: samples // 2])
    assert torch.equal(noise[:half], drawn(tile_of((half, 3, 6))))


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("block", [16, 64])
def test_a_tile_is_a_part_of_the_whole(block, antithetic):
    whole = drawn(tile_of((9, 14, 21), samples=9, antithetic=antithetic))
    part = tile_of((4, 6, 21), samples=9, first=(3, 5), antithetic=antithetic)
    assert torch.equal(drawn(part, block), whole[3:7, 5:11])


def test_streams_are_independent_of_each_other():
    out = torch.empty(2, 16, 16)
    for stream in (0, SHIFT_STREAM):
        _stream_kernel[(1,)](out[stream], torch.tensor([9]), stream, 16)
    expected = torch.cat([normal(9, stream, 1, 16, 16) for stream in (0, SHIFT_STREAM)])
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("columns", [1, 6, 29])
def test_given_noise_is_read_as_it_is(columns):
    noise = torch.randn(columns, 5, 3).permute(2, 1, 0)
    assert torch.equal(drawn(tile_of((3, 5, columns), noise=noise)), noise)
    low = noise.bfloat16()
    assert torch.equal(drawn(tile_of((3, 5, columns), noise=low)), low.float())
