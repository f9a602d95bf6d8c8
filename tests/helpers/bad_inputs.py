"""What a user may get wrong about an op's arguments, and what every op answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Bad:
    """Arguments that a user may get wrong, and the answer; a change is a value or a function of the good one."""

    name: str
    error: type[Exception]
    message: str
    changes: dict[str, Any] = field(default_factory=dict)


def bad(name: str, error: type[Exception], message: str, **changes: Any) -> Bad:
    return Bad(name, error, message, changes)


BAD_BACKENDS = [
    bad("unknown backend", ValueError, r"backend: expected one of reference, cpu.* got 'gpu'", backend="gpu"),
    bad("triton absent", RuntimeError, r"backend='triton' cannot run: \w+", backend="triton"),
    bad("cuda absent", RuntimeError, r"backend='cuda' cannot run: \w+", backend="cuda"),
]
"""What every op says to a backend that cannot run here."""


def bad_tensor(name: str, like: str | None = None, dimensions: int | None = None) -> list[Bad]:
    """The ways in which one tensor argument can be wrong; `like` is the argument it must agree with."""
    cases = [
        bad(f"{name} not a tensor", TypeError, rf"{name}: expected a tensor, got list", **{name: [1.0]}),
        bad(f"{name} int64", TypeError, rf"{name}: expected float32 or float64, got int64", **{name: Tensor.long}),
        bad(f"{name} float16", TypeError, rf"{name}: expected float32 or float64, got float16", **{name: Tensor.half}),
    ]
    if like is not None:
        message = rf"{name}: expected the dtype of {like}, float32, got float64"
        cases.append(bad(f"{name} float64", TypeError, message, **{name: Tensor.double}))
        message = rf"{name}: expected the device of {like}, cpu, got meta"
        cases.append(bad(f"{name} on meta", ValueError, message, **{name: lambda tensor: tensor.to("meta")}))
    if dimensions is not None:
        message = rf"{name}: expected {dimensions} dimensions, got shape \["
        cases.append(bad(f"{name} one dimension more", ValueError, message, **{name: lambda tensor: tensor[None]}))
    return cases
