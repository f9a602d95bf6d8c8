"""The one way an op becomes torch operators.

An op declares two `NamedTuple`s, of its inputs and its outputs, says which inputs have a gradient, and gives for each
backend a forward and a backward function. From these `Operators` makes `p3kernels::<op>_<backend>` and
`p3kernels::<op>_backward_<backend>`: schema, fake tensors, autograd. Functions take and give everything by name; where
an argument stands in a schema is known here alone.
"""

from __future__ import annotations

import functools
import importlib
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor
from torch.library import CustomOpDef

from p3kernels.backends import inside_operator
from p3kernels.records import Backward, Gradients, Inputs, Outputs, result_dtype

_SCHEMA_TYPES: dict[Any, str] = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    Sequence[Tensor]: "Tensor[]",
    Sequence[float]: "float[]",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
}


@dataclass(frozen=True)
class Kernels(Generic[Inputs, Outputs]):
    """An op on one backend."""

    forward: Callable[[Inputs], Outputs]
    backward: Callable[[Backward[Inputs, Outputs]], Gradients] | None = None
    """None where nothing has a gradient."""
    fake: Callable[[Inputs], Outputs] | None = None
    """The outputs' shapes on this backend, where it keeps more than others."""


def launched(
    module: str,
    outputs: type[Outputs],
    gradients: Sequence[str] = (),
    *,
    forward: str = "forward",
    backward: str = "backward",
) -> Kernels[Any, Outputs]:
    """Kernels by the launchers of a module, imported when they first run: triton is not imported with the package.

    Launchers take everything by name: the fields of the inputs and, a backward launcher, `d_out_<output>` of every
    output that has a gradient. They return the outputs, or the gradients, in order.

    Args:
        module: Name of the module.
        outputs: The op's `NamedTuple` of outputs.
        gradients: Names of the inputs whose gradients the backward launcher gives; empty where there is none.
        forward: Name of the forward launcher.
        backward: Name of the backward launcher.
    """

    def launch(function: str, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        found = getattr(importlib.import_module(module), function)(**arguments)
        return found if isinstance(found, tuple) else (found,)

    def run_forward(inputs: Any) -> Outputs:
        return outputs(*launch(forward, inputs._asdict()))

    def run_backward(request: Backward[Any, Any]) -> Gradients:
        came = {f"d_out_{name}": value for name, value in request.d_outputs._asdict().items() if value is not None}
        return dict(zip(gradients, launch(backward, came | request.inputs._asdict()), strict=True))

    return Kernels(run_forward, run_backward if gradients else None)


def elementwise(outputs: type[Outputs]) -> Callable[[Any], Outputs]:
    """The `fake` of an op whose outputs are contiguous and have the shape of its first input."""

    def fake(inputs: Any) -> Outputs:
        first, count = inputs[0], len(_fields(outputs))
        empty = torch.empty_like(first, dtype=result_dtype(first), memory_format=torch.contiguous_format)
        return outputs(*(torch.empty_like(empty) for _ in range(count)))

    return fake


class Operators(Generic[Inputs, Outputs]):
    """The operators of one op, two a backend.

    Args:
        name: The op's.
        inputs: A `NamedTuple` of tensors, lists of them, numbers and strings; its annotations make the schema.
        outputs: A `NamedTuple` of tensors.
        fake: The outputs' shapes and dtypes, from inputs without numbers.
        kernels: Forward and backward by backend. Those of "cpu" take CPU tensors alone.
        differentiable: Names of the inputs that have a gradient.
        saved: Names of the outputs that a backward function reads.
        kept: Names of the outputs that are there for the backward function alone, and have no gradient.
        twice: Whether the reference backend has second derivatives, which the kernels refuse.
        empty: Whether a gradient that did not come is an empty tensor to the backward functions, and not zeros.
    """

    def __init__(
        self,
        name: str,
        inputs: type[Inputs],
        outputs: type[Outputs],
        *,
        fake: Callable[[Inputs], Outputs],
        kernels: Mapping[str, Kernels[Inputs, Outputs]],
        differentiable: Collection[str] = (),
        saved: Collection[str] = (),
        kept: Collection[str] = (),
        twice: bool = True,
        empty: bool = False,
    ) -> None:
        self.name = name
        self._inputs, self._outputs, self._fake = inputs, outputs, fake
        self._differentiable, self._saved, self._twice = tuple(differentiable), tuple(saved), twice
        self._empty = empty
        self._incoming = tuple(field for field in _fields(outputs) if field not in kept)
        hints = typing.get_type_hints(inputs)
        self._lists = frozenset(field for field in _fields(inputs) if hints[field] == Sequence[Tensor])
        self._operators = {backend: self._register(backend, kernels[backend]) for backend in kernels}

    def __call__(self, backend: str, inputs: Inputs) -> Outputs:
        """Runs the operator of a backend."""
        found = self._operators[backend](*inputs)
        return self._outputs(*(found if isinstance(found, list | tuple) else (found,)))

    def _register(self, backend: str, kernels: Kernels[Inputs, Outputs]) -> CustomOpDef:
        define = functools.partial(
            torch.library.custom_op, mutates_args=(), device_types="cpu" if backend == "cpu" else None
        )
        results = ", ".join(["Tensor"] * len(_fields(self._outputs)))
        schema = f"({_schema(self._inputs)}) -> ({results})"
        forward = define(f"p3kernels::{self.name}_{backend}", schema=schema)(self._forward(kernels.forward))
        forward.register_fake(self._forward(kernels.fake or self._fake))
        if kernels.backward is None:
            return forward
        tensors = [f"Tensor d_out_{name}" for name in self._incoming] + [f"Tensor out_{name}" for name in self._saved]
        schema = f"({', '.join(tensors)}, {_schema(self._inputs)}, bool[] wanted) -> Tensor[]"
        backward = define(f"p3kernels::{self.name}_backward_{backend}", schema=schema)(self._backward(kernels.backward))
        backward.register_fake(self._backward(self._fake_gradients))
        forward.register_autograd(functools.partial(self._differentiate, backward), setup_context=self._setup_context)
        _refuse_second_derivatives(backward, backend, self._twice)
        return forward

    def _forward(self, function: Callable[[Inputs], Outputs]) -> Callable[..., Any]:
        """The function as the operator calls it: by position, and one output not in a tuple."""

        def operator(*values: Any) -> Any:
            with inside_operator():
                outputs = tuple(function(self._inputs(*values)))
            return outputs if len(outputs) > 1 else outputs[0]

        return operator

    def _backward(self, function: Callable[[Backward[Inputs, Outputs]], Gradients]) -> Callable[..., list[Tensor]]:
        """The function as the backward operator calls it: a flat list, with empty tensors where none is wanted."""

        def operator(*values: Any) -> list[Tensor]:
            first, second = len(self._incoming), len(self._incoming) + len(self._saved)
            d_outputs = dict(zip(self._incoming, (value.contiguous() for value in values[:first]), strict=True))
            outputs = dict(zip(self._saved, values[first:second], strict=True))
            inputs = self._inputs(*values[second:-1])
            wanted = frozenset(name for name, want in zip(self._differentiable, values[-1], strict=True) if want)
            request = Backward(inputs, self._some_outputs(outputs), self._some_outputs(d_outputs), wanted)
            with inside_operator():
                return self._flat(inputs, wanted, function(request))

        return operator

    def _some_outputs(self, named: Mapping[str, Tensor]) -> Outputs:
        values: list[Any] = [named.get(field) for field in _fields(self._outputs)]
        return self._outputs(*values)

    def _flat(self, inputs: Inputs, wanted: frozenset[str], gradients: Gradients) -> list[Tensor]:
        """The gradient of every differentiable input in its dtype, one tensor or more each."""
        flat: list[Tensor] = []
        for name in self._differentiable:
            like = _tensors(getattr(inputs, name))
            given = _tensors(gradients[name]) if name in wanted else [tensor.new_empty(0) for tensor in like]
            flat.extend(gradient.to(tensor.dtype) for gradient, tensor in zip(given, like, strict=True))
        return flat

    def _fake_gradients(self, request: Backward[Inputs, Outputs]) -> Gradients:
        inputs = request.inputs
        return {
            name: [tensor.new_empty(tensor.shape) for tensor in _tensors(getattr(inputs, name))]
            for name in self._differentiable
        }

    def _setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        named = dict(zip(_fields(self._inputs), inputs, strict=True))
        outputs = self._outputs(*(output if isinstance(output, list | tuple) else (output,)))
        # The inputs as they are, but every tensor by its place among those that autograd keeps.
        tensors = [getattr(outputs, name) for name in self._saved]
        ctx.places = {}
        for name, value in named.items():
            if isinstance(value, Tensor) or name in self._lists:
                ctx.places[name] = slice(len(tensors), len(tensors) + len(_tensors(value)))
                tensors.extend(_tensors(value))
        ctx.values = {name: value for name, value in named.items() if name not in ctx.places}
        ctx.set_materialize_grads(False)  # what is only kept has no gradient, and zeros of its size cost time
        ctx.save_for_backward(*tensors)

    def _differentiate(self, backward: CustomOpDef, ctx: Any, *d_outputs: Tensor | None) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        named: dict[str, Any] = {**ctx.values}
        for name, place in ctx.places.items():
            named[name] = list(tensors[place]) if name in self._lists else tensors[place.start]
        inputs = self._inputs(**named)
        needed = dict(zip(_fields(self._inputs), ctx.needs_input_grad, strict=True))
        wanted = [
            named[name] is not None and (any(needed[name]) if name in self._lists else needed[name])
            for name in self._differentiable
        ]
        came = dict(zip(_fields(self._outputs), d_outputs, strict=True))
        if all(came[name] is None for name in self._incoming):
            wanted = [False] * len(wanted)
        flat: list[Tensor] = []
        if any(wanted):
            zeros = self._zeros(inputs, came)
            incoming = [zeros[name] if came[name] is None else came[name] for name in self._incoming]
            flat = backward(*incoming, *tensors[: len(self._saved)], *inputs, wanted)
        return tuple(self._gradients(named, dict(zip(self._differentiable, wanted, strict=True)), flat).values())

    def _zeros(self, inputs: Inputs, came: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """In place of the gradients that did not come; shapes as in the forward pass, or empty."""
        if all(came[name] is not None for name in self._incoming):
            return {}
        missing = [name for name in self._incoming if came[name] is None]
        if self._empty:
            present = next(gradient for gradient in came.values() if gradient is not None)
            return {name: present.new_empty(0) for name in missing}
        shapes = self._fake(inputs)
        return {name: torch.zeros_like(getattr(shapes, name)) for name in missing}

    def _gradients(
        self, named: Mapping[str, Any], wanted: Mapping[str, bool], flat: Sequence[Tensor]
    ) -> dict[str, Any]:
        """One entry an input, as autograd takes them; `flat` as the backward operator gives it."""
        gradients: dict[str, Any] = {}
        for name in _fields(self._inputs):
            gradients[name] = [None] * len(named[name]) if name in self._lists else None
        at = 0
        for name in self._differentiable:
            count = len(_tensors(named[name]))
            if wanted[name]:
                gradients[name] = list(flat[at : at + count]) if name in self._lists else flat[at]
            at += count
        return gradients


def _fields(record: type) -> tuple[str, ...]:
    return record._fields  # type: ignore[attr-defined]


def _tensors(value: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    """The tensors of an input: one, some, or none."""
    if value is None:
        return []
    return [value] if isinstance(value, Tensor) else list(value)


def _schema(record: type) -> str:
    """The arguments of an operator, in order."""
    hints = typing.get_type_hints(record)
    return ", ".join(f"{_SCHEMA_TYPES[hints[name]]} {name}" for name in _fields(record))


def _refuse_second_derivatives(backward: CustomOpDef, backend: str, reference_has_them: bool) -> None:
    """Makes a backward operator raise where its own derivative is asked for.

    Without it torch says that the operator has no autograd formula, and not what to do.
    """
    way_out = "; backend='reference' has second derivatives" if reference_has_them else ""

    def refuse(ctx: Any, *gradients: Any) -> None:
        raise RuntimeError(f"cannot differentiate twice on the {backend} backend{way_out}")

    backward.register_autograd(refuse)
