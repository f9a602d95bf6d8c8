"""Standard-normal latent noise as plain torch: counter-based, so that every backend draws the same numbers.

The number at (seed, sample, row, column) is a word of Philox4x32-10 with key `seed` and counter (column mod Z/4,
sample, row, stream), made normal by Box–Muller; it does not depend on the number of samples or rows. A row's number is
its place in the batch, or any other below 2⁶³ that it is given: then it keeps its noise in whatever batch it comes, and
what the number has beyond 32 bits stands above the stream in the fourth counter. Sampling schemes:

- "iid": independent samples.
- "antithetic": the second half of the samples is minus the first half.
- "sobol": one scrambled Sobol set over the samples, shifted modulo 1 by a row's own uniform vector (so that rows stay
  independent and every sample is exactly standard normal), through the inverse normal distribution function.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SAMPLING = ("iid", "antithetic", "sobol")
SHIFT_STREAM = 1
_MASK = 0xFFFFFFFF


@torch.library.custom_op("p3kernels::sobol_points", mutates_args=(), device_types="cpu")
def sobol_points(seed: Tensor, num_samples: int, dimension: int) -> Tensor:
    """[N, Z] scrambled Sobol points in [0, 1), float64; an operator, so that a compiled graph does not look inside."""
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=int(seed) & 0x7FFFFFFF)
    return engine.draw(num_samples, dtype=torch.float64)


@sobol_points.register_fake
def _(seed: Tensor, num_samples: int, dimension: int) -> Tensor:
    return torch.empty(num_samples, dimension, dtype=torch.float64)


def shifted_normals(points: Tensor, shift: Tensor) -> Tensor:
    """[n, R, Z] normals of points [n, 1, Z] moved modulo 1 by the uniforms behind the normals shift [1, R, Z]."""
    margin = 2.0**-54  # never exactly 0 or 1
    return torch.special.ndtri((points + torch.special.ndtr(shift)).remainder(1.0).clamp(margin, 1 - margin))


def _multiply(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a · b for 32-bit values held in int64, without overflow."""
    a_high, a_low = a >> 16, a & 0xFFFF
    low_part = b * a_low
    middle = b * a_high + (low_part >> 16)
    return middle >> 16, ((middle << 16) | (low_part & 0xFFFF)) & _MASK


def philox(seed: int | Tensor, counter: list[Tensor]) -> list[Tensor]:
    """Philox4x32-10 of four 32-bit counters held in int64."""
    c0, c1, c2, c3 = counter
    key0, key1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        high0, low0 = _multiply(0xD2511F53, c0)
        high1, low1 = _multiply(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + 0x9E3779B9) & _MASK, (key1 + 0xBB67AE85) & _MASK
    return [c0, c1, c2, c3]


def normal(
    seed: int | Tensor,
    stream: int,
    samples: int,
    rows: int | Tensor,
    columns: int,
    device: torch.device | None = None,
    first_sample: int = 0,
) -> Tensor:
    """[N, B, Z] standard normals in float64; `rows` is B, or the rows' numbers [B]."""
    numbers = rows if isinstance(rows, Tensor) else torch.arange(rows, device=device)
    blocks = (columns + 3) // 4
    shape = (samples, numbers.shape[0], blocks)
    counter = [
        torch.arange(blocks, device=device).expand(shape),
        torch.arange(first_sample, first_sample + samples, device=device)[:, None, None].expand(shape),
        (numbers & _MASK)[None, :, None].expand(shape),
        (stream + 2 * (numbers >> 32))[None, :, None].expand(shape),
    ]
    uniform = [(word.double() + 0.5) / 2.0**32 for word in philox(seed, counter)]
    normals = []
    for radius_source, angle_source in (uniform[:2], uniform[2:]):
        radius, angle = torch.sqrt(-2 * torch.log(radius_source)), 2 * math.pi * angle_source
        normals += [radius * torch.cos(angle), radius * torch.sin(angle)]
    return torch.cat(normals, -1)[..., :columns]


def latent_noise(
    seed: int | Tensor,
    num_samples: int,
    rows: int | Tensor,
    columns: int,
    sampling: str = "iid",
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    samples: range | None = None,
) -> Tensor:
    """The noise [N, B, Z] of a seed, or that of the consecutive `samples` of the N alone.

    Args:
        seed: An integer or a tensor of one int64.
        num_samples: N.
        rows: B, or the rows' numbers, int64 [B].
        columns: Z.
        sampling: One of `SAMPLING`.
        dtype: Dtype of the result; the numbers are made in float64.
        device: Device of the result.
        samples: Which samples; None for all.
    """
    seed_tensor = seed if isinstance(seed, Tensor) else torch.full((1,), seed, dtype=torch.int64)
    seed = seed_tensor.to(device)
    first, last = (0, num_samples) if samples is None else (samples.start, samples.stop)
    if sampling == "sobol":
        shift = normal(seed, SHIFT_STREAM, 1, rows, columns, device)
        points = sobol_points(seed_tensor, num_samples, columns).to(device)
        return shifted_normals(points[first:last, None], shift).to(dtype)
    half = (num_samples + 1) // 2 if sampling == "antithetic" else num_samples
    plain, mirrored = (first, min(last, half)), (max(first, half), last)
    parts = []
    if plain[0] < plain[1]:
        parts.append(normal(seed, 0, plain[1] - plain[0], rows, columns, device, plain[0]))
    if mirrored[0] < mirrored[1]:
        parts.append(-normal(seed, 0, mirrored[1] - mirrored[0], rows, columns, device, mirrored[0] - half))
    return torch.cat(parts).to(dtype)
