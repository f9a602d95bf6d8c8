"""Standard normals from a counter, as device functions: Philox4x32-10 and Box–Muller, in float32.

The number at (seed, stream, sample, row, column) depends on nothing else, so a backward pass draws the same noise
again, and every backend draws the same numbers. A row's number is its place in the batch, or one that it is given; what
that has beyond 32 bits stands above the stream in the fourth counter. One counter gives the columns q, q + Q, q + 2Q
and q + 3Q of a row, Q = ceil(Z / 4): a word each.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOISE_STREAM = tl.constexpr(0)

IID = tl.constexpr(0)
ANTITHETIC = tl.constexpr(1)
GIVEN = tl.constexpr(2)
"""Where the noise of a tile comes from: drawn, drawn with a mirrored second half, or read from memory."""


@triton.jit
def _log_of_unit(word: tl.tensor) -> tl.tensor:
    """log((word + 1/2) / 2³²); near 1 by the complement, which the quotient has forgotten there."""
    unit = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    complement = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    s = complement / (complement - 2.0)  # log(1 - c) = 2 artanh(s)
    s2 = s * s
    near_one = 2.0 * s + s * s2 * (0.66666667 + s2 * (0.4 + s2 * (0.28571430 + s2 * 0.22222222)))
    return tl.where(complement < 0.29, near_one, tl.log(unit))


@triton.jit
def _box_muller(word1: tl.tensor, word2: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Two standard normals of two 32-bit words, each taken as (word + 1/2) / 2³²."""
    radius = tl.sqrt(-2.0 * _log_of_unit(word1))
    # cos and sin of 2π u by quarter turns; whole turns wrap, and what is left of the angle is exact.
    quarter = (word2 + 0x20000000) >> 30
    rest = (word2 - (quarter << 30)).to(tl.int32, bitcast=True)
    x = (rest.to(tl.float32) + 0.5) * (1.57079633 * 9.313225746154785e-10)
    x2 = x * x
    sine = x * (1.0 + x2 * (-0.16666667 + x2 * (8.3333294e-3 + x2 * (-1.9839335e-4 + x2 * 2.7183115e-6))))
    cosine = 1.0 + x2 * (-0.5 + x2 * (4.1666623e-2 + x2 * (-1.3886764e-3 + x2 * 2.4390449e-5)))
    odd = (quarter & 1) != 0
    half = (quarter & 2) != 0
    c = tl.where(odd, -sine, cosine)
    s = tl.where(odd, cosine, sine)
    return radius * tl.where(half, -c, c), radius * tl.where(half, -s, s)


@triton.jit
def latent_columns(first_counter: tl.tensor, columns: tl.tensor, BLOCK_Z: tl.constexpr) -> tl.tensor:
    """[BLOCK_Z] columns of BLOCK_Z / 4 counters, as `philox_normals` orders them; `columns` where there is none."""
    place = tl.arange(0, BLOCK_Z)
    counter = first_counter + place // 4
    quarter = (columns + 3) // 4
    column = (place % 4) * quarter + counter
    return tl.where((counter < quarter) & (column < columns), column, columns)


@triton.jit
def philox_normals(
    seed: tl.tensor,
    stream: tl.tensor,
    sample: tl.tensor,
    row: tl.tensor,
    first_counter: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_Z: tl.constexpr,
) -> tl.tensor:
    """Standard normals of (sample, row), four a counter, beside each other.

    Args:
        seed: One int64.
        stream: Independent sets of noise of one seed.
        sample: [M] int32.
        row: [M] int32 or int64.
        first_counter: The block has BLOCK_Z / 4 counters from here.
        BLOCK_M: M.
        BLOCK_Z: Columns of the block.

    Returns:
        [M, BLOCK_Z], its columns as `latent_columns` names them.
    """
    counter = tl.broadcast_to((first_counter + tl.arange(0, BLOCK_Z // 4))[None, :], [BLOCK_M, BLOCK_Z // 4])
    i = tl.broadcast_to(sample[:, None], [BLOCK_M, BLOCK_Z // 4])
    last = tl.zeros_like(counter) + stream
    if row.dtype == tl.int64:
        last += 2 * (row >> 32).to(tl.int32)[:, None]
    r = tl.broadcast_to(row.to(tl.int32)[:, None], [BLOCK_M, BLOCK_Z // 4])
    w0, w1, w2, w3 = tl.philox(seed, counter, i, r, last)
    n0, n1 = _box_muller(w0, w1)
    n2, n3 = _box_muller(w2, w3)
    return tl.reshape(tl.join(tl.join(n0, n2), tl.join(n1, n3)), [BLOCK_M, BLOCK_Z])


@triton.jit
def noise_block(
    noise_ptr: tl.tensor,
    stride_sample: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    seed: tl.tensor,
    rows_ptr: tl.tensor,
    sample: tl.tensor,
    row: tl.tensor,
    row_inside: tl.tensor,
    first_sample: tl.tensor,
    first_row: tl.tensor,
    first_counter: tl.tensor,
    columns: tl.tensor,
    half: tl.tensor,
    SOURCE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Z: tl.constexpr,
) -> tl.tensor:
    """The noise of a block of a tile.

    Args:
        noise_ptr: The tile's noise [n, R, Z], read where SOURCE is GIVEN.
        stride_sample: Stride of the noise over samples; the next two alike.
        stride_row: Stride of the noise over rows.
        stride_column: Stride of the noise over columns.
        seed: One int64, used where SOURCE is not GIVEN.
        rows_ptr: The numbers [R], int64, of the tile's rows, read if HAS_ROWS where SOURCE is not GIVEN.
        sample: [M], counted from the tile's first.
        row: [M], counted from the tile's first.
        row_inside: [M], which of them there are.
        first_sample: The tile's first sample in the whole noise.
        first_row: The tile's first row in the batch.
        first_counter: First counter of the block; see `latent_columns`.
        columns: Z.
        half: ceil(N / 2), where mirrored samples begin.
        SOURCE: IID, ANTITHETIC or GIVEN.
        HAS_ROWS: Whether rows have numbers of their own, in place of first_row + row.
        BLOCK_M: M.
        BLOCK_Z: Columns of the block.

    Returns:
        [M, BLOCK_Z]; what lies outside is 0 where read and some normal number where drawn.
    """
    if SOURCE == GIVEN:
        column = latent_columns(first_counter, columns, BLOCK_Z).to(tl.int64)[None, :]
        at = sample.to(tl.int64)[:, None] * stride_sample + row.to(tl.int64)[:, None] * stride_row
        inside = row_inside[:, None] & (column < columns)
        noise = tl.load(noise_ptr + at + column * stride_column, inside, 0.0).to(tl.float32)
    else:
        index = sample + first_sample
        mirrored = index >= half
        if SOURCE == ANTITHETIC:
            index = tl.where(mirrored, index - half, index)
        if HAS_ROWS:
            number = tl.load(rows_ptr + row, row_inside, 0)
            noise = philox_normals(seed, NOISE_STREAM, index, number, first_counter, BLOCK_M, BLOCK_Z)
        else:
            noise = philox_normals(seed, NOISE_STREAM, index, row + first_row, first_counter, BLOCK_M, BLOCK_Z)
        if SOURCE == ANTITHETIC:
            noise = tl.where(mirrored[:, None], -noise, noise)
    return noise
