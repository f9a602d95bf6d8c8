"""An op on the device, outputs and gradients, against the float64 reference on the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from p3kernels.device_check.ops import TOLERANCES, Inputs, Op
from p3kernels.device_check.step import Finding

Layout = Callable[[Tensor], Tensor]


def as_made(tensor: Tensor) -> Tensor:
    """Contiguous, at the beginning of its memory."""
    return tensor


def transposed(tensor: Tensor) -> Tensor:
    """The same numbers, first and last dimension swapped in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def sliced(tensor: Tensor) -> Tensor:
    """The same numbers, every second of a larger tensor that is NaN in between."""
    whole = tensor.new_full((*tensor.shape, 2), math.nan)
    whole[..., 0] = tensor
    return whole[..., 0]


def unaligned(tensor: Tensor) -> Tensor:
    """The same numbers, one element behind the beginning of an allocation: no vector load may be assumed."""
    whole = tensor.new_full((tensor.numel() + 1,), math.nan)
    whole[1:] = tensor.flatten()
    return whole[1:].view(tensor.shape)


LAYOUTS: dict[str, Layout] = {"transposed": transposed, "sliced": sliced, "unaligned": unaligned}


def on(inputs: Inputs, place: torch.device, layout: Layout = as_made) -> Inputs:
    """The inputs there, in a layout."""
    return {name: layout(tensor.to(place)) for name, tensor in inputs.items()}


def cotangents(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Incoming gradients, the same for every dtype and device; positive, so that a lone element does not cancel."""
    source = torch.Generator().manual_seed(7)
    return [(0.5 + torch.rand(out.shape, generator=source, dtype=torch.float64)).to(out) for out in outputs]


def results(op: Op, inputs: Inputs, backend: str, **more: Any) -> dict[str, Tensor]:
    """Outputs and gradients by name, all detached."""
    wanted = [name for name in inputs if name not in op.constant]
    leaves = {name: tensor.detach().requires_grad_(name in wanted) for name, tensor in inputs.items()}
    outputs = op.outputs(leaves, backend, **more)
    gradients = torch.autograd.grad(outputs, [leaves[name] for name in wanted], cotangents(outputs))
    found = {f"output {index}": out.detach() for index, out in enumerate(outputs)}
    return found | {f"gradient of {name}": gradient for name, gradient in zip(wanted, gradients, strict=True)}


def against_reference(
    op: Op, inputs: Inputs, place: torch.device, backend: str, precision: str | None = None, layout: Layout = as_made
) -> Finding:
    """Outputs with and without a gradient to come, and every gradient."""
    more = {} if precision is None else {"precision": precision}
    placed = on(inputs, place, layout)
    got = results(op, placed, backend, **more)
    with torch.no_grad():
        alone = op.outputs(placed, backend, **more)
    got |= {f"output {index} without gradients": out for index, out in enumerate(alone)}
    exact = results(op, {name: tensor.double() for name, tensor in inputs.items()}, "reference")
    plain = results(op, {name: tensor.float() for name, tensor in inputs.items()}, "reference")
    for_outputs, for_gradients = TOLERANCES[precision or "ieee"]
    worst, wrong = 0.0, []
    for name, tensor in got.items():
        expected = exact[name.removesuffix(" without gradients")]
        of_plain = plain[name.removesuffix(" without gradients")]
        tolerance = for_gradients if name.startswith("gradient") else for_outputs
        if tensor.dtype == torch.bfloat16:
            tolerance += 2**-8 if place.type == "cuda" else 2**-7  # rounded, where the interpreter truncates
        error, allowed = relative(tensor, expected), tolerance + 2 * relative(of_plain, expected)
        worst = max(worst, error / allowed)
        if not error <= allowed:
            wrong.append(f"{name} is off by {error:.1e} (allowed {allowed:.1e})")
    numbers = {"share_of_tolerance": worst if math.isfinite(worst) else "inf"}
    return Finding(not wrong, "; ".join(wrong) or f"largest error {worst:.2f} of what is allowed", numbers)


def relative(got: Tensor, expected: Tensor) -> float:
    """The largest error over the largest expected element; inf for another shape or a NaN."""
    if got.shape != expected.shape:
        return math.inf
    if expected.numel() == 0:
        return 0.0
    got, expected = got.detach().cpu().double(), expected.detach().cpu().double()
    error = (got - expected).abs().max().item() / max(expected.abs().max().item(), torch.finfo(torch.float32).tiny)
    return math.inf if math.isnan(error) else error


def same_bits(got: Sequence[Tensor], expected: Sequence[Tensor]) -> str | None:
    """What differs, or None."""
    for index, (one, other) in enumerate(zip(got, expected, strict=True)):
        if not torch.equal(one.cpu(), other.cpu()):
            return f"tensor {index} of {len(got)} differs, by {relative(one, other):.1e} of its largest element"
    return None
