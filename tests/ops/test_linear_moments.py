from __future__ import annotations

import pytest
import torch
from helpers import layered
from helpers.bad_inputs import BAD_BACKENDS, bad_tensor
from helpers.battery import BACKENDS, OpBattery
from helpers.cases import LinearMomentsCase
from hypothesis import given
from hypothesis import strategies as st

import p3kernels


class TestLinearMoments(LinearMomentsCase, OpBattery):
    thread_invariant = False
    twice_differentiable = frozenset(BACKENDS)
    bad_inputs = (
        *BAD_BACKENDS,
        *bad_tensor("mean", dimensions=2),
        *bad_tensor("var", like="mean", dimensions=2),
        *layered.bad_moments(3, 5),
        *layered.bad_layer(),
    )

    # Two matrix products, torch's own on every backend: there is no operator of ours.
    test_opcheck = test_opcheck_of_every_combination = None


@pytest.mark.parametrize("backend", BACKENDS)
def test_hand_computed(backend):
    """The last J = 2 of 3 inputs are stochastic; variances go through squared weights, the bias only to the mean."""
    mean, var = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.5, 4.0]])
    weight, bias = torch.tensor([[1.0, -1.0, 2.0], [0.0, 3.0, 0.5]]), torch.tensor([10.0, 20.0])
    out_mean, out_var = p3kernels.linear_moments(mean, var, weight, bias, backend=backend)
    assert out_mean.tolist() == [[15.0, 27.5]]
    assert out_var.tolist() == [[16.5, 5.5]]
    out_mean, _ = p3kernels.linear_moments(mean, var, weight, backend=backend)
    assert out_mean.tolist() == [[5.0, 7.5]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_stochastic_input_gives_no_variance(backend):
    _, out_var = p3kernels.linear_moments(torch.randn(4, 3), torch.zeros(4, 0), torch.randn(2, 3), backend=backend)
    assert torch.equal(out_var, torch.zeros(4, 2))


@given(st.floats(-1e3, 1e3), st.floats(0, 1e3), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_one_column_is_an_affine_map(mean, var, weight, bias):
    arguments = [torch.tensor([[value]], dtype=torch.float64) for value in (mean, var, weight)]
    out_mean, out_var = p3kernels.linear_moments(*arguments, torch.tensor([bias], dtype=torch.float64))
    # One product and one sum; the variance's square is a second product.
    assert out_mean.item() == pytest.approx(
        weight * mean + bias, rel=1e-15, abs=1e-15 * (abs(weight * mean) + abs(bias))
    )
    assert out_var.item() == pytest.approx(weight * weight * var, rel=1e-15)


def test_sampled_moments():
    """Against samples: 5 standard errors of 200,000 draws, a false alarm in 3 million for each of 8 numbers."""
    mean, var = torch.randn(1, 3, dtype=torch.float64), torch.rand(1, 2, dtype=torch.float64)
    weight, bias = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    out_mean, out_var = p3kernels.linear_moments(mean, var, weight, bias)
    x = mean.repeat(200_000, 1)
    x[:, 1:] += var.sqrt() * torch.randn(200_000, 2, dtype=torch.float64)
    y = x @ weight.t() + bias
    assert ((y.mean(0) - out_mean[0]).abs() <= 5 * (out_var[0] / 200_000).sqrt()).all()
    assert ((y.var(0) - out_var[0]).abs() <= 5 * out_var[0] * (2 / 200_000) ** 0.5).all()
