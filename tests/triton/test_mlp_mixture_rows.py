"""`rows` of `mlp_mixture_log_prob` on the Triton kernels."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers.battery import run
from helpers.numbered_rows import KINDS, SEED, SIZES, NumberedRows, numbers, without_noise

from p3kernels.reference.latent_noise import SAMPLING, latent_noise
from triton_kernels import mlp_mixture_log_prob as kernel


def a_third_of_all():
    """Every size, sampling and kind of numbers; every two of them together; the other triples in `make test-all`."""
    for (i, size), (j, sampling), (k, kind) in itertools.product(*map(enumerate, (SIZES, SAMPLING, KINDS))):
        yield pytest.param(size, sampling, kind, marks=[pytest.mark.sweep] if (i + j + k) % 3 else [])


class TestTriton(NumberedRows):
    backend = "triton"

    @pytest.mark.parametrize(("size", "sampling", "kind"), a_third_of_all())
    def test_rows_name_their_noise(self, size, sampling, kind):
        super().test_rows_name_their_noise(size, sampling, kind)

    def test_numbers_follow_their_rows_through_tiles(self, monkeypatch):
        monkeypatch.setattr(kernel, "SCRATCH_BYTES", 4 * 24 * 7)
        inputs, rows = without_noise(SIZES["prime"]), numbers(31, "shuffled")
        noise = latent_noise(SEED, 5, rows, 11, "antithetic", torch.float64).float()
        got = run(self.on(5, seed=SEED, sampling="antithetic", rows=rows), inputs)
        self.assert_same(got, run(self.on(5, noise=noise), inputs), bitwise=False)
