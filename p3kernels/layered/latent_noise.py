"""Standard-normal latent noise, a tile at a time: the same numbers as `reference/latent_noise.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from p3kernels.cpu import native
from p3kernels.reference.latent_noise import SHIFT_STREAM, shifted_normals, sobol_points


class NoiseSource:
    """Draws any tile of the noise [N, B, Z] belonging to a seed, again and again, without holding the whole.

    Args:
        seed: One int64.
        num_samples: N.
        sampling: One of `SAMPLING`.
        like: Any tensor [B, Z] of the device.
        rows: The rows' numbers, int64 [B], contiguous; None for their places.
    """

    def __init__(self, seed: Tensor, num_samples: int, sampling: str, like: Tensor, rows: Tensor | None = None) -> None:
        self._seed = seed
        self._rows = rows
        self._num_samples = num_samples
        self._sampling = sampling
        points = sobol_points(seed, num_samples, like.shape[1]) if sampling == "sobol" else None
        self._points = None if points is None else points.to(like.device)

    def fill(self, out: Tensor, first_sample: int, first_row: int) -> None:
        """out [n, R, Z] = noise[first_sample :, first_row :]."""
        samples = out.shape[0]
        if self._points is not None:
            shift = self._shift(out, first_row)
            out.copy_(shifted_normals(self._points[first_sample : first_sample + samples, None], shift))
        elif self._sampling == "antithetic":
            half = (self._num_samples + 1) // 2
            for index in range(samples):
                sample = first_sample + index
                mirrored = sample >= half
                self._draw(sample - half if mirrored else sample, first_row, out[index : index + 1])
                if mirrored:
                    out[index].neg_()
        else:
            self._draw(first_sample, first_row, out)

    def _numbers(self, first_row: int, out: Tensor) -> Tensor | None:
        """The numbers of the tile's rows."""
        return None if self._rows is None else self._rows[first_row : first_row + out.shape[1]]

    def _draw(self, first_sample: int, first_row: int, out: Tensor) -> None:
        native.normal(self._seed, 0, first_sample, first_row, out, self._numbers(first_row, out))

    def _shift(self, out: Tensor, first_row: int) -> Tensor:
        """[1, R, Z] in float64: by how much the Sobol points of each row are moved, as normals."""
        shift = out.new_empty(1, *out.shape[1:], dtype=torch.float64)
        native.normal(self._seed, SHIFT_STREAM, 0, first_row, shift, self._numbers(first_row, out))
        return shift
