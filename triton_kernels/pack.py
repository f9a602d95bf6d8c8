"""Copies of matrices for the products: rows padded to whole vectors, rounded once instead of in every product.

The tensor cores read the upper bits of a TF32 operand and leave the rest, so a product of operands that nobody rounded
is biased towards zero. Everything that goes into a product is rounded to nearest where it is written: parameters,
inputs and incoming gradients here, activations and their gradients by the kernels that make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from triton_kernels import launch
from triton_kernels.kernels.pack import _pack_kernel

VECTOR = 16
"""Elements that a row is padded to: 64 bytes of float32."""
CONFIG: launch.Config = {"BLOCK_ROWS": 32, "BLOCK_COLUMNS": 128, "num_warps": 4, "num_stages": 1}
INTERPRETER_CONFIG: launch.Config = {**CONFIG, "BLOCK_ROWS": 128, "BLOCK_COLUMNS": 128}


def padded(size: int) -> int:
    """`size` rounded up to whole vectors."""
    return (size + VECTOR - 1) // VECTOR * VECTOR


def storage(precision: str) -> torch.dtype:
    """What operands of products are kept as."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


@dataclass(frozen=True)
class Matrix:
    """One to pack: `split` of its rows or columns lie before a gap that aligns the ones behind."""

    source: Tensor
    """[H, W], of any strides."""
    to: Tensor
    """[H', W'], contiguous, at least as large."""
    row_split: int = 0
    row_gap: int = 0
    column_split: int = 0
    column_gap: int = 0
    marked: bool = False
    """Whether the bits that a TF32 product ignores keep what rounding took: for weights, which are squared."""


def pack(matrices: Sequence[Matrix], precision: str) -> None:
    """Fills every `to`, zeros where it is larger than its source; one launch."""
    config = launch.tuned("pack_kernel", (), INTERPRETER_CONFIG if launch.interpreted() else CONFIG)
    blocks = sum(
        triton.cdiv(m.to.shape[0], config["BLOCK_ROWS"]) * triton.cdiv(m.to.shape[1], config["BLOCK_COLUMNS"])
        for m in matrices
    )
    if blocks == 0:
        return
    launch.start(
        _pack_kernel,
        blocks,
        tuple(m.source for m in matrices),
        tuple(m.to for m in matrices),
        tuple(m.source.shape[0] for m in matrices),
        tuple(m.source.shape[1] for m in matrices),
        tuple(m.source.stride(0) for m in matrices),
        tuple(m.source.stride(1) for m in matrices),
        tuple(m.row_split for m in matrices),
        tuple(m.row_gap for m in matrices),
        tuple(m.column_split for m in matrices),
        tuple(m.column_gap for m in matrices),
        tuple(m.to.shape[0] for m in matrices),
        tuple(m.to.shape[1] for m in matrices),
        MATRICES=len(matrices),
        MARKED=sum(1 << k for k, m in enumerate(matrices) if m.marked),
        PRECISION=precision,
        **config,
    )
