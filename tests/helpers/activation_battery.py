"""What the elementwise ops inherit beyond the battery: 50-digit accuracy, extremes, limits, the NaN policy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from helpers.accuracy import assert_accurate, assert_nan_stays_in_its_element, moments_and_gradients, points
from helpers.bad_inputs import BAD_BACKENDS, Bad, bad, bad_tensor
from helpers.battery import BACKENDS, DTYPES, OpBattery
from helpers.cases import ActivationCase

BAD_MOMENTS: tuple[Bad, ...] = (
    *BAD_BACKENDS,
    *bad_tensor("mean"),
    *bad_tensor("var", like="mean"),
    bad("var of another shape", ValueError, r"var: expected shape \[3, 5\], got \[3, 4\]", var=lambda var: var[:, :4]),
    bad("var not broadcast", ValueError, r"var: expected shape \[3, 5\], got \[1, 5\]", var=lambda var: var[:1]),
    bad("var is transposed", ValueError, r"var: expected shape \[3, 5\], got \[5, 3\]", var=Tensor.t),
    bad(
        "mean on meta",
        ValueError,
        r"var: expected the device of mean, meta, got cpu",
        mean=lambda mean: mean.to("meta"),
    ),
)


class ActivationBattery(ActivationCase, OpBattery):
    """Moments of one activation f; `parameters` are the values of its parameter that are tested."""

    activation: ClassVar[str]
    """Its name in tests/helpers/accuracy.py and tests/helpers/oracle.py."""
    parameters: ClassVar[tuple[float, ...]]
    gradcheck_parameters: ClassVar[tuple[float, ...]]
    plain: ClassVar[Callable[[Tensor, float], Tensor]]
    """f itself."""

    twice_differentiable = frozenset({"reference"})

    def with_parameter(self, parameter: float, backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        super().pytest_generate_tests(metafunc)
        if "parameter" in metafunc.fixturenames:
            chosen = self.gradcheck_parameters if "gradcheck" in metafunc.function.__name__ else self.parameters
            metafunc.parametrize("parameter", chosen)

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_held_out_accuracy(self, parameter, dtype, backend):
        got = moments_and_gradients(self.with_parameter(parameter, backend), *points(dtype))
        assert_accurate(got, self.activation, parameter, backend)

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_extreme_inputs_stay_finite(self, parameter, dtype, backend):
        sizes = [0.0, 1e-45, 1e-40, 1e-38, 1e-20, 1e-8, 1e-3, 0.1, 1, 10, 20, 87, 88, 89, 104, 300, 709, 1e3, 1e4]
        mean = torch.tensor(sizes + [-size for size in sizes], dtype=torch.float64).to(dtype)
        tiny = torch.tensor([0.0, 5e-324, 1e-310, 1e-290, 1e-200, 1e-45, 1e-40, 1e-39, 1.2e-38], dtype=torch.float64)
        var = torch.cat([tiny, torch.logspace(-37, 8, 300, dtype=torch.float64)]).to(dtype)
        mean, var = torch.meshgrid(mean, var, indexing="ij")
        got = moments_and_gradients(self.with_parameter(parameter, backend), mean, var)
        assert got.isfinite().all()
        assert (got[1] >= 0).all()
        # |E f(x) − f(m)| ≤ L E|x − m| and Var f(x) ≤ L² Var x for a Lipschitz constant L, plus rounding.
        steepest, eps = max(1.0, parameter), 64 * torch.finfo(dtype).eps
        room = steepest * math.sqrt(2 / math.pi) * var.sqrt() + eps * (mean.abs() + var.sqrt() + 1e-30)
        assert ((got[0] - type(self).plain(mean, parameter)).abs() <= room).all()
        resolved = (var == 0) | (var >= 1e-29)  # below a std of 1e-15, 1 / var would leave the range of float32
        assert (got[1] <= steepest**2 * var * (1 + eps))[resolved].all()

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("zero", [0.0, -0.0])
    def test_zero_variance_is_the_deterministic_limit(self, parameter, zero, dtype, backend):
        size = torch.logspace(-6, 4, 101, dtype=torch.float64)
        mean = torch.cat([-size, torch.zeros(1), size]).to(dtype)
        got = moments_and_gradients(self.with_parameter(parameter, backend), mean, torch.full_like(mean, zero))
        x = mean.double().requires_grad_()
        f = type(self).plain(x, parameter)
        (derivative,) = torch.autograd.grad(f.sum(), x)
        square = derivative.square()
        at_kink = mean == 0  # where the two sides differ, the gradient is the mean of both
        derivative = torch.where(at_kink, (1 + parameter) / 2, derivative)
        square = torch.where(at_kink, (1 + parameter**2) / 2, square)
        eps = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(got[0].double(), f.detach(), rtol=eps, atol=0)
        assert (got[1] == 0).all()
        torch.testing.assert_close(got[2].double(), derivative, rtol=eps, atol=torch.finfo(dtype).tiny)
        assert got[3].isfinite().all()
        assert got[4].abs().max() <= torch.finfo(dtype).tiny ** 0.5  # 0 but for products with the smallest std
        torch.testing.assert_close(got[5].double(), square, rtol=2 * eps, atol=torch.finfo(dtype).tiny)

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_nan_and_negative_variance_touch_only_their_elements(self, parameter, dtype, backend):
        assert_nan_stays_in_its_element(self.with_parameter(parameter, backend), dtype)

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize(("value", "shown"), [(-0.25, r"-0\.25"), (math.nan, "nan")])
    def test_values_are_checked_on_request(self, value, shown, backend, monkeypatch):
        inputs = self.make_inputs((3, 5), torch.float32)
        monkeypatch.setenv("P3_CHECK_VALUES", "1")
        self.call(inputs, backend)
        inputs["var"][1, 2] = value
        with pytest.raises(ValueError, match=rf"var: expected values >= 0, got 1 that are not, the first {shown}"):
            self.call(inputs, backend)
        monkeypatch.setenv("P3_CHECK_VALUES", "0")
        assert self.call(inputs, backend)[1].isnan().sum() == 1

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_gradcheck_with_parameter(self, parameter, backend):
        mean = torch.tensor([-3.0, -0.7, -0.02, 0.01, 0.5, 2.0], dtype=torch.float64).repeat(3)
        var = torch.tensor([1e-3, 0.1, 2.0], dtype=torch.float64).repeat_interleave(6)
        leaves = [mean.requires_grad_(), var.requires_grad_()]
        assert torch.autograd.gradcheck(self.with_parameter(parameter, backend), leaves)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_an_element_does_not_depend_on_its_place(self, dtype):
        """Whole registers, partial ones and threads' borders give one and the same number."""
        inputs = self.make_inputs((8201,), dtype)
        op = functools.partial(type(self).op, backend="cpu")
        whole = moments_and_gradients(op, **inputs)
        for begin, end in [(0, 1), (0, 37), (1, 36), (4090, 4105), (8200, 8201)]:
            part = moments_and_gradients(op, *(tensor[begin:end] for tensor in inputs.values()))
            assert torch.equal(part, whole[:, begin:end])
