"""Correlation of the action means: what a diagonal approximation leaves out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p3kernels.diagnostics.inputs import Estimators, LatentPolicy, check_count, diagnostic, seeded
from p3kernels.diagnostics.moments import correlation_of, latent_covariance
from p3kernels.diagnostics.samples import sampled_moments

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


@diagnostic
@torch.no_grad()
def correlation(
    estimators: Estimators, policy: LatentPolicy, *, num_samples: int = 1000, seed: int | None = None
) -> Correlation:
    """Correlation matrices of the action means actor([context, z]) over z at each state, exploration not included.

    Args:
        estimators: By name; those whose policies have a `covariance` [B, A, A] are compared by it, others are diagonal.
        policy: Actor, observations, latents and exploration.
        num_samples: Latents a state, at least 2.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.
    """
    check_count("num_samples", num_samples, 2)
    with seeded(seed, policy.context.device):
        state = int(torch.randint(len(policy.context), (1,)))
        sampled = correlation_of(sampled_moments(*policy[:4], num_samples).covariance)
        matrices, error = {}, {}
        off = ~torch.eye(sampled.shape[-1], dtype=torch.bool, device=sampled.device)
        for name, estimator in estimators.items():
            found = correlation_of(latent_covariance(estimator.policy(*policy), policy.action_std))
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
