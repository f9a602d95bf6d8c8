from __future__ import annotations

import pytest
import torch
from helpers import layered
from helpers.bad_inputs import BAD_BACKENDS, bad, bad_tensor
from helpers.battery import BACKENDS, OpBattery
from helpers.cases import LinearEluMomentsCase

import p3kernels


class TestLinearEluMoments(LinearEluMomentsCase, OpBattery):
    thread_invariant = False
    twice_differentiable = frozenset({"reference"})
    bad_inputs = (
        *BAD_BACKENDS,
        *bad_tensor("mean", dimensions=2),
        *bad_tensor("var", like="mean", dimensions=2),
        *layered.bad_moments(3, 5),
        *layered.bad_layer(),
        bad("alpha zero", ValueError, r"alpha: expected a finite number > 0, got 0", alpha=0),
        bad("alpha nan", ValueError, r"alpha: expected a finite number > 0, got nan", alpha=float("nan")),
    )

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("alpha", [0.5, 1.0, 1.7])
    def test_gradcheck_with_alpha(self, alpha, backend):
        inputs = self.make_inputs((2, 3, 2, 3), torch.float64)
        inputs["var"] *= 0.05  # near zero, not at it

        def function(*tensors):
            return p3kernels.linear_elu_moments(*tensors, alpha, backend=backend)

        assert torch.autograd.gradcheck(function, [tensor.requires_grad_() for tensor in inputs.values()])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [True, False])
def test_is_the_composition(bias, backend):
    mean, var, weight = torch.randn(9, 6), torch.rand(9, 4), torch.randn(5, 6)
    offset = torch.randn(5) if bias else None
    fused = p3kernels.linear_elu_moments(mean, var, weight, offset, 0.8, backend=backend)
    parts = p3kernels.elu_moments(*p3kernels.linear_moments(mean, var, weight, offset), 0.8, backend=backend)
    for got, expected in zip(fused, parts, strict=True):
        # The bias is added in the activation kernel instead of the product: one rounding apart.
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_variance_is_the_layer(backend):
    mean, weight, bias = torch.randn(9, 6), torch.randn(5, 6), torch.randn(5)
    for var in (torch.zeros(9, 6), torch.zeros(9, 0)):
        out_mean, out_var = p3kernels.linear_elu_moments(mean, var, weight, bias, backend=backend)
        expected = torch.nn.functional.elu(torch.nn.functional.linear(mean, weight, bias))
        torch.testing.assert_close(out_mean, expected, rtol=1e-6, atol=1e-6)  # a few float32 roundings
        assert torch.equal(out_var, torch.zeros(9, 5))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("poison", ["mean", "var"])
def test_nan_stays_in_its_row(poison, backend):
    inputs = {"mean": torch.randn(9, 6), "var": torch.rand(9, 4)}
    inputs[poison][4, 1] = float("nan")
    outputs = p3kernels.linear_elu_moments(**inputs, weight=torch.randn(5, 6), backend=backend)
    for out in outputs:
        assert out[4].isnan().all()
        assert out[[0, 1, 2, 3, 5, 6, 7, 8]].isfinite().all()
