"""`MomentMatching`, and `LatentMean`, what the estimators are compared with: the latent's distribution ignored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from p3kernels import checks
from p3kernels.estimators.gaussian import GaussianPolicy, propagated
from p3kernels.estimators.one_launch import act_in_one_launch
from p3kernels.estimators.protocol import Estimator
from p3kernels.ops.mlp_moments import mlp_moments


@dataclass(frozen=True)
class MomentMatching(Estimator):
    """Mean and variance of the latent pushed through the actor in closed form.

    The units of a layer are taken as independent, so the variance is too small where they are not; the mean is close.

    Args:
        backend: As for the ops.
    """

    backend: str | None = None
    spelling: ClassVar[str] = "mm"
    remembers: ClassVar[tuple[str, ...]] = ("mean", "scale")

    def policy(
        self, actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor, action_std: Tensor
    ) -> GaussianPolicy:
        """The marginal policy; arguments as for `Estimator.policy`."""
        checks.check_policy(actor, context, latent_mean, latent_std, action_std)
        mean, latent_var = propagated(mlp_moments, actor, context, latent_mean, latent_std, backend=self.backend)
        return GaussianPolicy(mean, latent_var, action_std, latent_mean, latent_std, self.backend)


@dataclass(frozen=True)
class LatentMean(Estimator):
    """The actor at the latent's mean: p(a | z = E[z]) in place of the marginal, and nothing of the latent's variance.

    Also the estimator of a deterministic latent, where it is exact.

    Args:
        backend: As for the ops.
    """

    backend: str | None = None
    spelling: ClassVar[str] = "z-mean"
    remembers: ClassVar[tuple[str, ...]] = ("mean", "scale")
    operators: ClassVar[bool] = False

    def policy(
        self, actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor, action_std: Tensor
    ) -> GaussianPolicy:
        """The policy; arguments as for `Estimator.policy`, and any layers will do."""
        checks.check_policy(actor, context, latent_mean, latent_std, action_std)
        mean = None if torch.is_grad_enabled() else act_in_one_launch(actor, context, latent_mean, None, self.backend)
        if mean is None:
            with torch.autocast(latent_mean.device.type, enabled=False):
                mean = actor(torch.cat([context, latent_mean], -1).to(action_std.dtype))
        return GaussianPolicy(mean, torch.zeros_like(mean), action_std, latent_mean, latent_std, self.backend)
