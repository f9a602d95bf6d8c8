"""Correlation of the action means: what a diagonal approximation leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p3kernels.diagnostics.inputs import check_count, check_estimated, seeded
from p3kernels.diagnostics.moments import correlation_of, latent_covariance
from p3kernels.diagnostics.samples import sampled_moments
from p3kernels.estimators.protocol import Estimator

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Correlation:
    """Over sampled latents at a state, and as the estimators have it."""

    mean_absolute: float
    """Mean |correlation| off the diagonal, over states; 0 for independent actions. Finite samples alone give about
    √(2/π / num_samples)."""
    largest: float
    """Mean over states of the largest absolute entry off the diagonal."""
    num_samples: int
    state: int
    """Row of the state whose matrices are kept: drawn at random."""
    sampled: Matrix
    """[A, A] of that state."""
    estimators: dict[str, Matrix]
    """[A, A] of that state, by each estimator; the identity for a diagonal one."""
    error: dict[str, float]
    """Root mean square difference to the sampled entries off the diagonal, over all states."""


@torch.no_grad()
def correlation(
    estimators: Mapping[str, Estimator],
    actor: nn.Sequential,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    action_std: Tensor,
    *,
    num_samples: int = 1000,
    seed: int | None = None,
) -> Correlation:
    """Correlation matrices of the action means actor([context, z]) over z at each state, exploration not included.

    Args:
        estimators: By name; those whose policies have a `covariance` [B, A, A] are compared by it, others are diagonal.
        actor: Linear and ELU, ReLU or LeakyReLU layers; takes [context, z].
        context: [B, C].
        latent_mean: [B, Z].
        latent_std: [B, Z].
        action_std: [A] or [B, A].
        num_samples: Latents a state, at least 2.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.
    """
    check_estimated(estimators, actor, context, latent_mean, latent_std, action_std)
    check_count("num_samples", num_samples, 2)
    with seeded(seed, context.device):
        state = int(torch.randint(len(context), (1,)))
        sampled = correlation_of(sampled_moments(actor, context, latent_mean, latent_std, num_samples).covariance)
        matrices, error = {}, {}
        off = ~torch.eye(sampled.shape[-1], dtype=torch.bool, device=sampled.device)
        for name, estimator in estimators.items():
            policy = estimator.policy(actor, context, latent_mean, latent_std, action_std)
            found = correlation_of(latent_covariance(policy, action_std))
            matrices[name] = _matrix(found[state])
            error[name] = (found - sampled)[:, off].square().mean().sqrt().item() if off.any() else 0.0
    entries = sampled[:, off].abs()
    return Correlation(
        mean_absolute=entries.mean().item() if off.any() else 0.0,
        largest=entries.amax(1).mean().item() if off.any() else 0.0,
        num_samples=num_samples,
        state=state,
        sampled=_matrix(sampled[state]),
        estimators=matrices,
        error=error,
    )


def _matrix(values: Tensor) -> Matrix:
    return tuple(tuple(row) for row in values.tolist())
