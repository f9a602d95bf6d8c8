"""Counts how often the host reads a tensor's values: each would make it wait for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READING = {f"aten::{name}" for name in ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")}
"""Operators whose result, or its shape, the host has to know."""


class _Reads(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seed = isinstance(args[0], torch.Tensor) and (args[0].dtype, args[0].numel()) == (torch.int64, 1)
        if func._schema.name in READING and not seed:  # seeds are on the CPU in a training on a GPU, too
            self.found.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@contextmanager
def host_reads() -> Iterator[list[str]]:
    """What was read, in order; `tolist`, `numpy` and `cpu` do not pass the dispatcher and are watched by name."""
    found: list[str] = []

    def watched(name: str) -> Any:
        original = getattr(torch.Tensor, name)

        def read(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            found.append(name)
            return original(self, *arguments, **named)

        return mock.patch.object(torch.Tensor, name, read)

    with watched("tolist"), watched("numpy"), watched("cpu"), _Reads(found):
        yield found
