"""`rows` of `mlp_mixture_log_prob` on the CUDA kernels, in one launch and layer by layer."""

from __future__ import annotations

import pytest
import torch
from helpers.battery import grouped
from helpers.numbered_rows import SEED, NumberedRows, numbers, without_noise

import p3kernels
from p3kernels.cuda import native, one_launch
from p3kernels.ops import mlp_mixture_log_prob as op
from p3kernels.reference.latent_noise import latent_noise


class TestOneLaunch(NumberedRows):
    backend = "cuda"


class TestLayered(NumberedRows):
    backend = "cuda"

    @pytest.fixture(autouse=True)
    def no_one_launch(self, monkeypatch):
        monkeypatch.setattr(one_launch, "ONE_LAUNCH_ROWS", 0)
        monkeypatch.setattr(op, "CUDA_TILE_ROWS", 31)


def test_numbered_rows_take_no_launch_more(count_launches):
    inputs = grouped(without_noise((15, 9, 3, 29, 11, 4)))
    call = lambda: p3kernels.mlp_mixture_log_prob(  # noqa: E731
        **inputs, num_samples=15, seed=SEED, rows=numbers(9, "shuffled"), backend="cuda"
    )
    assert count_launches(call) == 1


@pytest.mark.parametrize("kind", ["shuffled", "far"])
def test_noise_is_the_references(kind):
    rows, out = numbers(7, kind), torch.empty(3, 7, 29)
    native.normal(torch.tensor([SEED]), 0, 0, 0, out, rows)
    expected = latent_noise(SEED, 3, rows, 29)
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-6)  # a few roundings of numbers below 7
