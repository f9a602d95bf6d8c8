"""Scratch memory that a tile leaves to the next one."""

from __future__ import annotations

import math

from torch import Tensor


class Workspace:
    """Uninitialised buffers by name, made once and given out again as views of the size asked for."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor; what it held under this name is lost."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = self._like.new_empty(size)
        return buffer[:size].view(shape)
