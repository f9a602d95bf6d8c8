"""The noise of a draw: what names it, a seed and the rows' numbers, and the draw itself for those who need to see it.

`mlp_mixture_log_prob` draws its noise inside its kernels. A policy whose decoder sees the same latent, or whose mean is
taken over the same latents, draws it again here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from p3kernels import checks
from p3kernels.backends import choose_backend
from p3kernels.layered.latent_noise import NoiseSource
from p3kernels.ops.register import Kernels, Operators
from p3kernels.reference.latent_noise import latent_noise
from p3kernels.transforms import transformed


def check_rows(rows: Tensor, like_name: str, like: Tensor) -> None:
    """int64 [B], as many as the rows of another argument and on its device, none negative.

    Raises:
        TypeError: Not a tensor, or of another dtype.
        ValueError: Another shape or device, or a negative number; on a GPU that would have to be waited for, so there
            only P3_CHECK_VALUES=1 looks.
    """
    if not isinstance(rows, Tensor):
        raise TypeError(f"rows: expected a tensor of int64, got {type(rows).__name__}")
    if rows.dtype != torch.int64:
        raise TypeError(f"rows: expected int64, got {checks.dtype_text(rows.dtype)}")
    if rows.device != like.device:
        raise ValueError(f"rows: expected the device of {like_name}, {like.device}, got {rows.device}")
    checks.check_shape("rows", rows, (like.shape[0],))
    unseen = torch.compiler.is_compiling() or transformed(rows) or rows.device.type != "cpu" or rows.numel() == 0
    if not unseen and int(rows.min()) < 0:
        raise ValueError(f"rows: expected numbers >= 0, got {int(rows.min())}")
    checks.check_values("rows", rows)


def seed_tensor(seed: int | Tensor | None, noise: Tensor | None, device: torch.device) -> Tensor:
    """One int64, on the CPU or on `device`, where a drawn one is made: with torch's generator of that device."""
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise TypeError(f"seed: expected one int64, got {seed.numel()} of {seed.dtype}")
        if seed.device.type != "cpu" and seed.device != device:
            where = "cpu" if device.type == "cpu" else f"cpu or on {device}"
            raise ValueError(f"seed: expected a tensor on the {where}, got one on {seed.device}")
        unseen = torch.compiler.is_compiling() or transformed(seed) or seed.device.type != "cpu"
        if not unseen and seed.item() < 0:
            raise ValueError(f"seed: expected 0 <= seed < 2**63, got {seed.item()}")
        return seed
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int | torch.SymInt):
            raise TypeError(f"seed: expected an integer, got {type(seed).__name__}")
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed: expected 0 <= seed < 2**63, got {seed}")
        return torch.full((1,), seed, dtype=torch.int64, device=device)
    if noise is not None:
        return torch.zeros(1, dtype=torch.int64, device=device)
    return torch.randint(2**62, (1,), device=device)


class Inputs(NamedTuple):
    """What names the noise of one sample."""

    like: Tensor
    """[B, Z]; its values do not matter."""
    seed: Tensor
    """One int64."""
    rows: Tensor | None
    """int64 [B], contiguous: the numbers of the rows; None for their places."""
    sample: int
    num_samples: int
    sampling: str


class Outputs(NamedTuple):
    """What was drawn."""

    noise: Tensor
    """[B, Z]."""


def _fake(inputs: Inputs) -> Outputs:
    return Outputs(torch.empty(inputs.like.shape, dtype=inputs.like.dtype, device=inputs.like.device))


def _cpu(inputs: Inputs) -> Outputs:
    out = torch.empty(1, *inputs.like.shape, dtype=inputs.like.dtype)
    NoiseSource(inputs.seed, inputs.num_samples, inputs.sampling, inputs.like, inputs.rows).fill(out, inputs.sample, 0)
    return Outputs(out[0])


_OPERATORS = Operators("latent_noise_sample", Inputs, Outputs, fake=_fake, kernels={"cpu": Kernels(_cpu)})


def noise_of_sample(
    like: Tensor,
    seed: Tensor,
    sample: int,
    num_samples: int,
    sampling: str = "iid",
    rows: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """The noise [B, Z] that `mlp_mixture_log_prob` draws for one of its samples.

    Args:
        like: [B, Z], of the wanted dtype and device; its values do not matter.
        seed: One int64.
        sample: Which one, from 0.
        num_samples: N, which antithetic samples and Sobol points depend on.
        sampling: "iid", "antithetic" or "sobol".
        rows: int64 [B], the numbers of the rows; None for their places.
        backend: As for the ops. The GPU backends' noise is made by torch, to their rounding.
    """
    if choose_backend(backend, like, seed, rows) == "cpu":
        contiguous = None if rows is None else rows.contiguous()
        return _OPERATORS("cpu", Inputs(like.detach(), seed, contiguous, sample, num_samples, sampling)).noise
    numbers = like.shape[0] if rows is None else rows
    return latent_noise(
        seed, num_samples, numbers, like.shape[1], sampling, like.dtype, like.device, range(sample, sample + 1)
    )[0]
