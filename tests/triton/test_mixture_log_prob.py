from __future__ import annotations

import math

import pytest
import torch
from helpers.device_battery import launches  # noqa: F401  # a fixture
from helpers.device_cases import MixtureLogProbCases
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import p3kernels
from triton_kernels import mixture_log_prob as kernel
from triton_kernels.proof.record import recording


class TestMixtureLogProb(MixtureLogProbCases):
    pass


class TestMixtureLogProbRowStd(MixtureLogProbCases):
    """std [B, A]."""

    row_std = True
    # What does not look at std has been tested above.
    test_compile_fullgraph = None
    test_compile_with_dynamic_shapes = None
    test_gradients_only_where_asked = None
    test_other_dtypes_are_refused = None


def log_prob(action, means, std):
    return p3kernels.mixture_log_prob(action, means, std, backend="triton")


def test_is_torchs_mixture():
    action, means, std = torch.randn(11, 4), torch.randn(6, 11, 4), 0.2 + torch.rand(4)
    mixture = MixtureSameFamily(
        Categorical(logits=torch.zeros(11, 6).double()), Independent(Normal(means.transpose(0, 1).double(), std), 1)
    )
    expected = mixture.log_prob(action.double())
    # Four squares and a constant: under 16 roundings of the largest.
    assert (log_prob(action, means, std) - expected).abs().max() <= 16 * 2**-23 * expected.abs().max()


@pytest.mark.parametrize("far", [math.inf, -math.inf, 1e30])
def test_a_row_without_likelihood_is_minus_infinity_with_zero_gradient(far):
    action, means, std = torch.randn(4, 3), torch.randn(5, 4, 3), torch.rand(3) + 0.1
    action[2, 1] = far
    leaves = [tensor.requires_grad_() for tensor in (action, means, std)]
    out = log_prob(*leaves)
    assert out[2] == -math.inf
    assert out[[0, 1, 3]].isfinite().all()
    d_action, d_means, d_std = torch.autograd.grad(out, leaves, torch.ones(4))
    assert (d_action[2] == 0).all()
    assert (d_means[:, 2] == 0).all()
    alone = [leaf.detach().requires_grad_() for leaf in (action[[0, 1, 3]], means[:, [0, 1, 3]], std)]
    expected = torch.autograd.grad(log_prob(*alone).sum(), alone)
    for gradient, value in zip((d_action[[0, 1, 3]], d_means[:, [0, 1, 3]], d_std), expected, strict=True):
        assert value.count_nonzero() > 0
        torch.testing.assert_close(gradient, value, rtol=64 * 2**-23, atol=0)  # a few roundings


@pytest.mark.parametrize("dead", [0, 2, 4])
def test_a_sample_without_likelihood_counts_as_zero(dead):
    """Wherever it comes in the running maximum."""
    action, means, std = torch.randn(4, 3), torch.randn(5, 4, 3), torch.rand(3) + 0.1
    means[dead] = 1e30
    leaf = means.requires_grad_()
    got = log_prob(action, leaf, std)
    others = [index for index in range(5) if index != dead]
    expected = log_prob(action, means.detach()[others], std) + math.log(4 / 5)
    torch.testing.assert_close(got.detach(), expected, rtol=1e-6, atol=1e-6)  # float32: a few roundings
    (gradient,) = torch.autograd.grad(got.sum(), leaf)
    assert (gradient[dead] == 0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("poison", ["action", "means", "sample first", "sample last"])
def test_nan_stays_in_its_row(poison):
    inputs = {"action": torch.randn(4, 3), "means": torch.randn(5, 4, 3), "std": torch.rand(3) + 0.1}
    if poison in inputs:
        inputs[poison][..., 2, 1] = math.nan
    else:
        inputs["means"][0 if poison == "sample first" else 4, 2, 1] = math.nan
    leaf = inputs["means"].requires_grad_()
    out = log_prob(**inputs)
    assert out.isnan().tolist() == [False, False, True, False]
    (gradient,) = torch.autograd.grad(out.sum(), leaf)
    assert gradient[:, 2].isnan().any()
    assert gradient[:, [0, 1, 3]].isfinite().all()


def test_nan_after_nothing_but_zeros_is_nan():
    means = torch.full((3, 1, 2), 1e30)
    means[2] = math.nan
    assert log_prob(torch.zeros(1, 2), means, torch.ones(2)).isnan()
    assert log_prob(torch.zeros(1, 2), means.flip(0), torch.ones(2)).isnan()


def test_weights_of_far_samples_still_sum_to_one():
    action, means, std = torch.full((1, 1), 100.0), torch.tensor([-0.5, 0.25, 0.5])[:, None, None], torch.ones(1)
    leaves = [action.requires_grad_(), means.requires_grad_()]
    d_action, d_means = torch.autograd.grad(log_prob(*leaves, std).sum(), leaves)
    weights = d_means / (action - means).detach()
    # A weight is e^x, x a difference of exponents near −5000: at most 4 roundings of that.
    assert weights.sum().item() == pytest.approx(1, abs=4 * 5000 * 2**-23)
    torch.testing.assert_close(d_means.sum(), -d_action.sum())


@pytest.mark.parametrize("row_std", [False, True])
@pytest.mark.parametrize("block", [4, 64])
def test_blocks_change_nothing_but_rounding(block, row_std, monkeypatch):
    battery = TestMixtureLogProbRowStd() if row_std else TestMixtureLogProb()
    inputs = battery.make_inputs((3, 71, 5), torch.float32)
    original = kernel.block_config
    monkeypatch.setattr(kernel, "block_config", lambda *args: {**original(*args), "BLOCK_B": block})
    battery.assert_true_to_reference(inputs, "large")


def test_two_launches(launches):  # noqa: F811
    inputs = TestMixtureLogProb().make_inputs((3, 71, 5), torch.float32)
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    log_prob(*leaves).sum().backward()
    assert launches == ["_mixture_log_prob_fwd_kernel", "_mixture_log_prob_bwd_kernel"]


def test_means_far_apart_in_memory_are_copied():
    """Offsets within a block are 32-bit: means whose rows or columns lie further apart take a copy, others none."""
    with recording() as found, torch.device("meta"):
        far = torch.empty_strided((2, 8, 3), (1, 2**22, 1))
        kernel.forward(torch.empty(8, 3), far, torch.empty(3))
        near = torch.empty(3, 8, 2).permute(2, 1, 0)
        kernel.forward(torch.empty(8, 3), near, torch.empty(3))
    copied, kept = (launch.arguments for launch in found)
    assert (copied["stride_sample"], copied["stride_row"], copied["stride_column"]) == (24, 3, 1)
    assert (kept["stride_sample"], kept["stride_row"], kept["stride_column"]) == near.stride()


def test_many_actions():
    """A block is one row then."""
    TestMixtureLogProb().assert_true_to_reference(TestMixtureLogProb().make_inputs((2, 3, 600), torch.float32), "odd")
