"""Standard-normal latent noise on a GPU, a tile at a time: the same numbers as `reference/latent_noise.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from p3kernels.cuda import native
from p3kernels.layered.latent_noise import NoiseSource
from p3kernels.reference.latent_noise import SHIFT_STREAM, normal


class DeviceNoiseSource(NoiseSource):
    """Drawn by a kernel; the shift of Sobol points by torch, for its tails need float64."""

    def _draw(self, first_sample: int, first_row: int, out: Tensor) -> None:
        native.normal(self._seed, 0, first_sample, first_row, out, self._numbers(first_row, out))

    def _shift(self, out: Tensor, first_row: int) -> Tensor:
        seed = self._seed.to(out.device)
        numbers = self._numbers(first_row, out)
        if numbers is None:
            numbers = torch.arange(first_row, first_row + out.shape[1], device=out.device)
        return normal(seed, SHIFT_STREAM, 1, numbers, out.shape[2], out.device)
