"""Every op of a backend, at every size, dtype, layout and precision, against the float64 reference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from p3kernels.device_check.compare import LAYOUTS, against_reference, as_made
from p3kernels.device_check.ops import OPS, PRECISIONS, Op
from p3kernels.device_check.step import Case, Finding, Skip, Task

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


Cases = Callable[[Task], Iterator[Case]]


def require(task: Task, backend: str) -> None:
    """Raises `Skip` with the reason where a backend cannot run."""
    reason = task.device.backends()[backend]
    if reason != "available":
        raise Skip(f"the {backend} backend cannot run: {reason}")


def on_backend(backend: str, cases: Callable[[Task, str], Iterator[Case]], task: Task) -> Iterator[Case]:
    """What `cases` makes for a backend that can run here."""
    require(task, backend)
    return cases(task, backend)


def sizes(op: Op, task: Task) -> list[str]:
    """The names of the sizes worth running on the device."""
    return [name for name in op.sizes if not task.device.small or name not in ("actor", "blocks")]


def values_of(backend: str) -> Cases:
    """The step of a backend."""
    return functools.partial(on_backend, backend, _cases)


def _cases(task: Task, backend: str) -> Iterator[Case]:
    place = task.device.place()
    for op in OPS:
        precisions = PRECISIONS if op.products and backend == "triton" else (None,)
        for size in sizes(op, task):
            for precision in precisions:
                for name, dtype in DTYPES.items():
                    dots = f", {precision}" if precision else ""
                    run = functools.partial(_compare, op, size, dtype, place, backend, precision, "as made")
                    yield Case(f"{op.name}, {size}, {name}{dots}", run)
        for layout in LAYOUTS:
            run = functools.partial(_compare, op, "prime", torch.float32, place, backend, None, layout)
            yield Case(f"{op.name}, prime, {layout}", run)


def _compare(
    op: Op, size: str, dtype: torch.dtype, place: torch.device, backend: str, precision: str | None, layout: str
) -> Finding:
    inputs = op.make(size, dtype)
    more = precision or ("ieee" if op.products and backend == "triton" else None)
    return against_reference(op, inputs, place, backend, more, LAYOUTS.get(layout, as_made))
