"""An estimator of one's own: the actor as its tangent at the latent's mean, as an extended Kalman filter has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from p3kernels.estimators.gaussian import GaussianPolicy
from p3kernels.estimators.protocol import Estimator


@dataclass(frozen=True)
class Linearised(Estimator):
    """N(actor(mean of z), J diag(latent_std²) Jᵀ + action_std²), of which the diagonal is kept; J is the Jacobian."""

    backend: str | None = None
    spelling: ClassVar[str] = "linearised"
    remembers: ClassVar[tuple[str, ...]] = ("mean", "scale")
    operators: ClassVar[bool] = False

    def policy(
        self, actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor, action_std: Tensor
    ) -> GaussianPolicy:
        """The policy; arguments as for `Estimator.policy`, and any layers will do."""

        def mean_of(latent: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            mean = actor(torch.cat([context, latent]))
            return mean, mean

        jacobian, mean = torch.func.vmap(torch.func.jacrev(mean_of, has_aux=True))(latent_mean, context)  # [B, A, Z]
        latent_var = (jacobian.square() * latent_std.square()[:, None]).sum(-1)
        return GaussianPolicy(mean, latent_var, action_std, latent_mean, latent_std, self.backend)


if __name__ == "__main__":
    actor = nn.Sequential(nn.Linear(3 + 2, 16), nn.ELU(), nn.Linear(16, 4))
    observed = torch.randn(8, 3), torch.randn(8, 2), torch.rand(8, 2), torch.full((4,), 0.5)
    policy = Linearised().policy(actor, *observed)
    action = policy.sample()
    print("log-likelihood", policy.log_prob(action).tolist())
