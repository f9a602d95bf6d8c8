"""`rows` of `mlp_mixture_log_prob` on the Triton kernels."""

from __future__ import annotations

import torch
from helpers.battery import run
from helpers.numbered_rows import SEED, SIZES, NumberedRows, numbers, without_noise

from p3kernels.reference.latent_noise import latent_noise
from triton_kernels import mlp_mixture_log_prob as kernel


class TestTriton(NumberedRows):
    backend = "triton"

    def test_numbers_follow_their_rows_through_tiles(self, monkeypatch):
        monkeypatch.setattr(kernel, "SCRATCH_BYTES", 4 * 24 * 7)
        inputs, rows = without_noise(SIZES["prime"]), numbers(31, "shuffled")
        noise = latent_noise(SEED, 5, rows, 11, "antithetic", torch.float64).float()
        got = run(self.on(5, seed=SEED, sampling="antithetic", rows=rows), inputs)
        self.assert_same(got, run(self.on(5, noise=noise), inputs), bitwise=False)
