"""What eager torch moves and launches, counted op by op on tensors without memory.

Every aten op that is not a view counts as one launch, which reads each of its inputs and writes each of its outputs
once: the least an op of its own can move. Scratch memory inside an op (a split reduction) is not seen, so this is a
lower bound for eager, and a ratio against it is on eager's side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from p3kernels.bench import actor, mlp_moments
from p3kernels.bench.entry import Size


@dataclass
class Traffic:
    """Bytes, launches and multiply-add operations of a stretch of eager code."""

    bytes_read: int = 0
    bytes_written: int = 0
    by_op: Counter[str] = field(default_factory=Counter)
    """Launches by aten op."""
    each: list[tuple[int, int]] = field(default_factory=list)
    """Bytes and operations of every launch, in order; operations are those of matrix products, two a multiply-add."""
    names: list[str] = field(default_factory=list)
    """Their names, in the same order."""

    @property
    def launches(self) -> int:
        """Number of launches."""
        return len(self.each)

    @property
    def flops(self) -> int:
        """Operations of all launches."""
        return sum(flops for _, flops in self.each)

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written by all launches."""
        return self.bytes_read + self.bytes_written


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _bytes(tensor: Tensor) -> int:
    """Bytes of the distinct elements: those of an expanded dimension are one."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride != 0 else min(size, 1)
    return elements * tensor.element_size()


class TrafficCounter(TorchDispatchMode):
    """Counts what runs inside `with TrafficCounter() as counter`, on any device, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs the op and adds it to the count, unless it only makes a view or an allocation."""
        kwargs = dict(kwargs or {})
        out = func(*args, **kwargs)
        if not _launches(func):
            return out
        # The same tensor twice (x * x) is read once; what `out` names is written alone.
        named = [value for name, value in kwargs.items() if name != "out"]
        inputs = {id(tensor): tensor for tensor in (*_tensors(args), *_tensors(named))}
        name = func.overloadpacket.__name__
        written = sum(_bytes(tensor) for tensor in _tensors(out))
        fills = name in ("zero_", "fill_", "zeros_like", "ones_like", "full_like", "new_zeros")
        read = 0 if fills else sum(_bytes(tensor) for tensor in inputs.values())
        self.traffic.bytes_read += read
        self.traffic.bytes_written += written
        self.traffic.by_op[name] += 1
        self.traffic.names.append(name)
        formula = flop_registry.get(getattr(torch.ops.aten, name.rstrip("_"), None))  # addmm_ as addmm
        flops = 0 if formula is None else formula(*args, **kwargs, out_val=out)
        self.traffic.each.append((read + written, flops))
        return out

    def add(self, name: str, tensors: Sequence[Tensor]) -> None:
        """A launch that torch does not see, which reads or writes each of `tensors` once."""
        moved = sum(map(_bytes, tensors))
        self.traffic.bytes_read += moved
        self.traffic.by_op[name] += 1
        self.traffic.names.append(name)
        self.traffic.each.append((moved, 0))


def _launches(func: Any) -> bool:
    name = func.overloadpacket.__name__
    return not func.is_view and name not in (
        "detach",
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "_reshape_alias",
    )


def count(function: Callable[[], object]) -> Traffic:
    """What `function` moves and launches."""
    with TrafficCounter() as counter:
        function()
    return counter.traffic


def eager_actor(batch: int) -> Traffic:
    """One MM forward and backward of the actor in eager torch with the printed formulas, gradients of every input."""
    size = Size(batch, None)
    shapes = actor.moment_inputs(Size(1, None))
    inputs = {
        name: torch.empty(
            (batch, *tensor.shape[1:]) if name in ("mean", "var") else tensor.shape, device="meta", requires_grad=True
        )
        for name, tensor in shapes.items()
    }
    cotangents = [torch.empty(batch, actor.ACTIONS, device="meta") for _ in range(2)]

    def forward_backward() -> None:
        torch.autograd.grad(mlp_moments.ENTRY.eager(inputs, size), list(inputs.values()), cotangents)

    return count(forward_backward)
