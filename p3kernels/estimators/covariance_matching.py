"""`CovarianceMatching`: mean and covariance of the action, with the correlation between the actor's units."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p3kernels.estimators.gaussian import CorrelatedGaussianPolicy, GaussianPolicy
from p3kernels.nn import mlp_layers
from p3kernels.ops.mlp_covariance import TRANSFORMS, mlp_covariance
from p3kernels.reference.mlp_covariance import latent_directions

LIKELIHOODS = ("full", "diagonal")


@dataclass(frozen=True)
class CovarianceMatching:
    """Mean and covariance of the action in closed form, the correlation between the actor's units kept.

    Args:
        likelihood: "full" for N(mean, covariance), "diagonal" for the same variances and independent actions.
        transform: "linear" costs about A + `rank` passes through the actor, "unscented" 2 Z; see `mlp_covariance`.
        rank: Of the linear transform: directions of the latent in which the variances of hidden units keep their
            correlation, those that the actor's first two layers pass most strongly. The covariance itself has all.
        backend: As for the ops.
    """

    likelihood: str = "full"
    transform: str = "linear"
    rank: int = 8
    backend: str | None = None

    def __post_init__(self) -> None:
        if self.likelihood not in LIKELIHOODS:
            raise ValueError(f"likelihood: expected one of {', '.join(LIKELIHOODS)}, got {self.likelihood!r}")
        if self.transform not in TRANSFORMS:
            raise ValueError(f"transform: expected one of {', '.join(TRANSFORMS)}, got {self.transform!r}")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise ValueError(f"rank: expected an integer >= 1, got {self.rank!r}")

    def policy(
        self, actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor, action_std: Tensor
    ) -> GaussianPolicy | CorrelatedGaussianPolicy:
        """The marginal policy; arguments as for `MomentMatching.policy`."""
        layers = mlp_layers(actor)
        linear = self.transform == "linear"
        directions = latent_directions(layers.weights, latent_std.shape[-1], self.rank) if linear else None
        mean, covariance = mlp_covariance(
            torch.cat([context, latent_mean], -1),
            latent_std.square(),
            layers.weights,
            layers.biases,
            layers.activation,
            layers.activation_parameter,
            transform=self.transform,
            directions=directions,
            backend=self.backend,
        )
        if self.likelihood == "diagonal":
            latent_var = covariance.diagonal(dim1=-2, dim2=-1)
            return GaussianPolicy(mean, latent_var, action_std, latent_mean, latent_std, self.backend)
        return CorrelatedGaussianPolicy(mean, covariance, action_std, latent_mean, latent_std)
