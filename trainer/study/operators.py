"""What our operators take inside, counted launch by launch at the sizes that an update would call them with.

A call of a small update, at the sizes of a large one, is made again on memory that nobody touches; Triton's kernels are
counted in place of being started. Unlike torch's operations our operators do not grow by a factor: they have tiles of
samples, blocks of rows and scratch memory with an upper end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from p3kernels.backends import standing_in_for_a_gpu
from trainer.study.count import Call, Counter, Size
from triton_kernels.launch import started_instead, target_arch
from triton_kernels.proof import model, record
from triton_kernels.proof.costs import cost


@dataclasses.dataclass
class Totals:
    """What operators of ours need, together."""

    moved: float = 0.0
    """Bytes at DRAM."""
    flops: float = 0.0
    """Operations of matrix products."""
    launches: float = 0.0
    seconds: float = 0.0
    """Least on an H100, launch by launch: the greatest of DRAM, L2 and products; instructions apart."""
    peak: float = 0.0
    """Bytes that the update has allocated inside of an operator, where they are most."""


def totals(calls: Iterable[Call], precision: str) -> Totals:
    """Everything that `calls` need with products in `precision`, each as often as an update makes it."""
    found, known = Totals(), {}
    for call in calls:
        arguments = tree_map(lambda leaf: precision if leaf == "ieee" else leaf, call.arguments, is_leaf=_is_size)
        key = f"{call.operator} {arguments}"
        if key not in known:
            known[key] = _one(call.operator, arguments)
        one = known[key]
        for name in ("moved", "flops", "launches", "seconds"):
            setattr(found, name, getattr(found, name) + call.times * getattr(one, name))
        found.peak = max(found.peak, call.live + one.peak)
    return found


def _is_size(leaf: Any) -> bool:
    return isinstance(leaf, Size)


def _one(name: str, arguments: Any) -> Totals:
    operator = getattr(torch.ops.p3kernels, name.removeprefix("p3kernels::"))
    given = tree_map(lambda leaf: leaf.tensor() if _is_size(leaf) else leaf, arguments, is_leaf=_is_size)
    counter, found = _Allocations(), Totals()

    def started(*launch: Any) -> None:
        launched = record.of(*launch)
        counted = cost(launched)
        facts = {"instructions": None, "special": None, "half": _half(launched.arguments)}
        facts |= {"precision": launched.arguments.get("PRECISION", "ieee"), **dataclasses.asdict(counted)}
        found.launches += 1
        found.moved += counted.bytes_moved
        found.flops += counted.flops if counted.products else 0
        found.seconds += 1e-6 * max(limit for limit in model.limits(facts).values() if limit is not None)

    with (
        target_arch(model.ARCH),
        started_instead(started),
        standing_in_for_a_gpu(counter.operations),
        torch.no_grad(),
    ):
        outputs = operator(*given)
    found.peak = counter.peak
    found.launches += counter.launches
    found.moved += counter.moved
    found.seconds += counter.seconds
    del outputs
    return found


def _half(arguments: dict[str, Any]) -> bool:
    return any(isinstance(value, Tensor) and value.dtype == torch.float16 for value in arguments.values())


class _Allocations(Counter):
    """Counts what torch does inside of one operator."""

    def operations(self) -> Counter:
        """What the operator runs in."""
        return self
