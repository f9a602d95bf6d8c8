"""Reconstruction errors and the latent's KL on numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.models.networks import Latent
from trainer.models.reconstruction import Reconstruction, latent_kl, reconstruction

# Float32 sums of a handful of numbers of order 1.
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}


def rows(values: list[list[float]], copies: int = 1) -> Tensor:
    return torch.tensor(values).repeat(copies, 1).requires_grad_()


def arguments(next_valid: list[float], copies: int = 1) -> dict[str, Any]:
    """Two rows, P = 2, S = 3; the whole `copies` times."""
    return {
        "decoded": (rows([[1.0, 3.0], [5.0, 0.0]], copies), rows([[1.0, 1.0, 1.0], [0.0, 0.0, 3.0]], copies)),
        "velocity": rows([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], copies),
        "next_proprio": rows([[0.0, 0.0], [1.0, 2.0]], copies),
        "next_valid": torch.tensor(next_valid).repeat(copies),
        "scan": rows([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]], copies),
        "true_velocity": rows([[0.0, 0.0, 2.0], [0.0, 3.0, 0.0]], copies),
    }


def latent(copies: int = 1) -> Latent:
    """Latents of 1 and 3 columns."""
    return Latent(
        mean=rows([[2.0, 0.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]], copies),
        std=rows([[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 1.0, 1.0]], copies),
        velocity=rows([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], copies),
    )


@pytest.mark.parametrize(
    ("next_valid", "proprio"),
    # The rows' squared errors are (1 + 9) / 2 = 5 and (16 + 4) / 2 = 10.
    [([1.0, 1.0], 7.5), ([1.0, 0.0], 5.0), ([0.0, 1.0], 10.0), ([0.0, 0.0], 0.0)],
)
def test_errors(next_valid, proprio):
    errors = reconstruction(**arguments(next_valid))
    expected = {"proprio": proprio, "scan": (1 + 4) / 6, "velocity": (1 + 4 + 9) / 6}
    for name, value in expected.items():
        torch.testing.assert_close(getattr(errors, name), torch.tensor(value), **TOLERANCE)
    torch.testing.assert_close(errors.total(), torch.tensor(sum(expected.values())), **TOLERANCE)


def test_latent_kl():
    """KL of a dimension: (mean² + var - 1) / 2 - log std."""
    stretched = 1.5 - math.log(2)
    expected = 0.5 * (2.0 / 2 + (0.5 + 2.0 + stretched) / 6)
    torch.testing.assert_close(latent_kl(latent(), 1), torch.tensor(expected), **TOLERANCE)


def test_all_masked_is_finite_with_finite_gradients():
    named = arguments([0.0, 0.0])
    reconstruction(**named).total().backward()
    assert named["decoded"][0].grad.count_nonzero() == 0
    assert named["decoded"][1].grad.isfinite().all()
    assert named["decoded"][1].grad.count_nonzero() > 0


def test_a_masked_row_gets_no_gradient():
    named = arguments([1.0, 0.0])
    reconstruction(**named).proprio.backward()
    # 2 (decoded - next) / P over one valid row.
    torch.testing.assert_close(named["decoded"][0].grad, torch.tensor([[1.0, 3.0], [0.0, 0.0]]), **TOLERANCE)


def test_no_term_grows_with_the_batch():
    """A KL summed over the batch would outweigh the errors the more, the larger the batch."""
    one, many = (reconstruction(**arguments([1.0, 0.0], copies)) for copies in (1, 50))
    for name in ("proprio", "scan", "velocity"):
        assert getattr(one, name) > 0
        torch.testing.assert_close(getattr(many, name), getattr(one, name), **TOLERANCE)
    assert latent_kl(latent(), 1) > 0
    torch.testing.assert_close(latent_kl(latent(50), 1), latent_kl(latent(), 1), **TOLERANCE)


@pytest.mark.parametrize("mean", [[2.0] + [0.0] * 100, [0.0] + [2.0] * 100])
def test_latents_weigh_the_same_whatever_their_sizes(mean):
    """Each of the two latents adds half of its own mean: a hundred do not drown ten."""
    given = Latent(torch.tensor([mean]), torch.ones(1, 101), torch.zeros(1, 3))
    torch.testing.assert_close(latent_kl(given, 1), torch.tensor(1.0), **TOLERANCE)


def test_total():
    assert Reconstruction(*map(torch.tensor, (1.0, 2.0, 4.0))).total() == 7.0
