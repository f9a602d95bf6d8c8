"""`StoredComponent`: what open implementations of VAE policies on rsl_rl do, as a baseline to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from p3kernels import checks
from p3kernels.estimators.shared_noise import ComponentEstimator, ComponentPolicy, component


@dataclass(frozen=True)
class StoredComponent(ComponentEstimator):
    """Half of `SharedNoise`: the acting component's likelihood and mean are stored, the update draws a new latent.

    The old likelihood is that of the latent that acted, the new one that of another: their ratio is not 1 at unchanged
    weights, and the closed-form KL of two single components is about Σv/σ² whatever the update was. It is here because
    the paper's statements about VAE policies are statements about this; do not train with it.

    Args:
        backend: As for the ops.
    """

    spelling: ClassVar[str] = "vae-stored"
    remembers: ClassVar[tuple[str, ...]] = ("mean", "scale")

    @property
    def redraws(self) -> bool:
        """True: the latent is drawn anew."""
        return True

    def policy(
        self, actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor, action_std: Tensor
    ) -> ComponentPolicy:
        """The component of a latent drawn anew; arguments as for `Estimator.policy`, and any layers will do."""
        checks.check_policy(actor, context, latent_mean, latent_std, action_std)
        noise = torch.randn_like(latent_mean)
        mean = component(actor, context, latent_mean, latent_std, noise, self.backend)
        return ComponentPolicy(
            mean, torch.zeros_like(mean), action_std, latent_mean, latent_std, self.backend, noise=noise
        )
