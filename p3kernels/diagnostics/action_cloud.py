"""Two actions at one state: sampled action means as points, and the estimators' Gaussians to draw over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p3kernels.diagnostics.inputs import Estimators, LatentPolicy, check_count, diagnostic, seeded
from p3kernels.diagnostics.moments import latent_covariance
from p3kernels.diagnostics.samples import action_means, sampled_latents, sampled_moments

Pair = tuple[float, float]


@dataclass(frozen=True)
class PlaneGaussian:
    """Mean and covariance of two actions by the latent, exploration not included."""

    mean: Pair
    covariance: tuple[Pair, Pair]


@dataclass(frozen=True)
class ActionCloud:
    """The action distribution at one state, sampled and as estimators have it."""

    state: int
    """Its row: the one whose total variance by the latent is the median."""
    actions: tuple[int, int]
    """As given, or the two whose sampled variance is largest there."""
    action_std: Pair
    """Their exploration noise."""
    points: tuple[Pair, ...]
    """Action means of sampled latents."""
    sampled: PlaneGaussian
    """Moments of more such samples than are points."""
    estimators: dict[str, PlaneGaussian]


@diagnostic
@torch.no_grad()
def action_cloud(
    estimators: Estimators,
    policy: LatentPolicy,
    *,
    actions: tuple[int, int] | None = None,
    points: int = 500,
    seed: int | None = None,
) -> ActionCloud:
    """Samples the action means at a typical state.

    Args:
        estimators: By name.
        policy: Actor with two outputs or more, observations, latents and exploration.
        actions: Which two; None for those whose sampled variance is largest there.
        points: How many are kept; the moments are over ten times as many.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.
    """
    check_count("points", points, 2)
    outputs = policy.action_std.shape[-1]
    if outputs < 2:
        raise ValueError("actor: expected at least two actions, got 1")
    if actions is not None and not all(0 <= action < outputs for action in actions):
        raise ValueError(f"actions: expected two of 0 to {outputs - 1}, got {actions}")
    with seeded(seed, policy.context.device):
        spread = sampled_moments(*policy[:4], 50).var
        row = int(spread.sum(-1).argsort()[len(spread) // 2])
        at = policy.rows(slice(row, row + 1))
        sampled = sampled_moments(*at[:4], 10 * points)
        pair = sampled.var[0].topk(2).indices.sort().values if actions is None else torch.tensor(actions)
        latents = sampled_latents(at.latent_mean, at.latent_std, points)
        drawn = torch.cat([action_means(at.actor, at.context, latent) for latent in latents])[:, 0, pair]
        fitted = {}
        for name, estimator in estimators.items():
            estimated = estimator.policy(*at)
            fitted[name] = _plane(estimated.mean[0], latent_covariance(estimated, at.action_std)[0], pair)
    exploration = at.action_std.expand(1, -1)[0, pair].tolist()
    return ActionCloud(
        state=row,
        actions=(int(pair[0]), int(pair[1])),
        action_std=(exploration[0], exploration[1]),
        points=tuple((x, y) for x, y in drawn.tolist()),
        sampled=_plane(sampled.mean[0], sampled.covariance[0], pair),
        estimators=fitted,
    )


def _plane(mean: Tensor, covariance: Tensor, pair: Tensor) -> PlaneGaussian:
    (a, b), (c, d) = covariance[pair][:, pair].tolist()
    x, y = mean[pair].tolist()
    return PlaneGaussian((x, y), ((a, b), (c, d)))
