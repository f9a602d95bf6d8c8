"""Rows of a rollout."""

from __future__ import annotations

from tensordict import TensorDict
from torch import Tensor


def rows_of(values: Tensor | TensorDict, rows: Tensor) -> Tensor | TensorDict:
    """`values[rows]` of rows [B]; by `index_select`, which copies whole rows: several times faster on a CPU."""
    if isinstance(values, Tensor):
        return values.index_select(0, rows)
    groups = {name: group.index_select(0, rows) for name, group in values.items() if isinstance(group, Tensor)}
    return TensorDict(groups, batch_size=[len(rows)], device=values.device)
