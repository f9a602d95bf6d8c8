"""The ways of computing one op at one size, each ready to be called: ours, eager, compiled, and the bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from p3kernels.bench.actor import generator
from p3kernels.bench.entry import Entry, Forward, Size, Tensors

NAMES = ("ours", "eager", "compile", "bound")


@dataclass
class Contestant:
    """One of `NAMES`, its inputs, and the two things that are measured of it."""

    name: str
    label: str
    function: Forward
    inputs: Tensors
    """Every one requires a gradient."""
    size: Size
    draw: Callable[[Size], Tensors] | None = None
    cotangents: Sequence[Tensor] = ()

    def forward(self) -> tuple[Tensor, ...]:
        """The outputs without a graph, as a policy acts."""
        with torch.no_grad():
            return self._outputs()

    def forward_backward(self) -> tuple[Tensor, ...]:
        """The gradients of every input, as a policy learns."""
        outputs = self._outputs()
        return torch.autograd.grad(outputs, list(self.inputs.values()), self._cotangents(outputs))

    def results(self, given: Tensors | None = None) -> tuple[tuple[Tensor, ...], Tensors]:
        """Outputs, and gradients by input.

        Args:
            given: Random tensors to use instead of a draw.
        """
        outputs = self._outputs(given)
        gradients = torch.autograd.grad(outputs, list(self.inputs.values()), self._cotangents(outputs))
        named = {f"d_{name}": gradient for name, gradient in zip(self.inputs, gradients, strict=True)}
        return tuple(output.detach() for output in outputs), named

    def _outputs(self, given: Tensors | None = None) -> tuple[Tensor, ...]:
        drawn = given if given is not None else self.draw(self.size) if self.draw is not None else {}
        return self.function(self.inputs | drawn, self.size)

    def _cotangents(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """What flows back into the outputs: seeded, the same for all contestants, made once."""
        if not self.cotangents:
            source = generator()
            self.cotangents = [torch.randn(output.shape, generator=source).to(output.dtype) for output in outputs]
        return self.cotangents


def leaves(tensors: Tensors, dtype: torch.dtype = torch.float32) -> Tensors:
    """Copies in a dtype that ask for a gradient."""
    return {name: tensor.detach().to(dtype, copy=True).requires_grad_() for name, tensor in tensors.items()}


def build(entry: Entry, size: Size, name: str) -> Contestant | None:
    """One contestant, or None where the entry has no such one."""
    inputs = entry.inputs(size)
    if name == "ours":
        return Contestant(name, "ours", entry.ours, leaves(inputs), size)
    if name == "eager":
        return Contestant(name, "eager torch", entry.eager, leaves(inputs), size, entry.draw)
    if name == "compile":
        torch.compiler.reset()  # sizes share the code of one function, and torch only keeps so many variants of it
        compiled: Forward = torch.compile(entry.eager, fullgraph=True, dynamic=False)
        return Contestant(name, "torch.compile", compiled, leaves(inputs), size, entry.draw)
    if entry.bound is None:
        return None
    own = leaves(entry.bound.inputs(inputs, size))
    return Contestant(name, f"{entry.bound.name} alone", entry.bound.forward, own, size)


def build_reference(entry: Entry, size: Size) -> Contestant:
    """The float64 reference on the inputs of `size`, with the noise that ours draws."""
    inputs = leaves(entry.inputs(size), torch.float64)
    return Contestant("reference", "float64 reference", entry.reference, inputs, size, entry.reference_draw)
