"""Launching a kernel, or writing down what would be launched.

Inside `recording()` a launcher may be run on meta tensors, on any machine: what it would have started is the list of
cases for `python -m triton_kernels.aot`, with the types and specialisations that the JIT would find.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from triton_kernels.launch import AotCase, Config, on_device

_TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64"}
_recorders: list[list[Launch]] = []


@dataclass(frozen=True)
class Launch:
    """One launch that did not happen."""

    kernel: Any
    grid: int
    arguments: dict[str, Any]
    """By name, constexprs and BLOCK_* sizes included."""
    config: Config

    @property
    def name(self) -> str:
        """The kernel's, without the leading underscore."""
        return self.kernel.fn.__name__.lstrip("_")


def start(kernel: Any, grid: int, *arguments: Any, **config: Any) -> None:
    """kernel[(grid,)](*arguments, **config) on the device of the first argument, a tensor."""
    if _recorders:
        names = list(inspect.signature(kernel.fn).parameters)
        blocks = {name: value for name, value in config.items() if name in names}
        _recorders[-1].append(Launch(kernel, grid, {**dict(zip(names, arguments, strict=False)), **blocks}, config))
        return
    with on_device(arguments[0]):
        kernel[(grid,)](*arguments, **config)


@contextlib.contextmanager
def recording() -> Iterator[list[Launch]]:
    """Inside, `start` starts nothing and writes down."""
    _recorders.append([])
    try:
        yield _recorders[-1]
    finally:
        _recorders.pop()


@dataclass(frozen=True)
class Cost:
    """What one launch moves and computes."""

    bytes_moved: int
    compulsory_bytes: int
    flops: int


def cases(launches: list[Launch], shape: str, precision: str, cost: Callable[[Launch], Cost]) -> list[AotCase]:
    """The different launches, once each."""
    found: dict[str, AotCase] = {}
    for launch in launches:
        signature, constexprs, aligned = _specialised(launch)
        case = AotCase(
            kernel=launch.name,
            function=launch.kernel,
            signature=signature,
            constexprs=constexprs,
            config=launch.config,
            shape=f"{shape} {_sizes(launch)}",
            bytes_moved=cost(launch).bytes_moved,
            compulsory_bytes=cost(launch).compulsory_bytes,
            flops=cost(launch).flops,
            tensor_core=constexprs.get("PRECISION", "ieee") != "ieee" and cost(launch).flops > 0,
            default=True,
            grid=launch.grid,
            precision=precision,
            divisible_by_16=aligned,
        )
        found.setdefault(f"{case.kernel} {signature} {constexprs} {aligned} {launch.config}", case)
    return list(found.values())


def _specialised(launch: Launch) -> tuple[dict[str, str], dict[str, Any], tuple[str, ...]]:
    """Types of the arguments, compile-time constants, and multiples of 16, as the JIT would have them."""
    signature, constexprs, aligned = {}, {}, []
    fixed = {param.name for param in getattr(launch.kernel, "params", []) if param.do_not_specialize}
    for name, parameter in inspect.signature(launch.kernel.fn).parameters.items():
        value = launch.arguments[name]
        if parameter.annotation == "tl.constexpr" or (type(value) is int and value == 1 and name not in fixed):
            constexprs[name] = value
        elif isinstance(value, Tensor):
            signature[name] = _TYPES[value.dtype]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and name not in fixed:
                aligned.append(name)
    return signature, constexprs, tuple(aligned)


def _sizes(launch: Launch) -> str:
    names = {"samples": "n", "rows": "R", "entries": "M", "inputs": "I", "columns": "Z", "outputs": "O", "actions": "A"}
    return " ".join(f"{tag}={launch.arguments[name]}" for name, tag in names.items() if name in launch.arguments)
