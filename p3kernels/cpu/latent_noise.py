"""Standard-normal latent noise on a CPU, a tile at a time: the same numbers as `reference/latent_noise.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from p3kernels.cpu import native
from p3kernels.reference.latent_noise import SHIFT_STREAM, shifted_normals, sobol_points


class NoiseSource:
    """Draws any tile of the noise [N, B, Z] belonging to a seed, again and again, without holding the whole."""

    def __init__(self, seed: int, num_samples: int, sampling: str, like: Tensor) -> None:
        self._seed = seed
        self._num_samples = num_samples
        self._sampling = sampling
        self._points = sobol_points(torch.tensor([seed]), num_samples, like.shape[1]) if sampling == "sobol" else None

    def fill(self, out: Tensor, first_sample: int, first_row: int) -> None:
        """out [n, R, Z] = noise[first_sample :, first_row :]."""
        samples, rows, columns = out.shape
        if self._points is not None:
            shift = out.new_empty(1, rows, columns, dtype=torch.float64)
            native.normal(self._seed, SHIFT_STREAM, 0, first_row, shift)
            out.copy_(shifted_normals(self._points[first_sample : first_sample + samples, None], shift))
        elif self._sampling == "antithetic":
            half = (self._num_samples + 1) // 2
            for index in range(samples):
                sample = first_sample + index
                mirrored = sample >= half
                native.normal(self._seed, 0, sample - half if mirrored else sample, first_row, out[index : index + 1])
                if mirrored:
                    out[index].neg_()
        else:
            native.normal(self._seed, 0, first_sample, first_row, out)
