"""Rows of a rollout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

ALIGNED = 4
"""Columns of packed rows begin at multiples of this: 16 bytes, what a GPU loads at once."""


def rows_of(values: Tensor | TensorDict, rows: Tensor) -> Tensor | TensorDict:
    """`values[rows]` of rows [B]; by `index_select`, which copies whole rows: several times faster on a CPU."""
    if isinstance(values, Tensor):
        return values.index_select(0, rows)
    groups = {name: group.index_select(0, rows) for name, group in values.items() if isinstance(group, Tensor)}
    return TensorDict(groups, batch_size=[len(rows)], device=values.device)


class PackedRows:
    """Tensors [R, ...] of one dtype side by side, so that some of their rows are one gather; others go along.

    Args:
        tensors: By name; what is no float32 tensor stays as it is.
        before: Packed rows that are not needed any more: of the same sizes, their memory is written again, so that
            whoever has its address reads the new rows.
    """

    matrix: Tensor
    """All of them, [R, columns]."""

    def __init__(self, tensors: Mapping[str, Any], before: PackedRows | None = None) -> None:
        self._rest: dict[str, Any] = {}
        self._columns: dict[str, tuple[int, torch.Size]] = {}
        parts, at = [], 0
        for name, value in tensors.items():
            if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.numel() == 0:
                self._rest[name] = value
                continue
            width = math.prod(value.shape[1:])
            padding = -width % ALIGNED
            parts += [value.reshape(len(value), width), value.new_zeros(len(value), padding)]
            self._columns[name] = at, value.shape[1:]
            at += width + padding
        shape = len(parts[0]), at
        if before is not None and before.matrix.shape == shape and before.matrix.device == parts[0].device:
            self.matrix = torch.cat(parts, 1, out=before.matrix)
        else:
            self.matrix = torch.cat(parts, 1)

    def columns(self) -> dict[str, Any]:
        """Every tensor, as a view of the one matrix, and the rest."""
        return self._views(self.matrix) | self._rest

    def rows(self, rows: Tensor) -> dict[str, Any]:
        """Every tensor's rows [B], views of one gathered matrix."""
        found = self._views(self.matrix.index_select(0, rows))
        return found | {name: rows_of(value, rows) for name, value in self._rest.items()}

    def _views(self, matrix: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, (at, shape) in self._columns.items():
            columns = matrix[:, at] if not shape else matrix[:, at : at + math.prod(shape)]
            found[name] = columns.unflatten(1, shape) if len(shape) > 1 else columns
        return found
