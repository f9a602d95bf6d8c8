"""Every term of PPO's loss on numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from trainer.algorithms.losses import clipped_surrogate, value_loss

# Float32 sums of a handful of numbers of order 1.
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}


def test_clipped_surrogate():
    """Clip 0.2: r A and clip(r) A are 3 | 2.4, 1 | 1.6, 2.2, then -3 | -2.4, -1 | -1.6, -1.8."""
    log_ratio = torch.tensor([1.5, 0.5, 1.1, 1.5, 0.5, 0.9]).log().requires_grad_()
    advantage = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    loss = clipped_surrogate(log_ratio, advantage, 0.2)
    smaller = torch.tensor([2.4, 1.0, 2.2, -3.0, -1.6, -1.8])
    torch.testing.assert_close(loss, -smaller.sum() / 6, **TOLERANCE)
    loss.backward()
    # -r A / 6 where the ratio itself counts, nothing where it was clipped.
    expected = torch.tensor([0.0, -1.0, -2.2, 3.0, 0.0, 1.8]) / 6
    torch.testing.assert_close(log_ratio.grad, expected, **TOLERANCE)


def test_a_clipped_ratio_beyond_float32_has_no_gradient():
    """e⁸⁹ overflows; clipped, it adds 1.2 A and nothing to the gradient, and the other row trains."""
    log_ratio = torch.tensor([89.0, 0.0], requires_grad=True)
    loss = clipped_surrogate(log_ratio, torch.tensor([1.0, 1.0]), 0.2)
    torch.testing.assert_close(loss, torch.tensor(-1.1), **TOLERANCE)
    loss.backward()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([0.0, -0.5]), **TOLERANCE)


def test_dual_clip_bounds_the_loss_of_a_row():
    """c = 3: of A = -2 the rows of ratio 5 and 1e30 lose 6 each, without gradient; those of A = 2 are as ever."""
    log_ratio = torch.tensor([5.0, 1e30, 2.0, 5.0]).log().requires_grad_()
    advantage = torch.tensor([-2.0, -2.0, -2.0, 2.0])
    loss = clipped_surrogate(log_ratio, advantage, 0.2, dual_clip=3.0)
    torch.testing.assert_close(loss, torch.tensor((6.0 + 6.0 + 4.0 - 2.4) / 4), **TOLERANCE)
    loss.backward()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([0.0, 0.0, 1.0, 0.0]), **TOLERANCE)


def test_surrogate_of_unchanged_weights_is_the_mean_advantage():
    advantage = torch.tensor([1.0, -2.0, 4.0])
    torch.testing.assert_close(clipped_surrogate(torch.zeros(3), advantage, 0.2), torch.tensor(-1.0))


@pytest.mark.parametrize(("clip", "expected"), [(None, (4.0 + 1.0 + 0.01) / 3), (0.5, (6.25 + 1.0 + 0.01) / 3)])
def test_value_loss(clip, expected):
    """Old 0: a move of 1 towards 3 counts as 0.5, error 2.5; a move of 1 from 0 to 1 past its clip as it is worse."""
    value = torch.tensor([1.0, 1.0, 0.1])
    returns = torch.tensor([3.0, 0.0, 0.0])
    torch.testing.assert_close(value_loss(value, torch.zeros(3), returns, clip), torch.tensor(expected), **TOLERANCE)


def test_a_clipped_value_has_no_gradient():
    value = torch.tensor([1.0, 1.0, 0.1], requires_grad=True)
    value_loss(value, torch.zeros(3), torch.tensor([3.0, 0.0, 0.0]), 0.5).backward()
    torch.testing.assert_close(value.grad, torch.tensor([0.0, 2.0, 0.2]) / 3, **TOLERANCE)
