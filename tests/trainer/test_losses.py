"""Every term of the loss on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trainer.algorithms.losses import VaeLoss, clipped_surrogate, vae_loss, value_loss
from trainer.models.networks import Latent

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


def arguments(next_valid: list[float], copies: int = 1) -> dict[str, Tensor | Latent | tuple[Tensor, Tensor] | int]:
    """Two rows, P = 2, S = 3, latents of 1 and 3 columns; the whole `copies` times."""

    def rows(values: list[list[float]]) -> Tensor:
        return torch.tensor(values).repeat(copies, 1).requires_grad_()

    latent = Latent(
        mean=rows([[2.0, 0.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]]),
        std=rows([[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 1.0, 1.0]]),
        velocity=rows([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    )
    return {
        "latent": latent,
        "decoded": (rows([[1.0, 3.0], [5.0, 0.0]]), rows([[1.0, 1.0, 1.0], [0.0, 0.0, 3.0]])),
        "next_proprio": rows([[0.0, 0.0], [1.0, 2.0]]),
        "next_valid": torch.tensor(next_valid).repeat(copies),
        "scan": rows([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]),
        "velocity": rows([[0.0, 0.0, 2.0], [0.0, 3.0, 0.0]]),
        "proprio_latent": 1,
    }


@pytest.mark.parametrize(
    ("next_valid", "proprio"),
    # The rows' squared errors are (1 + 9) / 2 = 5 and (16 + 4) / 2 = 10.
    [([1.0, 1.0], 7.5), ([1.0, 0.0], 5.0), ([0.0, 1.0], 10.0), ([0.0, 0.0], 0.0)],
)
def test_vae_loss(next_valid, proprio):
    loss = vae_loss(**arguments(next_valid))
    # KL of a dimension: (mean² + var - 1) / 2 - log std.
    stretched = 1.5 - math.log(2)
    latent_kl = 0.5 * (2.0 / 2 + (0.5 + 2.0 + stretched) / 6)
    expected = {"proprio": proprio, "scan": (1 + 4) / 6, "velocity": (1 + 4 + 9) / 6, "latent_kl": latent_kl}
    for name, value in expected.items():
        torch.testing.assert_close(getattr(loss, name), torch.tensor(value), **TOLERANCE)


def test_all_masked_is_finite_with_finite_gradients():
    named = arguments([0.0, 0.0])
    vae_loss(**named).total(0.1).backward()
    assert named["decoded"][0].grad.count_nonzero() == 0
    for tensor in (named["latent"].mean, named["latent"].std, named["decoded"][1]):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.count_nonzero() > 0


def test_a_masked_row_gets_no_gradient():
    named = arguments([1.0, 0.0])
    vae_loss(**named).proprio.backward()
    # 2 (decoded - next) / P over one valid row.
    torch.testing.assert_close(named["decoded"][0].grad, torch.tensor([[1.0, 3.0], [0.0, 0.0]]), **TOLERANCE)


def test_no_term_grows_with_the_batch():
    """A KL summed over the batch would outweigh the errors the more, the larger the batch."""
    one, many = (vae_loss(**arguments([1.0, 0.0], copies)) for copies in (1, 50))
    for name in ("proprio", "scan", "velocity", "latent_kl"):
        assert getattr(one, name) > 0
        torch.testing.assert_close(getattr(many, name), getattr(one, name), **TOLERANCE)


def test_latents_weigh_the_same_whatever_their_sizes():
    """Each of the two latents adds half of its own mean: a hundred do not drown ten."""
    named = arguments([1.0, 1.0])
    named["latent"] = Latent(torch.tensor([[2.0] + [0.0] * 100]), torch.ones(1, 101), torch.zeros(1, 3))
    torch.testing.assert_close(vae_loss(**named).latent_kl, torch.tensor(1.0), **TOLERANCE)
    named["latent"] = Latent(torch.tensor([[0.0] + [2.0] * 100]), torch.ones(1, 101), torch.zeros(1, 3))
    torch.testing.assert_close(vae_loss(**named).latent_kl, torch.tensor(1.0), **TOLERANCE)


def test_total():
    loss = VaeLoss(*map(torch.tensor, (1.0, 2.0, 4.0, 30.0)))
    assert loss.total(0.1) == pytest.approx(10.0)
    assert loss.total(0.0) == 7.0
