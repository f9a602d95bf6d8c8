"""The checks that every op inherits on a backend for GPUs, executed on a CPU; truth as in tests/helpers/battery.py.

Triton kernels run in the interpreter, CUDA kernels through the shim. On a GPU `pytest -m gpu tests/triton tests/cuda`
runs the same checks there: see `on_gpu`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from helpers.battery import Inputs, OpBattery, run

place = {"device": "cpu"}
"""Where the inputs of the batteries go."""


def on_gpu(items: list[pytest.Item], folder: Path) -> list[pytest.Item]:
    """Marks the batteries of a folder to run on a GPU, and returns its other tests, which need the CPU."""
    place["device"] = "cuda"
    others = []
    for item in items:
        if folder in item.path.parents:
            if issubclass(getattr(item, "cls", None) or object, DeviceBattery):
                item.add_marker(pytest.mark.gpu)
            elif item.get_closest_marker("gpu") is None:
                others.append(item)
    return others


class DeviceBattery(OpBattery):
    """The checks of the other backends, in float32 and bitwise, and with bfloat16."""

    backend: ClassVar[str] = "triton"
    dtypes = (torch.float32,)
    layout_invariant = True
    bitwise = True
    test_gradcheck = None  # there is no float64
    test_bad_input = None  # the checks are those of the other backends

    @classmethod
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.backends, cls.operator_backend = (cls.backend,), cls.backend
        if "make_inputs" in vars(cls):
            made = cls.make_inputs

            def make_inputs(self: Any, size: tuple[int, ...], dtype: torch.dtype) -> Inputs:
                return {name: tensor.to(place["device"]) for name, tensor in made(self, size, dtype).items()}

            cls.make_inputs = make_inputs

    def call(self, inputs: Inputs, backend: str | None = None) -> tuple[Tensor, ...]:
        return super().call(inputs, self.backend)

    def wanted(self, count: int) -> Iterable[int]:
        return range(count + 1) if count <= 2 else (0, 1)

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

    def test_autocast_computes_in_float32(self):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        expected, _ = run(self.call, inputs)
        with torch.autocast(place["device"], dtype=torch.bfloat16):
            outputs = self.call(inputs)
        for out, value in zip(outputs, expected, strict=True):
            assert out.dtype == torch.float32
            self.assert_near("output under autocast", out, value)


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
