from __future__ import annotations

import math

import pytest
import torch
from helpers.battery import run
from helpers.device_cases import MixtureLogProbCases

import p3kernels


class TestMixtureLogProb(MixtureLogProbCases):
    backend = "cuda"


class TestMixtureLogProbRowStd(MixtureLogProbCases):
    """std [B, A]."""

    backend = "cuda"
    row_std = True
    # What does not look at std has been tested above.
    test_compile_fullgraph = None
    test_compile_with_dynamic_shapes = None
    test_gradients_only_where_asked = None
    test_other_dtypes_are_refused = None


@pytest.mark.parametrize("actions", [31, 32, 33, 64, 65, 150])
def test_actions_beyond_a_warp_and_beyond_the_registers(actions):
    battery = TestMixtureLogProb()
    battery.assert_true_to_reference(battery.make_inputs((5, 6, actions), torch.float32), "odd")


@pytest.mark.parametrize("far", [math.inf, -math.inf, 1e30])
def test_a_row_without_likelihood_is_minus_infinity_with_zero_gradient(far):
    inputs = TestMixtureLogProb().make_inputs((6, 5, 4), torch.float32)
    inputs["action"][2] = far
    outputs, gradients = run(TestMixtureLogProb().call, inputs)
    assert outputs[0][2] == -math.inf
    assert outputs[0][[0, 1, 3, 4]].isfinite().all()
    assert gradients["action"][2].count_nonzero() == 0
    assert gradients["means"][:, 2].count_nonzero() == 0
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_some_samples_far_away_in_any_order():
    action, std = torch.zeros(1, 3), torch.ones(3)
    means = torch.tensor([1e30, 0.5, 1e20, 0.0, 300.0, 1.0, 1e30])[:, None, None].expand(7, 1, 3).contiguous()
    for order in (torch.arange(7), torch.arange(6, -1, -1), torch.tensor([4, 0, 6, 2, 1, 3, 5])):
        got = p3kernels.mixture_log_prob(action, means[order], std, backend="cuda")
        expected = p3kernels.mixture_log_prob(action.double(), means.double(), std.double(), backend="reference")
        torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=0)


def test_nan_stays_in_its_row():
    inputs = TestMixtureLogProb().make_inputs((6, 5, 4), torch.float32)
    inputs["means"][3, 1, 2] = math.nan
    (out,) = TestMixtureLogProb().call(inputs)
    assert out.isnan().tolist() == [False, True, False, False, False]
