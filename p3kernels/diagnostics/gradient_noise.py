"""Gradient noise: how much the surrogate's gradient varies when only the latents are drawn anew."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from p3kernels import checks
from p3kernels.diagnostics.inputs import LatentPolicy, check_count, diagnostic, judged_twice, seeded, takes_policy
from p3kernels.diagnostics.samples import actor_jacobian
from p3kernels.estimators.protocol import Estimator


@dataclass(frozen=True)
class GradientNoise:
    """How noisy the surrogate's gradient is, at a fixed minibatch."""

    noise: float
    """Trace of the covariance, over redraws, of the gradient in the actor's parameters; 0 without latents drawn."""
    standard_error: float
    """Standard error of `noise`."""
    signal: float
    """Squared norm of the mean gradient, what the noise adds to it taken off; may be below 0 where the noise covers
    it."""
    alignment: float
    """Mean cosine between the gradients of two redraws: 1 without noise, 0 where the latents decide the direction. It
    stays meaningful where the ratio's tails are so heavy that a variance over a few redraws is not."""
    action_noise: tuple[float, ...]
    """[B]: the same trace for a row's own term of the surrogate, in the row's action mean instead of parameters."""
    redraws: int

    @property
    def ratio(self) -> float:
        """Noise over signal; NaN where the signal cannot be told from 0."""
        return self.noise / self.signal if self.signal > 0 else math.nan


@diagnostic
def gradient_noise(
    estimator: Estimator,
    policy: LatentPolicy,
    action: Tensor,
    advantage: Tensor,
    *,
    clip: float | None = 0.2,
    common: bool = False,
    redraws: int = 32,
    seed: int | None = None,
) -> GradientNoise:
    """Variance, over redraws of the latents, of the gradient of PPO's surrogate where the old policy is the current.

    The surrogate is -mean min(r̂ A, clip(r̂) A), or -mean r̂ A without clipping, with r̂ the ratio of two likelihoods of
    one and the same policy. Minibatch, actions and advantages stay; what varies is the estimator's alone.

    Args:
        estimator: `MomentMatching()`, `MonteCarlo(n)` or alike.
        policy: Actor, observations, latents and exploration.
        action: [B, A].
        advantage: [B].
        clip: PPO's ε, or None for no clipping: what the paper's law is about.
        common: Current and old likelihood see the same latents, whatever the estimator.
        redraws: At least 2.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.
    """
    checks.check_shape("action", action, (len(policy.context), policy.action_std.shape[-1]))
    checks.check_shape("advantage", advantage, (len(policy.context),))
    check_count("redraws", redraws, 2)
    if clip is not None and not 0 < clip < 1:
        raise ValueError(f"clip: expected None or a number between 0 and 1, got {clip!r}")
    policy = policy.detached()
    parameters = list(policy.actor.parameters())
    gradients, rows = [], _Welford()
    with seeded(seed, policy.context.device), torch.inference_mode(False), torch.enable_grad():
        for _ in range(redraws):
            acted = action.detach().clone().requires_grad_()
            _, old, log_prob = judged_twice(estimator, policy, acted, common=common)
            ratio = (log_prob - old).exp()
            objective = ratio * advantage
            if clip is not None:
                objective = torch.minimum(objective, ratio.clamp(1 - clip, 1 + clip) * advantage)
            *of_parameters, of_action = torch.autograd.grad(-objective.mean(), [*parameters, acted])
            gradients.append(torch.cat([part.flatten() for part in of_parameters]).double())
            rows.add(len(policy.context) * of_action.double())
    stacked = torch.stack(gradients)
    deviation = (stacked - stacked.mean(0)).square().sum(-1) * redraws / (redraws - 1)
    noise = deviation.mean().item()
    return GradientNoise(
        noise=noise,
        standard_error=deviation.std().item() / math.sqrt(redraws),
        signal=stacked.mean(0).square().sum().item() - noise / redraws,
        alignment=_alignment(stacked),
        action_noise=tuple(rows.var().sum(-1).tolist()),
        redraws=redraws,
    )


def _alignment(gradients: Tensor) -> float:
    """Mean cosine over all pairs of gradients [K, P]; a gradient of 0 agrees with none."""
    units = gradients / gradients.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    count = len(units)
    lengths = units.square().sum()
    return ((units.sum(0).square().sum() - lengths) / (count * (count - 1))).item()


class _Welford:
    """Running variance."""

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, value: Tensor) -> None:
        self._count += 1
        delta = value - self._mean
        self._mean = self._mean + delta / self._count
        self._squares = self._squares + delta * (value - self._mean)

    def var(self) -> Tensor:
        return self._squares / (self._count - 1)


@takes_policy
def ratio_variance(policy: LatentPolicy) -> Tensor:
    """[B]: σ_vae² ‖J‖² / σ_act², the paper's variance of a single sample's likelihood ratio, to first order.

    With a std of its own for every latent and action: Σ_aj (latent_std_j J_aj / action_std_a)², float64.
    """
    jacobian = actor_jacobian(policy.actor, policy.context, policy.latent_mean).double()
    scaled = jacobian * policy.latent_std.double()[:, None, :] / policy.action_std.double()[..., None]
    return scaled.square().sum((1, 2))


@takes_policy
def noise_law(policy: LatentPolicy, advantage: Tensor, num_samples: int) -> Tensor:
    """[B]: the paper's law for `GradientNoise.action_noise` without clipping: 2 A²/N · d_a/σ_act² · σ_vae²‖J‖²/σ_act².

    The 2 is of the current and the old likelihood, which both vary; the paper leaves it out with all constants. The
    score's own dependence on the latents is left out as there.
    """
    score = policy.action_std.double().square().reciprocal().sum(-1)
    return 2 * advantage.double().square() / num_samples * score * ratio_variance(policy)
