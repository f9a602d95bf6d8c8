"""The actor's output over sampled latents: what the estimators' moments are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p3kernels.diagnostics.inputs import check_count

ROWS_AT_ONCE = 32_768
"""Rows through the actor in one pass: memory stays flat in the number of samples."""


@dataclass(frozen=True)
class SampledMoments:
    """Moments of the action means actor([context, z]) over z, without exploration; float64."""

    mean: Tensor
    """[B, A]."""
    covariance: Tensor
    """[B, A, A], unbiased."""
    num_samples: int

    @property
    def var(self) -> Tensor:
        """[B, A]."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)


def action_means(actor: nn.Sequential, context: Tensor, latent: Tensor) -> Tensor:
    """[N, B, A] of latents [N, B, Z] and context [B, C]."""
    return actor(torch.cat([context.expand(len(latent), -1, -1), latent], -1))


def sampled_latents(
    mean: Tensor, std: Tensor, num_samples: int, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Independent latents [n, B, Z], `num_samples` in all, a part at a time."""
    part = max(1, ROWS_AT_ONCE // len(mean))
    for start in range(0, num_samples, part):
        shape = (min(part, num_samples - start), *mean.shape)
        yield mean + std * torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)


@torch.no_grad()
def sampled_moments(
    actor: nn.Sequential,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    num_samples: int,
    generator: torch.Generator | None = None,
) -> SampledMoments:
    """Mean and covariance of the action means over `num_samples` ≥ 2 independent latents.

    Args:
        actor: Takes [context, z].
        context: [B, C].
        latent_mean: [B, Z].
        latent_std: [B, Z].
        num_samples: Latents a row; the variance of a row is known to √(2 / num_samples) of itself.
        generator: Generator of the latents; None for torch's own.
    """
    check_count("num_samples", num_samples, 2)
    # Deviations from the output at the latent's mean: squares of the outputs themselves would cancel.
    centre = actor(torch.cat([context, latent_mean], -1)).double()
    first, second = torch.zeros_like(centre), centre.new_zeros(*centre.shape, centre.shape[1])
    for latent in sampled_latents(latent_mean, latent_std, num_samples, generator):
        deviation = (action_means(actor, context, latent).double() - centre).transpose(0, 1)  # [B, n, A]
        first += deviation.sum(1)
        second += deviation.transpose(1, 2) @ deviation
    shift = first / num_samples
    covariance = (second - num_samples * shift[:, :, None] * shift[:, None, :]) / (num_samples - 1)
    return SampledMoments(centre + shift, covariance, num_samples)


@torch.no_grad()
def actor_jacobian(actor: nn.Sequential, context: Tensor, latent_mean: Tensor) -> Tensor:
    """∂ actor([context, z]) / ∂z at z = latent_mean: [B, A, Z]."""
    with torch.enable_grad():
        latent = latent_mean.detach().requires_grad_()
        output = actor(torch.cat([context.detach(), latent], -1))
        columns = [
            torch.autograd.grad(output[:, action].sum(), latent, retain_graph=True)[0]
            for action in range(output.shape[1])
        ]
    return torch.stack(columns, 1)
