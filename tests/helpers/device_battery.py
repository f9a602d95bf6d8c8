"""The checks that every op inherits on a backend for GPUs, executed on a CPU; truth as in tests/helpers/battery.py.

Triton kernels run in the interpreter, CUDA kernels through the shim.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from helpers.battery import Inputs, OpBattery, as_tuple, cotangents_of, operator_calls, run, sliced, transposed

SIZES = ("one", "odd", "prime", "empty", "large")


def one_element(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, one number in all places, as `out.sum().backward()` brings it."""
    return tensor.view(-1)[:1].expand(tensor.shape)


class DeviceBattery:
    """Inherit, fill in what is declared here, and the op is tested."""

    backend: ClassVar[str] = "triton"
    op: ClassVar[Callable[..., Any]]
    reference: ClassVar[Callable[..., Any]]
    sizes: ClassVar[dict[str, tuple[int, ...]]]
    """`make_inputs`' argument for every name in SIZES; "large" is above the blocks, with a rest."""
    options: ClassVar[dict[str, Any]] = {}
    rounding: ClassVar[float]
    """Allowed on top of twice the error of plain torch, in eps of the largest value."""

    opchecked: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    """Arguments with which the op's operators are checked."""
    layout_invariant: ClassVar[bool] = True
    """Whether results are bitwise the same for every layout of the inputs; torch's products may round differently."""

    # The comparisons are the other backends' own.
    arguments = OpBattery.arguments
    twin = OpBattery.twin
    assert_near = OpBattery.assert_near
    assert_same = OpBattery.assert_same

    def make_inputs(self, size: tuple[int, ...], dtype: torch.dtype) -> Inputs:
        raise NotImplementedError

    def call(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return as_tuple(type(self).op(**self.arguments(inputs), backend=self.backend))

    def assert_true_to_reference(self, inputs: Inputs, size: str) -> None:
        """Outputs and gradients against the twin in float64 on the same numbers; gradients in each input's dtype."""
        exact, exact_gradients = run(self.twin, {name: tensor.double() for name, tensor in inputs.items()})
        plain, plain_gradients = run(self.twin, {name: tensor.float() for name, tensor in inputs.items()})
        outputs, gradients = run(self.call, inputs)
        for index, out in enumerate(outputs):
            assert out.dtype == torch.float32
            self.assert_near(f"output {index}", out, exact[index], plain[index])
        for name, gradient in gradients.items():
            assert gradient.dtype == inputs[name].dtype
            assert size == "empty" or exact_gradients[name].count_nonzero() > 0
            own = plain_gradients[name].to(gradient.dtype)  # a bfloat16 gradient has bfloat16's rounding
            self.assert_near(f"gradient of {name}", gradient, exact_gradients[name], own)
            assert size != "empty" or gradient.count_nonzero() == 0

    @pytest.mark.parametrize("size", SIZES)
    def test_values_and_gradients(self, size):
        self.assert_true_to_reference(self.make_inputs(self.sizes[size], torch.float32), size)

    def test_bfloat16_inputs(self):
        inputs = self.make_inputs(self.sizes["prime"], torch.float32)
        self.assert_true_to_reference({name: tensor.bfloat16() for name, tensor in inputs.items()}, "prime")

    def test_dtypes_may_be_mixed(self):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        low = {name: tensor.bfloat16() if index % 2 else tensor for index, (name, tensor) in enumerate(inputs.items())}
        self.assert_true_to_reference(low, "odd")

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
    def test_other_dtypes_are_refused(self, dtype):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        for name in inputs:
            changed = {other: tensor.to(dtype) if other == name else tensor for other, tensor in inputs.items()}
            with pytest.raises(
                TypeError, match=rf": the {self.backend} backend expects float32 or bfloat16, got float"
            ):
                self.call(changed)

    def test_gradient_through_one_output_alone(self):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        for index in range(2):
            _, expected = run(lambda x, index=index: self.twin(x)[index], inputs)
            _, gradients = run(lambda x, index=index: self.call(x)[index], inputs)
            for name, gradient in gradients.items():
                if expected[name] is None:  # the twin's graph does not reach it
                    assert gradient is None or gradient.count_nonzero() == 0
                else:
                    self.assert_near(f"output {index}, gradient of {name}", gradient, expected[name])

    @pytest.mark.parametrize("layout", [transposed, sliced])
    def test_non_contiguous_inputs(self, layout):
        inputs = self.make_inputs(self.sizes["prime"], torch.float32)
        views = {name: layout(tensor) for name, tensor in inputs.items()}
        assert not all(view.is_contiguous() for view in views.values())
        self.assert_same(run(self.call, views), run(self.call, inputs), bitwise=self.layout_invariant)

    def test_expanded_inputs(self):
        inputs = self.make_inputs(self.sizes["prime"], torch.float32)
        rows = {name: tensor[:1].clone() for name, tensor in inputs.items()}

        def expanded(leaves: Inputs) -> tuple[Tensor, ...]:
            return self.call({name: leaf.expand_as(inputs[name]) for name, leaf in leaves.items()})

        def cloned(leaves: Inputs) -> tuple[Tensor, ...]:
            return self.call({name: leaf.expand_as(inputs[name]).clone() for name, leaf in leaves.items()})

        self.assert_same(run(expanded, rows), run(cloned, rows), bitwise=self.layout_invariant)

    @pytest.mark.parametrize("layout", [transposed, sliced, one_element])
    def test_layout_of_incoming_gradients(self, layout):
        named = self.make_inputs(self.sizes["prime"], torch.float32)
        leaves = {name: tensor.requires_grad_() for name, tensor in named.items()}
        outputs = self.call(leaves)
        incoming = [layout(gradient) for gradient in cotangents_of(outputs)]
        got = torch.autograd.grad(outputs, list(leaves.values()), incoming, retain_graph=True)
        copies = [gradient.clone(memory_format=torch.contiguous_format) for gradient in incoming]
        expected = torch.autograd.grad(outputs, list(leaves.values()), copies)
        for name, gradient, value in zip(leaves, got, expected, strict=True):
            assert value.count_nonzero() > 0
            assert torch.equal(gradient, value), name

    def test_gradients_only_where_asked(self):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        names = list(inputs)
        _, everything = run(self.call, inputs)
        counts = range(len(names) + 1) if len(names) <= 2 else (0, 1)
        for wanted in itertools.chain.from_iterable(itertools.combinations(names, count) for count in counts):
            _, gradients = run(self.call, inputs, wanted)
            assert {name for name, gradient in gradients.items() if gradient is not None} == set(wanted)
            for name in wanted:
                assert torch.equal(gradients[name], everything[name]), f"gradient of {name} of {wanted}"

    def test_no_gradient_graph_without_need(self):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        with torch.no_grad():
            outputs = self.call({name: tensor.requires_grad_() for name, tensor in inputs.items()})
        expected, _ = run(self.call, inputs)
        for out, value in zip(outputs, expected, strict=True):
            assert not out.requires_grad
            self.assert_near("output without gradients", out, value)

    def test_results_are_the_same_on_every_run(self):
        inputs = self.make_inputs(self.sizes["large"], torch.float32)
        self.assert_same(run(self.call, inputs), run(self.call, inputs), bitwise=True)

    def test_inputs_are_not_modified(self):
        inputs = self.make_inputs(self.sizes["prime"], torch.float32)
        copies = {name: tensor.clone() for name, tensor in inputs.items()}
        leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
        outputs = self.call(leaves)
        incoming = cotangents_of(outputs)
        torch.autograd.backward(outputs, incoming)
        for name, tensor in leaves.items():
            assert torch.equal(tensor, copies[name]), name
        for gradient, original in zip(incoming, cotangents_of(outputs), strict=True):
            assert torch.equal(gradient, original)

    @pytest.mark.parametrize("layout", [torch.clone, transposed])
    def test_opcheck(self, layout):
        """Schema, fake tensors (shapes, strides), autograd registration, AOT dispatch of each registered operator."""
        named = self.make_inputs(self.sizes["odd"], torch.float32)
        inputs = {name: layout(tensor) for name, tensor in named.items()}
        calls = operator_calls([self.with_arguments(changes) for changes in self.opchecked], inputs)
        assert calls
        for operator, arguments in calls:
            torch.library.opcheck(operator, arguments)

    def with_arguments(self, changes: dict[str, Any]) -> Callable[[Inputs], tuple[Tensor, ...]]:
        """The op on the backend, with other arguments."""
        return lambda inputs: as_tuple(type(self).op(**{**self.arguments(inputs), **changes}, backend=self.backend))

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compile_fullgraph(self, dynamic):
        torch._dynamo.reset()
        compiled = torch.compile(self.call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for size in ("odd", "prime") if dynamic else ("odd",):
            inputs = self.make_inputs(self.sizes[size], torch.float32)
            self.assert_same(run(compiled, inputs), run(self.call, inputs), bitwise=True)

    def test_autocast_computes_in_float32(self):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        expected, _ = run(self.call, inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = self.call(inputs)
        for out, value in zip(outputs, expected, strict=True):
            assert out.dtype == torch.float32
            self.assert_near("output under autocast", out, value)

    def test_second_derivative_is_refused(self):
        named = self.make_inputs(self.sizes["odd"], torch.float32)
        leaves = {name: tensor.requires_grad_() for name, tensor in named.items()}
        loss = sum(out.sum() for out in self.call(leaves))
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        penalised = loss + sum(gradient.square().sum() for gradient in gradients)
        with pytest.raises(RuntimeError, match="cannot differentiate twice on the"):
            penalised.backward()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of every kernel launched from here on, in order."""
    from triton.runtime import interpreter

    names: list[str] = []
    original = interpreter.GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(self.fn.__name__)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", counted)
    return names
