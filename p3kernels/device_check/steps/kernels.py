"""What the JIT really compiled: registers, spills and shared memory of each kernel, beside the committed record."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import torch

from p3kernels.device_check.compare import on, results
from p3kernels.device_check.ops import OPS, PRECISIONS, Op
from p3kernels.device_check.step import Case, Finding, Skip, Task
from p3kernels.device_check.steps.values import require

REGISTERS_APART = 16
"""A version of ptxas may choose other registers than the one of the record; more than this is worth a look."""


def cases(task: Task) -> Iterator[Case]:
    """One case an op with Triton kernels, and one for what their launches had to shrink."""
    require(task, "triton")
    if task.device.small:
        raise Skip("the interpreter compiles nothing")
    return _cases(task)


def _cases(task: Task) -> Iterator[Case]:
    for op in OPS:
        if "triton" in op.kernels:
            for precision in PRECISIONS if op.products else (None,):
                label = f"{op.name}, {precision}" if precision else op.name
                yield Case(label, lambda op=op, precision=precision: _compiled(op, precision, task))  # type: ignore[misc]
    yield Case("tiles that did not fit", _shrunk)


def _compiled(op: Op, precision: str | None, task: Task) -> Finding:
    before = {id(kernel) for _, kernel in compiled_kernels()}
    more = {} if precision is None else {"precision": precision}
    results(op, on(op.make("actor", torch.float32), task.device.place()), "triton", **more)
    found = [(name, kernel) for name, kernel in compiled_kernels() if id(kernel) not in before]
    rows = [{"kernel": name, **needs(kernel)} for name, kernel in found]
    spilling = [f"{row['kernel']} spills {row['spills']} bytes" for row in rows if row["spills"]]
    known = record(torch.cuda.get_device_capability())
    apart = [
        f"{row['kernel']}: {row['registers']} registers, recorded {known[row['kernel']]}"
        for row in rows
        if row["kernel"] in known
        and all(abs(row["registers"] - count) > REGISTERS_APART for count in known[row["kernel"]])
    ]
    most = max((row["registers"] for row in rows), default=0)
    told = [f"{len(rows)} kernels, at most {most} registers", *spilling, *apart]
    return Finding(not spilling, "; ".join(told), {"show": bool(spilling or apart), "kernels": rows})


def compiled_kernels() -> list[tuple[str, Any]]:
    """Every kernel that the JIT has compiled in this process, by name, whichever version of triton keeps them."""
    import triton  # noqa: PLC0415  # the package imports without it

    import triton_kernels  # noqa: PLC0415

    found: dict[int, tuple[str, Any]] = {}
    for module in pkgutil.walk_packages(triton_kernels.__path__, "triton_kernels."):
        if module.name.rpartition(".")[2].startswith("_"):
            continue
        for function in vars(importlib.import_module(module.name)).values():
            if isinstance(function, triton.runtime.JITFunction):
                name = function.fn.__name__.lstrip("_")
                for cache in getattr(function, "device_caches", {}).values():
                    kernels = cache[0] if isinstance(cache, tuple) else cache
                    found |= {id(kernel): (name, kernel) for kernel in kernels.values()}
    return list(found.values())


def needs(kernel: Any) -> dict[str, Any]:
    """What a compiled kernel needs, as the driver says."""
    return {
        "registers": kernel.n_regs,
        "spills": kernel.n_spills,
        "shared_bytes": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "stages": getattr(kernel.metadata, "num_stages", None),
    }


def record(capability: tuple[int, int]) -> dict[str, list[int]]:
    """Kernel → registers of its configurations in the record of ahead-of-time compilation; empty without one."""
    from triton_kernels import launch  # noqa: PLC0415

    table = getattr(launch, "recorded_registers", None)
    return {} if table is None else table(f"sm_{capability[0]}{capability[1]}")


def _shrunk() -> Finding:
    from triton_kernels import launch  # noqa: PLC0415

    found = launch.shrunk()
    told = "; ".join(f"{name} now {config}" for name, config in found.items())
    return Finding(not found, told or "none: every default fits", {"show": bool(found), "entries": found})
