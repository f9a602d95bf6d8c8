"""What a CUDA graph does, on a CPU: operations recorded once and run again on the same memory, without any Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph(TorchDispatchMode):
    """Captures as `trainer.algorithms.step_graph.Graph` says: what runs meanwhile is undone."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert func._schema.name not in ("aten::_local_scalar_dense", "aten::nonzero"), "the host may not look"
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._before += [(tensor, tensor.clone()) for tensor in _tensors(value)]
        out = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, out))
        return out

    def capture(self, function: Callable[[], None]) -> None:
        random = torch.get_rng_state()
        with self:
            function()
        torch.set_rng_state(random)
        with torch.no_grad():
            for tensor, before in reversed(self._before):
                tensor.copy_(before)
        self._before.clear()

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, recorded in self.operations:
            if func.is_view:
                continue
            given = {_place(tensor) for tensor in _tensors((args, kwargs))}
            out = func(*args, **kwargs)
            for new, old in zip(_tensors(out), _tensors(recorded), strict=True):
                if _place(new) not in given:
                    old.copy_(new)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
