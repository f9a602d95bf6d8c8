"""Policies whose marginal is known exactly: linear actors in float64."""

from __future__ import annotations

import torch
from torch import nn

from p3kernels.diagnostics import LatentPolicy

SIGMAS = 6
"""Standard errors allowed to a sampled number: a false alarm in 5e8; the seeds are fixed besides."""


def linear(weight: torch.Tensor, context: int = 2) -> nn.Sequential:
    """a = weight · z + 0.3 Σ context - 0.1, weight [A, Z]."""
    network = nn.Sequential(nn.Linear(context + weight.shape[1], weight.shape[0])).double()
    with torch.no_grad():
        network[0].weight[:, :context] = 0.3
        network[0].weight[:, context:] = weight
        network[0].bias.fill_(-0.1)
    return network


def policy(
    rows: int = 64, actions: int = 3, latents: int = 4, *, std: float = 0.5, action_std: float = 0.4, seed: int = 0
):
    """A linear actor with random weights, and its inputs."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    spread = std * (0.5 + torch.rand(rows, latents, generator=generator, dtype=torch.float64))
    noise = action_std * (0.5 + torch.rand(actions, generator=generator, dtype=torch.float64))
    return LatentPolicy(linear(normal(actions, latents)), normal(rows, 2), normal(rows, latents), spread, noise)


def latent_weight(one: LatentPolicy) -> torch.Tensor:
    """[A, Z]."""
    return one.actor[0].weight[:, one.context.shape[1] :].detach()


def exact_covariance(one: LatentPolicy) -> torch.Tensor:
    """[B, A, A] of the action by the latent."""
    weight = latent_weight(one)
    return torch.einsum("az,bz,cz->bac", weight, one.latent_std.square(), weight)


def exact_mean(one: LatentPolicy) -> torch.Tensor:
    """[B, A]."""
    return one.actor(torch.cat([one.context, one.latent_mean], -1)).detach()


def twins(rows: int = 64, bias: float = 50.0) -> LatentPolicy:
    """Two hidden units that are the same function of one latent: their sum has twice the std, not √2 times."""
    network = nn.Sequential(nn.Linear(2, 2), nn.ELU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[0.0, 1.0]]).expand(2, -1))
        network[0].bias.fill_(bias)  # 50: where ELU is the identity
        network[2].weight.copy_(torch.tensor([[1.0, 1.0], [-0.5, -0.5]]))
    zeros = torch.zeros(rows, 1, dtype=torch.float64)
    return LatentPolicy(network, zeros, zeros, zeros + 0.5, torch.full((2,), 0.4, dtype=torch.float64))
