"""`SharedNoise`: the latent's noise as a part of the observation, the same in every likelihood of an action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from p3kernels import checks
from p3kernels.estimators.gaussian import GaussianPolicy
from p3kernels.estimators.one_launch import act_in_one_launch
from p3kernels.estimators.protocol import Estimator


@dataclass(frozen=True)
class ComponentPolicy(GaussianPolicy):
    """N(actor([context, z]), action_std²) at one latent z = latent_mean + latent_std ∘ noise of each row."""

    noise: Tensor = field(kw_only=True)
    """[B, Z]."""

    def latent(self) -> Tensor:
        """The latent [B, Z] of the policy itself, differentiable: actor and decoder see the same one."""
        return torch.addcmul(self.latent_mean, self.latent_std, self.noise)


@dataclass(frozen=True)
class SharedNoisePolicy(ComponentPolicy):
    """As `ComponentPolicy`; the noise is remembered with the action."""

    def remember(self, action: Tensor) -> dict[str, Tensor]:
        """`log_prob` [B], `mean` and `scale` [B, A], and `noise` [B, Z]."""
        return {**super().remember(action), "noise": self.noise}


def component(
    actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor, noise: Tensor, backend: str | None
) -> Tensor:
    """actor([context, latent_mean + latent_std ∘ noise]) [B, A]: in one launch where the backend has it."""
    latent = torch.addcmul(latent_mean, latent_std, noise)
    mean = None if torch.is_grad_enabled() else act_in_one_launch(actor, context, latent, None, backend)
    if mean is None:
        with torch.autocast(latent.device.type, enabled=False):
            mean = actor(torch.cat([context, latent], -1).to(latent_mean.dtype))
    return mean


@dataclass(frozen=True)
class ComponentEstimator(Estimator):
    """An estimator whose policies are the component of one latent.

    Args:
        backend: As for the ops.
    """

    backend: str | None = None
    operators: ClassVar[bool] = False

    @property
    def num_latents(self) -> int:
        """One latent, that of the component."""
        return 1


@dataclass(frozen=True)
class SharedNoise(ComponentEstimator):
    """The policy given the latent's noise: a = actor([context, latent_mean + latent_std ∘ ε]) + action_std ∘ ξ.

    ε is drawn when acting, is remembered, and is the same in every later likelihood of that action. It is exogenous and
    independent of everything, so [o, ε] is a larger observation, and the policy gradient on it is exactly that of the
    return, without a marginal likelihood. The ratio is 1 at unchanged weights, KL and entropy have closed forms, and
    gradients reach the encoder by reparameterisation. Its price is the score's variance, 1/σ² rather than 1/(σ² + v);
    docs/derivation.md has the proofs.

    Args:
        backend: As for the ops.
    """

    spelling: ClassVar[str] = "shared"
    remembers: ClassVar[tuple[str, ...]] = ("mean", "scale", "noise")

    def policy(
        self,
        actor: nn.Sequential,
        context: Tensor,
        latent_mean: Tensor,
        latent_std: Tensor,
        action_std: Tensor,
        noise: Tensor | None = None,
    ) -> SharedNoisePolicy:
        """The policy given the noise; arguments as for `Estimator.policy`, and any layers will do.

        Args:
            actor: As for `Estimator.policy`; the next four alike.
            context: [B, C].
            latent_mean: [B, Z].
            latent_std: [B, Z].
            action_std: [A] or [B, A].
            noise: [B, Z] of an action that was taken; None draws it, and `policy.noise` tells it.

        Raises:
            TypeError: A noise that is no tensor, or of another dtype.
            ValueError: A noise of another shape or device.
        """
        checks.check_policy(actor, context, latent_mean, latent_std, action_std)
        if noise is None:
            noise = torch.randn_like(latent_mean)
        else:
            checks.check_tensor("noise", noise, 2)
            checks.check_like("noise", noise, "latent_mean", latent_mean)
            checks.check_shape("noise", noise, latent_mean.shape)
        mean = component(actor, context, latent_mean, latent_std, noise, self.backend)
        return SharedNoisePolicy(
            mean, torch.zeros_like(mean), action_std, latent_mean, latent_std, self.backend, noise=noise
        )

    def recalled(self, remembered: Mapping[str, Tensor], seed: Tensor | None) -> dict[str, Any]:
        """The remembered noise."""
        return {"noise": remembered["noise"]}
