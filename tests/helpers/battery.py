"""The checks that every op inherits: a test class gives inputs and the plain twin, and gets the rest.

Inputs are a flat dict of floating-point tensors, all differentiable; "weights.0", "weights.1", … become one list
argument. Truth is the twin in float64 on the same numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from helpers.bad_inputs import Bad
from p3kernels.device_check.compare import sliced, transposed
from p3kernels.device_check.ops import Inputs, grouped

BACKENDS = ("reference", "cpu")
SIZES = ("one", "odd", "prime", "empty", "large")
DTYPES = (torch.float32, torch.float64)

Function = Callable[[Inputs], tuple[Tensor, ...]]


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def cotangents_of(outputs: Iterable[Tensor]) -> list[Tensor]:
    """Incoming gradients, the same for every dtype and call; positive, so that a lone element does not cancel."""
    generator = torch.Generator().manual_seed(7)
    return [0.5 + torch.rand(out.shape, generator=generator, dtype=torch.float64).to(out) for out in outputs]


def run(
    function: Function, inputs: Inputs, wanted: Sequence[str] | None = None
) -> tuple[tuple[Tensor, ...], dict[str, Tensor | None]]:
    """Outputs, and the gradient of every input (None where not wanted)."""
    wanted = list(inputs) if wanted is None else wanted
    leaves = {name: tensor.detach().requires_grad_(name in wanted) for name, tensor in inputs.items()}
    outputs = as_tuple(function(leaves))
    pairs = [pair for pair in zip(outputs, cotangents_of(outputs), strict=True) if pair[0].requires_grad]
    assert bool(pairs) == bool(wanted)
    if pairs:
        torch.autograd.backward(*zip(*pairs, strict=True))
    return tuple(out.detach() for out in outputs), {name: leaf.grad for name, leaf in leaves.items()}


def one_element(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, one number in all places, as `out.sum().backward()` brings it."""
    return tensor.view(-1)[:1].expand(tensor.shape)


class OperatorCalls(TorchDispatchMode):
    """The calls of our operators from here on, one of every kind: operator and arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "p3kernels":
            # A backward operator refuses to be differentiated.
            given = tree_map_only(Tensor, Tensor.detach, args) if "_backward_" in func.name() else args
            signs = tree_map_only(Tensor, lambda tensor: f"{list(tensor.shape)} {tensor.requires_grad}", given)
            self.found.setdefault(f"{func.name()} {signs}", (func, given))
        return func(*args, **(kwargs or {}))


def operator_calls(
    functions: Sequence[Function], inputs: Inputs, *, every: bool = True
) -> list[tuple[Any, tuple[Any, ...]]]:
    """What the functions call of our operators: with all gradients, the first input's alone, and none.

    Args:
        functions: What is called.
        inputs: With what.
        every: Whether all functions are called in all three ways, or the first one alone and the others with all
            gradients.
    """
    names = list(inputs)
    with OperatorCalls() as calls:
        for function in functions:
            for wanted in (names, names[:1], []) if every or function is functions[0] else (names,):
                leaves = {name: tensor.detach().requires_grad_(name in wanted) for name, tensor in inputs.items()}
                outputs = as_tuple(function(leaves))
                if wanted:
                    torch.autograd.backward(outputs, cotangents_of(outputs))
    return list(calls.found.values())


class OpBattery:
    """Inherit beside a case of helpers/cases.py, say what the backends can do, and the op is tested."""

    backends: ClassVar[tuple[str, ...]] = BACKENDS
    operator_backend: ClassVar[str] = "cpu"
    """Whose torch operators are checked, and compiled for dynamic shapes."""
    dtypes: ClassVar[tuple[torch.dtype, ...]] = DTYPES
    """What the backends compute in; the last is the most exact."""
    layout_invariant: ClassVar[bool] = False
    """Whether results are bitwise the same for every layout of the inputs; torch's products may round differently."""
    bitwise: ClassVar[bool] = False
    """Whether they are for every layout of incoming gradients, for every set of wanted ones, and when compiled."""
    op: ClassVar[Callable[..., Any]]
    """The public op."""
    reference: ClassVar[Callable[..., Any]]
    """The same as plain torch."""
    sizes: ClassVar[dict[str, tuple[int, ...]]]
    """`make_inputs`' argument for every name in SIZES; "large" is above the CPU backend's chunk or tile."""
    options: ClassVar[dict[str, Any]] = {}
    """Arguments of the op and the twin that are not tensors."""
    rounding: ClassVar[float]
    """Allowed on top of twice the twin's own error, in eps of the largest value; the subclass says where it is from."""
    thread_invariant: ClassVar[bool] = True
    """Whether results are bitwise the same for every thread count; matrix products may round differently."""
    twice_differentiable: ClassVar[frozenset[str]] = frozenset()
    """Backends with second derivatives."""
    once_message: ClassVar[str] = "cannot differentiate twice"
    compile_backend: ClassVar[str] = "aot_eager"
    """What compiles the CPU backend's op; the reference is compiled by "aot_eager" always, which is quick."""
    bad_inputs: ClassVar[tuple[Bad, ...]]
    opchecked: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    """Arguments with which the op's operators are checked."""

    def make_inputs(self, size: tuple[int, ...], dtype: torch.dtype) -> Inputs:
        raise NotImplementedError

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        return {**grouped(inputs), **self.options}

    def call(self, inputs: Inputs, backend: str | None) -> tuple[Tensor, ...]:
        return as_tuple(type(self).op(**self.arguments(inputs), backend=backend))

    def twin(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return as_tuple(type(self).reference(**self.arguments(inputs)))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        marks = metafunc.definition.iter_markers("parametrize")
        open_names = set(metafunc.fixturenames) - {name for mark in marks for name in str(mark.args[0]).split(",")}
        if "bad_input" in open_names:
            metafunc.parametrize("bad_input", self.bad_inputs, ids=lambda bad_input: bad_input.name)
        if "backend" in open_names:
            metafunc.parametrize("backend", self.backends)
        if "dtype" in open_names:
            metafunc.parametrize("dtype", self.dtypes, ids=str)

    def on(self, backend: str | None) -> Function:
        return lambda inputs: self.call(inputs, backend)

    def assert_near(self, name: str, actual: Tensor, exact: Tensor, plain: Tensor | None = None) -> None:
        """error(actual) ≤ 2 · error(plain torch of the same dtype) + rounding · eps · largest value."""
        assert actual.shape == exact.shape, name
        if exact.numel() == 0:
            return
        error = (actual.double() - exact.double()).abs().max()
        own = (plain.double() - exact.double()).abs().max() if plain is not None else 0.0
        bound = 2 * own + self.rounding * torch.finfo(actual.dtype).eps * exact.abs().max().double()
        assert error <= bound, f"{name}: error {error:.3e}, allowed {bound:.3e}"

    def assert_equal(self, name: str, actual: Tensor, expected: Tensor) -> None:
        """Bitwise where the backends are."""
        if self.bitwise:
            assert torch.equal(actual, expected), name
        else:
            self.assert_near(name, actual, expected)

    def assert_same(self, actual: tuple[Any, Any], expected: tuple[Any, Any], *, bitwise: bool) -> None:
        """Outputs and gradients of two `run`s."""
        outputs = {f"output {index}": pair for index, pair in enumerate(zip(actual[0], expected[0], strict=True))}
        gradients = {f"gradient of {name}": (actual[1][name], value) for name, value in expected[1].items()}
        for name, (value, other) in (outputs | gradients).items():
            if bitwise:
                assert torch.equal(value, other), name
            else:
                self.assert_near(name, value, other)

    def assert_true_to_reference(self, inputs: Inputs, size: str, backend: str | None = None) -> None:
        """Outputs and gradients against the twin in float64 on the same numbers; gradients in each input's dtype."""
        computed = {
            name: tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for name, tensor in inputs.items()
        }
        exact, exact_gradients = run(self.twin, {name: tensor.double() for name, tensor in inputs.items()})
        plain, plain_gradients = run(self.twin, computed)
        outputs, gradients = run(self.on(backend), inputs)
        for index, out in enumerate(outputs):
            assert out.dtype == plain[index].dtype
            self.assert_near(f"output {index}", out, exact[index], plain[index])
        for name, gradient in gradients.items():
            assert gradient.dtype == inputs[name].dtype
            assert size == "empty" or exact_gradients[name].count_nonzero() > 0
            own = plain_gradients[name].to(gradient.dtype)  # a bfloat16 gradient has bfloat16's rounding
            self.assert_near(f"gradient of {name}", gradient, exact_gradients[name], own)
            assert size != "empty" or gradient.count_nonzero() == 0

    @pytest.mark.parametrize("size", SIZES)
    def test_values_and_gradients(self, size, dtype, backend):
        self.assert_true_to_reference(self.make_inputs(self.sizes[size], dtype), size, backend)

    def test_gradient_through_one_output_alone(self, backend):
        inputs = self.make_inputs(self.sizes["odd"], self.dtypes[-1])
        for index in range(len(self.twin(inputs))):
            _, expected = run(lambda x, index=index: self.twin(x)[index], inputs)
            _, gradients = run(lambda x, index=index: self.call(x, backend)[index], inputs)
            for name, gradient in gradients.items():
                if expected[name] is None:  # the twin's graph does not reach it
                    assert gradient is None or gradient.count_nonzero() == 0
                else:
                    self.assert_near(f"output {index}, gradient of {name}", gradient, expected[name])

    @pytest.mark.parametrize("layout", [transposed, sliced])
    def test_non_contiguous_inputs(self, layout, backend):
        inputs = self.make_inputs(self.sizes["prime"], torch.float32)
        views = {name: layout(tensor) for name, tensor in inputs.items()}
        assert not all(view.is_contiguous() for view in views.values())
        self.assert_same(run(self.on(backend), views), run(self.on(backend), inputs), bitwise=self.layout_invariant)

    def test_expanded_inputs(self, backend):
        inputs = self.make_inputs(self.sizes["prime"], torch.float32)
        rows = {name: tensor[:1].clone() for name, tensor in inputs.items()}

        def from_rows(materialise: bool) -> Function:
            def function(leaves: Inputs) -> tuple[Tensor, ...]:
                whole = {name: leaf.expand_as(inputs[name]) for name, leaf in leaves.items()}
                return self.call({n: t.clone() for n, t in whole.items()} if materialise else whole, backend)

            return function

        self.assert_same(run(from_rows(False), rows), run(from_rows(True), rows), bitwise=self.layout_invariant)

    @pytest.mark.parametrize("layout", [transposed, sliced, one_element])
    def test_layout_of_incoming_gradients(self, layout, backend):
        """`out.sum().backward()` brings one number in all places; other code brings views."""
        leaves = {
            name: tensor.requires_grad_()
            for name, tensor in self.make_inputs(self.sizes["prime"], torch.float32).items()
        }
        outputs = self.call(leaves, backend)
        incoming = [layout(gradient) for gradient in cotangents_of(outputs)]
        got = torch.autograd.grad(outputs, list(leaves.values()), incoming, retain_graph=True)
        copies = [gradient.clone(memory_format=torch.contiguous_format) for gradient in incoming]
        expected = torch.autograd.grad(outputs, list(leaves.values()), copies)
        for name, gradient, value in zip(leaves, got, expected, strict=True):
            assert value.count_nonzero() > 0
            self.assert_equal(f"gradient of {name}", gradient, value)

    def test_gradients_only_where_asked(self, backend):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        names = list(inputs)
        outputs, everything = run(self.on(backend), inputs)
        for wanted in itertools.chain.from_iterable(itertools.combinations(names, n) for n in self.wanted(len(names))):
            again, gradients = run(self.on(backend), inputs, wanted)
            for a, b in zip(again, outputs, strict=True):
                self.assert_near(f"output with gradients of {wanted}", a, b)
            assert {name for name, gradient in gradients.items() if gradient is not None} == set(wanted)
            for name in wanted:
                self.assert_equal(f"gradient of {name} of {wanted}", gradients[name], everything[name])

    def wanted(self, count: int) -> Iterable[int]:
        """How many inputs at once have their gradient asked for."""
        return range(count + 1) if count <= 3 else (0, 1, count - 1)

    def test_no_gradient_graph_without_need(self, backend):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        with torch.no_grad():
            outputs = self.call({name: tensor.requires_grad_() for name, tensor in inputs.items()}, backend)
        expected, _ = run(self.on(backend), inputs)
        for out, value in zip(outputs, expected, strict=True):
            assert not out.requires_grad
            self.assert_near("output without gradients", out, value)

    @pytest.mark.parametrize("layout", [pytest.param(torch.clone, marks=pytest.mark.sweep), transposed])
    def test_opcheck(self, layout):
        """Schema, fake tensors (shapes, strides), autograd registration, AOT dispatch of each registered operator.

        Of inputs whose strides say something; those of the plain layout, which compiled ops have, in `make test-all`.
        """
        self.check_operators(layout, every=False)

    @pytest.mark.sweep
    @pytest.mark.parametrize("layout", [torch.clone, transposed])
    def test_opcheck_of_every_combination(self, layout):
        """The same with every set of gradients for each of `opchecked`."""
        self.check_operators(layout, every=True)

    def check_operators(self, layout: Callable[[Tensor], Tensor], *, every: bool) -> None:
        named = self.make_inputs(self.sizes["odd"], torch.float32)
        inputs = {name: layout(tensor) for name, tensor in named.items()}
        calls = operator_calls([self.with_arguments(changes) for changes in self.opchecked], inputs, every=every)
        assert calls
        for operator, arguments in calls:
            torch.library.opcheck(operator, arguments)

    def with_arguments(self, changes: dict[str, Any]) -> Function:
        """The op with other arguments."""
        backend = self.operator_backend
        return lambda inputs: as_tuple(type(self).op(**{**self.arguments(inputs), **changes}, backend=backend))

    def test_compile_fullgraph(self, backend):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        torch._dynamo.reset()
        compiler = self.compile_backend if backend == "cpu" else "aot_eager"
        compiled = torch.compile(self.on(backend), fullgraph=True, backend=compiler)
        self.assert_same(run(compiled, inputs), run(self.on(backend), inputs), bitwise=self.bitwise)

    def test_compile_with_dynamic_shapes(self):
        torch._dynamo.reset()
        backend = self.operator_backend
        compiled = torch.compile(self.on(backend), fullgraph=True, dynamic=True, backend="aot_eager")
        for size in ("odd", "prime"):
            inputs = self.make_inputs(self.sizes[size], torch.float32)
            self.assert_same(run(compiled, inputs), run(self.on(backend), inputs), bitwise=self.bitwise)

    def test_deterministic(self, backend, threads):
        inputs = self.make_inputs(self.sizes["large"], torch.float32)
        threads(2)
        first = run(self.on(backend), inputs)
        self.assert_same(run(self.on(backend), inputs), first, bitwise=True)
        if backend == "cpu":  # the reference is whatever torch does
            threads(1)
            self.assert_same(run(self.on(backend), inputs), first, bitwise=self.thread_invariant)

    def test_inputs_are_not_modified(self, backend):
        inputs = self.make_inputs(self.sizes["prime"], torch.float32)
        copies = {name: tensor.clone() for name, tensor in inputs.items()}
        leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
        outputs = self.call(leaves, backend)
        incoming = cotangents_of(outputs)
        torch.autograd.backward(outputs, incoming)
        for name, tensor in leaves.items():
            assert torch.equal(tensor, copies[name]), name
        for gradient, original in zip(incoming, cotangents_of(outputs), strict=True):
            assert torch.equal(gradient, original)

    @pytest.mark.parametrize("half", ["all", "first"])
    def test_autocast_computes_in_float32(self, half, backend):
        inputs = self.make_inputs(self.sizes["prime"], torch.float32)
        chosen = list(inputs)[: None if half == "all" else 1]
        low = {name: tensor.bfloat16() if name in chosen else tensor for name, tensor in inputs.items()}

        def under_autocast(leaves: Inputs) -> tuple[Tensor, ...]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.call(leaves, backend)

        outputs, gradients = run(under_autocast, low)
        expected, expected_gradients = run(self.on(backend), {name: tensor.float() for name, tensor in low.items()})
        for out, value in zip(outputs, expected, strict=True):
            assert out.dtype == torch.float32
            assert torch.equal(out, value)
        for name, gradient in gradients.items():
            assert torch.equal(gradient, expected_gradients[name].to(low[name].dtype)), name

    def test_gradcheck(self, backend):
        self.check_gradient(self.make_inputs(self.sizes["odd"], torch.float64), backend)

    def check_gradient(self, inputs: Inputs, backend: str, check: Callable[..., bool] = gradcheck) -> None:
        """Finite differences in float64; the tolerances are gradcheck's own (1e-6 step, 1e-5 + 1e-3 relative)."""
        leaves = [tensor.detach().double().requires_grad_() for tensor in inputs.values()]
        assert check(lambda *tensors: self.call(dict(zip(inputs, tensors, strict=True)), backend), leaves)

    def test_second_derivative(self, backend):
        inputs = self.make_inputs(self.sizes["odd"], self.dtypes[-1])
        if backend in self.twice_differentiable:
            self.check_gradient(inputs, backend, gradgradcheck)
            return
        leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
        loss = sum(out.sum() for out in self.call(leaves, backend))
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        penalised = loss + sum(gradient.square().sum() for gradient in gradients)
        with pytest.raises(RuntimeError, match=self.once_message):
            penalised.backward()

    def test_bad_input(self, bad_input):
        arguments = {"backend": None, **self.arguments(self.make_inputs(self.sizes["odd"], torch.float32))}
        for name, change in bad_input.changes.items():
            arguments[name] = change(arguments[name]) if callable(change) else change
        with pytest.raises(bad_input.error, match=bad_input.message):
            type(self).op(**arguments)
