"""What the launchers would launch, written down instead: on any machine, on tensors without memory.

A recorded launch has the very arguments of a real one, so that Triton's own specialiser can say what the JIT would
compile: which integers are 1 or multiples of 16, how each pointer is aligned, tuples entry by entry.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from triton_kernels import launch
from triton_kernels.launch import Config


@dataclass(frozen=True)
class Launch:
    """One launch that did not happen."""

    kernel: Any
    """The `@triton.jit` function."""
    grid: int
    arguments: dict[str, Any]
    """By name, constexprs and BLOCK_* sizes included."""
    config: Config
    """BLOCK_* and CHUNK_* sizes and the compiler's options, num_warps among them."""

    @property
    def name(self) -> str:
        """The kernel's, without the leading underscore."""
        return self.kernel.fn.__name__.lstrip("_")

    @property
    def options(self) -> Config:
        """What is not an argument of the kernel: num_warps, num_stages, maxnreg."""
        return {name: value for name, value in self.config.items() if name not in self.arguments}

    def facts(self) -> str:
        """What a specialisation can depend on, in words: equal facts, equal machine code."""
        unspecialised = {param.name for param in getattr(self.kernel, "params", []) if param.do_not_specialize}
        constants = {param.name for param in getattr(self.kernel, "params", []) if param.is_constexpr}
        told = [
            (name, value if name in constants or name.isupper() else _fact(value, name not in unspecialised))
            for name, value in self.arguments.items()
        ]
        return f"{self.name} {told} {sorted(self.options.items())}"


@contextlib.contextmanager
def recording() -> Iterator[list[Launch]]:
    """Inside, launchers start nothing; what they would have started is in the list."""
    found: list[Launch] = []
    with launch.started_instead(lambda *started: found.append(of(*started))):
        yield found


def of(kernel: Any, grid: int, arguments: tuple[Any, ...], config: Config) -> Launch:
    """What `launch.started_instead` is told, as a record."""
    names = list(inspect.signature(kernel.fn).parameters)
    given = {**dict(zip(names, arguments, strict=False)), **{n: v for n, v in config.items() if n in names}}
    tuned = {n: v for n, v in config.items() if n not in names or n.startswith(("BLOCK", "CHUNK"))}
    return Launch(kernel, grid, {name: given[name] for name in names}, tuned)


def address(tensor: Tensor) -> int:
    """Where the tensor begins, counted from its allocation, which torch's allocator aligns to 512 bytes."""
    return int(tensor.storage_offset()) * tensor.element_size()


def _fact(value: Any, specialised: bool) -> Any:
    if isinstance(value, tuple):
        return tuple(_fact(entry, specialised) for entry in value)
    if isinstance(value, Tensor):
        return str(value.dtype), address(value) % 16 == 0 if specialised else None
    if isinstance(value, float):
        return "float"
    wide = not -(2**31) <= value < 2**31
    return (wide, value == 1, value % 16 == 0) if specialised else wide
