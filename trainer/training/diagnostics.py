"""What a training tells about its policy and its process while it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from p3kernels import MomentMatching, MonteCarlo
from p3kernels.diagnostics import LatentPolicy, data_efficiency, sampled_moments
from p3kernels.estimators import Estimator

ACTIVE_VAR = 0.01
"""A latent whose mean varies less over the observations tells them apart no better than its prior."""
LATENT_SAMPLES = 32
"""For the action's variance by the latent: a row's is known to 25 %, and the mean over rows far better."""


class LatentDistribution(Protocol):
    """q(z | o), a diagonal Gaussian."""

    @property
    def mean(self) -> Tensor:
        """[B, Z]."""

    @property
    def std(self) -> Tensor:
        """[B, Z]."""


class Actor(Protocol):
    """The parts of an actor that are looked at; P3Actor's and the baselines'."""

    @property
    def mlp(self) -> nn.Sequential:
        """Takes [context, z]."""

    @property
    def estimator(self) -> Estimator:
        """Estimator of the policy that is trained."""

    @property
    def action_std(self) -> Tensor:
        """[A]."""

    def encode(self, obs: Any) -> tuple[Tensor, LatentDistribution]:
        """Context [B, C] and the latent [B, Z]."""


@torch.inference_mode()
def policy_scalars(actor: Actor, observations: Any) -> dict[str, float]:
    """Exploration and latent, on observations [B]; cheap enough for every iteration.

    Returns:
        `policy/action_std`, the mean over actions. With a latent also `policy/latent_std`, the mean std of the
        posterior, left out where the encoder is deterministic, and `policy/active_latents`, how many columns' means
        vary by more than 0.01 over the observations, left out where there is only one.
    """
    _, latent = actor.encode(observations)
    scalars = {"policy/action_std": actor.action_std.mean().item()}
    if latent.mean.shape[1] == 0:
        return scalars
    if bool((latent.std != 0).any()):
        scalars["policy/latent_std"] = latent.std.mean().item()
    if len(latent.mean) > 1:
        scalars["policy/active_latents"] = float((latent.mean.var(0) > ACTIVE_VAR).sum())
    return scalars


@torch.inference_mode()
def latent_scalars(actor: Actor, observations: Any, *, clip: float, seed: int) -> dict[str, float]:
    """What the latent's uncertainty does to likelihoods and actions; some dozens of passes through the actor.

    Args:
        actor: With its present estimator.
        observations: [B], that were not in the update: on those that were, likelihoods are fitted.
        clip: PPO's ε.
        seed: Seed of everything that is drawn here; torch's own generators stay as they are.

    Returns:
        `d_eff/trained`, the data efficiency of the actor's own estimator, `d_eff/n1` and `d_eff/n15`, of Monte Carlo
        with 1 and 15 samples; `policy/latent_share`, Σv/σ²: the action's variance by the latent, over sampled latents,
        in units of the exploration's, summed over actions; `policy/latent_action_std`, the root of its mean, and
        `policy/latent_action_std_mm`, the same by moment matching. Nothing where there is no latent or it is certain,
        nor where the actor's numbers are not finite.
    """
    context, latent = actor.encode(observations)
    mean, std, action_std = latent.mean, latent.std, actor.action_std
    if len(mean) == 0 or mean.shape[1] == 0 or not bool((std != 0).any()):
        return {}
    numbers = (context, mean, std, action_std, actor.mlp(torch.cat([context, mean], -1)), *actor.mlp.parameters())
    if not all(bool(tensor.isfinite().all()) for tensor in numbers):
        return {}
    policy = LatentPolicy(actor.mlp, context, mean, std, action_std)
    estimators: dict[str, Estimator] = {"trained": actor.estimator, "n1": MonteCarlo(1), "n15": MonteCarlo(15)}
    scalars = {
        f"d_eff/{name}": data_efficiency(estimator, policy, clip=clip, seed=seed).share
        for name, estimator in estimators.items()
    }
    matched = MomentMatching().policy(*policy)
    generator = torch.Generator(mean.device).manual_seed(seed)
    sampled = sampled_moments(*policy[:4], LATENT_SAMPLES, generator)
    scalars["policy/latent_share"] = (sampled.var / action_std.double().square()).sum(-1).mean().item()
    scalars["policy/latent_action_std"] = sampled.var.mean().sqrt().item()
    scalars["policy/latent_action_std_mm"] = matched.latent_var.mean().sqrt().item()
    return scalars


def resident_mib() -> float:
    """This process's resident memory in MiB: now, or where there is no /proc the most that it ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        import resource  # noqa: PLC0415  not on Windows

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB elsewhere
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
