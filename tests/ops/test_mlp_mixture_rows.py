"""`rows` of `mlp_mixture_log_prob` on the backends of this machine."""

from __future__ import annotations

import pytest
import torch
from helpers.battery import BACKENDS, grouped
from helpers.numbered_rows import SEED, NumberedRows, numbers, without_noise

import p3kernels
from p3kernels.layered import mlp_mixture_log_prob as kernel
from p3kernels.ops.latent_noise import noise_of_sample
from p3kernels.reference.latent_noise import SAMPLING, latent_noise, normal


class TestReference(NumberedRows):
    backend = "reference"


class TestCpu(NumberedRows):
    backend = "cpu"


class TestCpuFloat64(NumberedRows):
    backend = "cpu"
    dtype = torch.float64


class TestCpuSmallTiles(NumberedRows):
    """Tiles of some rows, and of some samples of a row: numbers follow the rows through them."""

    backend = "cpu"

    @pytest.fixture(autouse=True)
    def small_tiles(self, monkeypatch):
        monkeypatch.setattr(kernel, "TILE_ROWS", 11)


def test_a_number_is_a_stream():
    """Numbers of all sizes, and those that agree in their low or high words, have noise of their own."""
    rows = torch.tensor([0, 1, 2**32, 2**32 + 1, 2**33, 2**62, 2**63 - 1])
    streams = torch.stack([normal(5, stream, 1, rows, 8)[0] for stream in (0, 1)]).flatten(0, 1)
    distances = torch.cdist(streams, streams) + 10 * torch.eye(14)
    assert distances.min() > 0.5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("samples", [1, 4, 7])
def test_noise_of_one_sample_is_that_of_the_whole(samples, sampling, backend):
    for rows in (None, numbers(6, "shuffled"), numbers(6, "far")):
        whole = latent_noise(SEED, samples, 6 if rows is None else rows, 5, sampling, torch.float64)
        like = torch.empty(6, 5, dtype=torch.float64)
        for sample in range(samples):
            one = noise_of_sample(like, torch.tensor([SEED]), sample, samples, sampling, rows, backend)
            torch.testing.assert_close(one, whole[sample], rtol=0, atol=1e-9)  # as in test_latent_noise


def test_opcheck_of_the_noise():
    arguments = (torch.empty(6, 5), torch.tensor([3]), numbers(6, "far"), 2, 7, "antithetic")
    torch.library.opcheck(torch.ops.p3kernels.latent_noise_sample_cpu, arguments)


def test_rows_are_checked_before_a_seed_is_drawn():
    """A refused call leaves torch's generator where it was."""
    named = grouped(without_noise((7, 9, 3, 5, 11, 4)))
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="rows: expected numbers >= 0, got -1"):
        p3kernels.mlp_mixture_log_prob(**named, num_samples=7, rows=torch.arange(9) - 1)
    assert torch.equal(torch.get_rng_state(), before)
