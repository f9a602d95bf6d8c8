"""Latent linearity: how well a straight line describes the actor along directions of its latent space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p3kernels.diagnostics.inputs import LatentPolicy, check_count, diagnostic, seeded
from p3kernels.diagnostics.samples import ROWS_AT_ONCE, action_means

RADII = ("unit", "typical")


@dataclass(frozen=True)
class Linearity:
    """R² of straight lines, averaged over states and directions."""

    r_squared: float
    """Over all actions too; 1 for a linear actor. The paper has 0.9706."""
    per_action: tuple[float, ...]
    """[A]."""
    worst: float
    """5 % quantile over states, directions and actions."""
    radius: str
    directions: int
    points: int


@diagnostic
@torch.no_grad()
def linearity(
    policy: LatentPolicy, *, directions: int = 100, points: int = 50, radius: str = "typical", seed: int | None = None
) -> Linearity:
    """R² of a least-squares line through the actor's output at `points` even steps within 2σ of the latent's mean.

    The latent is mean + t · std ∘ u, t from -2 to 2. The paper does not say how long a direction u is: with "unit",
    |u| = 1, and the ends are 2 posterior standard deviations away in all; with "typical", u ~ N(0, I), they are 2σ away
    in every coordinate, as far as samples really go (√Z standard deviations in all). The first is far more linear.

    Args:
        policy: Actor, observations and latents; its exploration is not used. An action that does not change along a
            direction has R² = 1 there.
        directions: Drawn for each state.
        points: Along each, at least 3.
        radius: "unit" or "typical".
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.
    """
    check_count("directions", directions, 1)
    check_count("points", points, 3)
    if radius not in RADII:
        raise ValueError(f"radius: expected one of {', '.join(RADII)}, got {radius!r}")
    actor, context, latent_mean, latent_std, _ = policy
    steps = torch.linspace(-2, 2, points, dtype=latent_mean.dtype, device=latent_mean.device)
    at_once = max(1, ROWS_AT_ONCE // points)
    parts = []
    with seeded(seed, context.device):
        for row in range(len(context)):
            ways = torch.randn(directions, latent_mean.shape[1], dtype=steps.dtype, device=steps.device)
            if radius == "unit":
                ways = ways / ways.norm(dim=-1, keepdim=True)
            for some in ways.split(at_once):
                latent = latent_mean[row] + latent_std[row] * some * steps[:, None, None]  # [P, D, Z]
                output = action_means(actor, context[row].expand(len(some), -1), latent)
                parts.append(_r_squared(steps.double(), output.double()))
    values = torch.cat(parts)
    return Linearity(
        r_squared=values.mean().item(),
        per_action=tuple(values.mean(0).tolist()),
        worst=torch.quantile(values.flatten()[:: max(1, values.numel() // 1_000_000)], 0.05).item(),
        radius=radius,
        directions=directions,
        points=points,
    )


def _r_squared(steps: Tensor, output: Tensor) -> Tensor:
    """[D, A] of output [P, D, A] at steps [P] that are symmetric about 0."""
    centred = output - output.mean(0)
    slope = (steps[:, None, None] * centred).sum(0) / steps.square().sum()
    total = centred.square().sum(0)
    left = (centred - steps[:, None, None] * slope).square().sum(0)
    # What is only the rounding of a constant is no curvature.
    constant = total <= len(steps) * (1e-6 * output.abs().amax(0)).square()
    return torch.where(constant, 1.0, 1 - left / total.clamp_min(1e-300))
