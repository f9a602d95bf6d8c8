"""Matrices copied to where a product wants them: aligned rows, padded with zeros, rounded as the product rounds."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.dot import marked, operand


@triton.jit
def _pack_kernel(
    from_ptrs: tl.tensor,
    to_ptrs: tl.tensor,
    heights: tl.tensor,
    widths: tl.tensor,
    stride_rows: tl.tensor,
    stride_columns: tl.tensor,
    row_splits: tl.tensor,
    row_gaps: tl.tensor,
    column_splits: tl.tensor,
    column_gaps: tl.tensor,
    to_heights: tl.tensor,
    to_widths: tl.tensor,
    MATRICES: tl.constexpr,
    MARKED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
) -> None:
    """to [to_height, to_width] = from [height, width], with a gap of zeros behind `split` rows and columns.

    Arguments in the plural are tuples, one entry a matrix. Bit k of MARKED: matrix k is `marked`, not `rounded`.
    """
    block = tl.program_id(0)
    for k in tl.static_range(MATRICES):
        column_blocks = tl.cdiv(to_widths[k], BLOCK_COLUMNS)
        blocks = tl.cdiv(to_heights[k], BLOCK_ROWS) * column_blocks
        if (block >= 0) & (block < blocks):
            row = (block // column_blocks).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
            column = (block % column_blocks) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
            from_row = tl.where(row < row_splits[k], row, row - row_gaps[k])
            from_column = tl.where(column < column_splits[k], column, column - column_gaps[k])
            has_row = ((row < row_splits[k]) | (from_row >= row_splits[k])) & (from_row < heights[k])
            has_column = ((column < column_splits[k]) | (from_column >= column_splits[k])) & (from_column < widths[k])
            value = tl.load(
                from_ptrs[k]
                + from_row[:, None] * stride_rows[k]
                + from_column.to(tl.int64)[None, :] * stride_columns[k],
                mask=has_row[:, None] & has_column[None, :],
                other=0.0,
            ).to(tl.float32)
            inside = (row < to_heights[k])[:, None] & (column < to_widths[k])[None, :]
            value = marked(value, PRECISION) if (MARKED >> k) % 2 == 1 else operand(value, to_ptrs[k], PRECISION)
            tl.store(to_ptrs[k] + row[:, None] * to_widths[k] + column[None, :], value, mask=inside)
        block -= blocks
