from __future__ import annotations

import math

import pytest
import torch
from helpers.bad_inputs import BAD_BACKENDS, bad, bad_tensor
from helpers.battery import BACKENDS, DTYPES, OpBattery
from helpers.cases import MixtureLogProbCase
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import p3kernels

BAD = (
    *BAD_BACKENDS,
    *bad_tensor("action", dimensions=2),
    *bad_tensor("means", like="action", dimensions=3),
    *bad_tensor("std", like="action"),
    bad("means 2-D", ValueError, r"means: expected 3 dimensions, got shape \[3, 5\]", means=lambda means: means[0]),
    bad("no samples", ValueError, r"means: expected at least one sample, got shape \[0, 3, 5\]", means=lambda m: m[:0]),
    bad("rows", ValueError, r"means: expected shape \[7, 3, 5\], got \[7, 2, 5\]", means=lambda means: means[:, 1:]),
    bad("columns", ValueError, r"means: expected shape \[7, 3, 5\], got \[7, 3, 4\]", means=lambda m: m[..., 1:]),
    bad("std shape", ValueError, r"std: expected shape \[5\] or \[3, 5\], got \[3\]", std=torch.ones(3)),
    bad("std scalar", ValueError, r"std: expected shape \[5\] or \[3, 5\], got \[\]", std=torch.tensor(1.0)),
    bad("std broadcast", ValueError, r"std: expected shape \[5\] or \[3, 5\], got \[1, 5\]", std=torch.ones(1, 5)),
    bad(
        "no action",
        ValueError,
        r"action: expected at least one column, got shape \[3, 0\]",
        action=lambda action: action[:, :0],
        std=torch.ones(0),
    ),
    bad("on meta", ValueError, r"std: expected the device of action, meta, got cpu", action=lambda a: a.to("meta")),
)


class TestMixtureLogProb(MixtureLogProbCase, OpBattery):
    thread_invariant = True
    twice_differentiable = frozenset({"reference"})
    bad_inputs = BAD


class TestMixtureLogProbRowStd(TestMixtureLogProb):
    """std [B, A]."""

    row_std = True
    bad_inputs = (
        bad("std shape", ValueError, r"std: expected shape \[5\] or \[3, 5\], got \[5, 3\]", std=torch.Tensor.t),
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("row_std", [False, True])
def test_is_torchs_mixture(row_std, backend):
    action = torch.randn(11, 4, dtype=torch.float64, requires_grad=True)
    means = torch.randn(6, 11, 4, dtype=torch.float64, requires_grad=True)
    std = (0.2 + torch.rand(*((11, 4) if row_std else (4,)), dtype=torch.float64)).requires_grad_()
    mixture = MixtureSameFamily(
        Categorical(logits=torch.zeros(11, 6, dtype=torch.float64)),
        Independent(Normal(means.transpose(0, 1), std[:, None] if row_std else std), 1),
    )
    expected = mixture.log_prob(action)
    got = p3kernels.mixture_log_prob(action, means, std, backend=backend)
    # Float64, another order of sums of a dozen terms.
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)
    leaves = (action, means, std)
    gradients = zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), strict=True)
    for gradient, value in gradients:
        assert value.count_nonzero() > 0
        torch.testing.assert_close(gradient, value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_sample_is_the_normal(dtype, backend):
    action, mean, std = torch.randn(9, 5, dtype=dtype), torch.randn(9, 5, dtype=dtype), torch.rand(5, dtype=dtype) + 0.1
    got = p3kernels.mixture_log_prob(action, mean[None], std, backend=backend)
    expected = Normal(mean.double(), std.double()).log_prob(action.double()).sum(-1)
    # Five squares and a constant: under 16 roundings of the largest.
    bound = 16 * torch.finfo(dtype).eps * expected.abs().max()
    assert (got.double() - expected).abs().max() <= bound


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("far", [math.inf, -math.inf, "overflow"])
def test_a_row_without_likelihood_is_minus_infinity_with_zero_gradient(far, dtype, backend):
    action, means, std = torch.randn(4, 3, dtype=dtype), torch.randn(5, 4, 3, dtype=dtype), torch.rand(3, dtype=dtype)
    action[2, 1] = 1e3 * torch.finfo(dtype).max ** 0.5 if far == "overflow" else far
    leaves = [tensor.requires_grad_() for tensor in (action, means, std + 0.1)]
    log_prob = p3kernels.mixture_log_prob(leaves[0], leaves[1], leaves[2], backend=backend)
    assert log_prob[2] == -math.inf
    assert log_prob[[0, 1, 3]].isfinite().all()
    d_action, d_means, d_std = torch.autograd.grad(log_prob, leaves, torch.ones(4, dtype=dtype))
    assert (d_action[2] == 0).all()
    assert (d_means[:, 2] == 0).all()
    for gradient in (d_action, d_means, d_std):
        assert gradient.isfinite().all()
        assert gradient.count_nonzero() > 0
    alone = [leaf.detach().requires_grad_() for leaf in (action[[0, 1, 3]], means[:, [0, 1, 3]], leaves[2])]
    (expected,) = torch.autograd.grad(p3kernels.mixture_log_prob(*alone, backend=backend).sum(), alone[2])
    # The dead row adds nothing to the gradient that all rows share; sums of 4 rows, a few roundings.
    torch.testing.assert_close(d_std, expected, rtol=64 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dead", [0, 2, 4])
def test_a_sample_without_likelihood_counts_as_zero(dead, backend):
    """Wherever it comes in the running maximum."""
    action, means, std = torch.randn(4, 3), torch.randn(5, 4, 3), torch.rand(3) + 0.1
    means[dead] = 1e30
    leaf = means.requires_grad_()
    got = p3kernels.mixture_log_prob(action, leaf, std, backend=backend)
    others = [index for index in range(5) if index != dead]
    expected = p3kernels.mixture_log_prob(action, means.detach()[others], std, backend=backend) + math.log(4 / 5)
    torch.testing.assert_close(got.detach(), expected, rtol=1e-6, atol=1e-6)  # float32: a few roundings
    (gradient,) = torch.autograd.grad(got.sum(), leaf)
    assert (gradient[dead] == 0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("poison", ["action", "means"])
def test_nan_stays_in_its_row(poison, backend):
    inputs = {"action": torch.randn(4, 3), "means": torch.randn(5, 4, 3), "std": torch.rand(3) + 0.1}
    inputs[poison][..., 2, 1] = math.nan
    log_prob = p3kernels.mixture_log_prob(**inputs, backend=backend)
    assert log_prob.isnan().tolist() == [False, False, True, False]


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_of_far_samples_still_sum_to_one(backend):
    action, means, std = torch.full((1, 1), 100.0), torch.tensor([-0.5, 0.25, 0.5])[:, None, None], torch.ones(1)
    leaves = [action.requires_grad_(), means.requires_grad_(), std]
    log_prob = p3kernels.mixture_log_prob(*leaves, backend=backend)
    d_action, d_means = torch.autograd.grad(log_prob.sum(), leaves[:2])
    weights = d_means / (action - means).detach()
    # A weight is e^x, x a difference of exponents near −5000: at most 4 roundings of that.
    assert weights.sum().item() == pytest.approx(1, abs=4 * 5000 * torch.finfo(torch.float32).eps)
    torch.testing.assert_close(d_means.sum(), -d_action.sum())


def test_values_are_checked_on_request(monkeypatch):
    monkeypatch.setenv("P3_CHECK_VALUES", "1")
    with pytest.raises(ValueError, match=r"std: expected values >= 0, got 1 that are not, the first -1\.0"):
        p3kernels.mixture_log_prob(torch.zeros(2, 2), torch.zeros(3, 2, 2), torch.tensor([1.0, -1.0]))


shapes = st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**31))


def drawn(shape: tuple[int, int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    samples, rows, actions, seed = shape
    generator = torch.Generator().manual_seed(seed)
    action, means, std = (
        torch.randn(size, generator=generator, dtype=torch.float64)
        for size in ((rows, actions), (samples, rows, actions), (actions,))
    )
    return action, 3 * means, std.exp()


@pytest.mark.parametrize("backend", BACKENDS)
@given(shape=shapes)
def test_order_of_samples_does_not_matter(backend, shape):
    action, means, std = drawn(shape)
    order = torch.randperm(means.shape[0], generator=torch.Generator().manual_seed(shape[3]))
    one, other = (p3kernels.mixture_log_prob(action, m, std, backend=backend) for m in (means, means[order]))
    torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)  # the order of a sum of at most 9


@pytest.mark.parametrize("backend", BACKENDS)
@given(shape=shapes)
def test_between_the_best_component_and_its_share(backend, shape):
    """log(max_i p_i / N) ≤ log_prob ≤ log max_i p_i."""
    action, means, std = drawn(shape)
    best = Normal(means, std).log_prob(action).sum(-1).max(0).values
    got = p3kernels.mixture_log_prob(action, means, std, backend=backend)
    rounding = 1e-13 * (1 + best.abs())
    assert (got <= best + rounding).all()
    assert (got >= best - math.log(means.shape[0]) - rounding).all()


@pytest.mark.parametrize("backend", BACKENDS)
@given(shape=shapes, offset=st.floats(-100, 100))
def test_only_differences_matter(backend, shape, offset):
    action, means, std = drawn(shape)
    got = p3kernels.mixture_log_prob(action + offset, means + offset, std, backend=backend)
    expected = p3kernels.mixture_log_prob(action, means, std, backend=backend)
    # Shifting by 100 rounds a difference by 2e-14; over std, times the distance in std.
    slack = 1e-13 / std.min() * (1 + (2 * (action - means) / std).abs().amax((0, 2)) * action.shape[1])
    assert ((got - expected).abs() <= slack + 1e-13).all()
