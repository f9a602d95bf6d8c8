"""Gradient fidelity: how much of the true policy gradient is in the surrogate's, and how much else."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p3kernels.diagnostics.inputs import LatentPolicy, check_clip, check_count, diagnostic, judged_twice, seeded
from p3kernels.estimators.protocol import Estimator


@dataclass(frozen=True)
class GradientFidelity:
    """How true the surrogate's gradient in the actor's parameters is, at fixed observations and a known return.

    A description, not a ranking: what trains well is decided by training (docs/diagnostics.md).
    """

    cosine: float
    """Between the mean gradient over redraws and the true one."""
    scale: float
    """The mean gradient's part along the true one, in units of its length: 1 where nothing is lost or added."""
    noise: float
    """Root of the trace of one redraw's covariance, in lengths of the true gradient: the step of a minibatch of as many
    rows is the mean gradient and so much noise."""
    redraws: int


@dataclass(frozen=True)
class KnownReturn:
    """-½ mean_a ((a - target_a) / σ_a)², as an advantage: less its mean given the observation, in units of its std."""

    target: Tensor
    """[B, A]."""
    scale: Tensor
    """[A] or [B, A]: σ, as it was when the return was made."""
    baseline: Tensor
    """[B]."""
    spread: Tensor
    """[]."""

    def __call__(self, action: Tensor) -> Tensor:
        """[..., B] of actions [..., B, A]."""
        value = -0.5 * ((action - self.target) / self.scale).square().mean(-1)
        return (value - self.baseline) / self.spread


@diagnostic
def gradient_fidelity(
    estimator: Estimator,
    policy: LatentPolicy,
    *,
    clip: float = 0.2,
    dual_clip: float | None = None,
    redraws: int = 64,
    reference_samples: int = 2048,
    seed: int | None = None,
) -> GradientFidelity:
    """The gradient of PPO's surrogate at unchanged weights against that of the expected return itself.

    The return is quadratic in the action, with a target one exploration std away in every action, so that its expected
    value over latent and exploration can be differentiated pathwise: that is the reference, by `reference_samples`
    actions a row. A redraw is what an update does: actions are drawn, remembered and judged again.

    Args:
        estimator: `MomentMatching()`, `MonteCarlo(n)` or alike.
        policy: Actor, observations, latents and exploration.
        clip: PPO's ε.
        dual_clip: Bound on the loss of a row of negative advantage, in units of that advantage; None for none.
        redraws: At least 2; the mean gradient is known to noise / √redraws.
        reference_samples: At least 2.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.
    """
    check_count("redraws", redraws, 2)
    check_count("reference_samples", reference_samples, 2)
    check_clip(clip)
    policy = policy.detached()
    parameters = list(policy.actor.parameters())
    gradients = []
    with seeded(seed, policy.context.device), torch.inference_mode(False), torch.enable_grad():
        advantage = _known_return(policy, reference_samples)
        true = _pathwise_gradient(policy, advantage, reference_samples, parameters)
        for _ in range(redraws):
            action, old, log_prob = judged_twice(estimator, policy)
            worth = advantage(action)
            ratio = (log_prob - old).clamp(max=80.0).exp()  # as an update has it: no overflow
            gain = torch.minimum(ratio * worth, ratio.clamp(1 - clip, 1 + clip) * worth)
            if dual_clip is not None:
                gain = torch.where(worth < 0, torch.maximum(gain, dual_clip * worth), gain)
            gradients.append(_flat(torch.autograd.grad(gain.mean(), parameters)))
    stacked = torch.stack(gradients)
    mean, length = stacked.mean(0), true.norm()
    variance = (stacked - mean).square().sum(-1).sum() / (redraws - 1)
    return GradientFidelity(
        cosine=(mean @ true / (mean.norm() * length)).item(),
        scale=(mean @ true / length.square()).item(),
        noise=(variance.sqrt() / length).item(),
        redraws=redraws,
    )


def _flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


def _actions(policy: LatentPolicy) -> Tensor:
    """[B, A] of a latent and an exploration drawn anew, differentiable in the actor's parameters."""
    latent = policy.latent_mean + policy.latent_std * torch.randn_like(policy.latent_mean)
    mean = policy.actor(torch.cat([policy.context, latent], -1))
    return mean + policy.action_std * torch.randn_like(mean)


@torch.no_grad()
def _known_return(policy: LatentPolicy, samples: int) -> KnownReturn:
    centre = policy.actor(torch.cat([policy.context, policy.latent_mean], -1))
    target = centre + policy.action_std * torch.randn_like(centre)
    plain = KnownReturn(target, policy.action_std, centre.new_zeros(len(centre)), centre.new_ones(()))
    values = torch.stack([plain(_actions(policy)) for _ in range(min(samples, 512))])
    return KnownReturn(target, policy.action_std, values.mean(0), values.std())


def _pathwise_gradient(
    policy: LatentPolicy, advantage: KnownReturn, samples: int, parameters: list[nn.Parameter]
) -> Tensor:
    """Gradient of the mean over rows of E[advantage], by so many actions a row."""
    total = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    for _ in range(samples):
        gradient = torch.autograd.grad(advantage(_actions(policy)).mean(), parameters)
        total = total.to(gradient[0].device) + _flat(gradient) / samples
    assert math.isfinite(total.sum().item()), "the actor's numbers were checked"
    return total
