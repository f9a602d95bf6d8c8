"""`CovarianceMatching`: mean and covariance of the action, with the correlation between the actor's units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from p3kernels import checks
from p3kernels.estimators.gaussian import CorrelatedGaussianPolicy, GaussianPolicy, propagated
from p3kernels.estimators.protocol import Estimator
from p3kernels.nn import mlp_layers
from p3kernels.ops.mlp_covariance import TRANSFORMS, mlp_covariance
from p3kernels.reference.mlp_covariance import latent_directions

LIKELIHOODS = ("full", "diagonal")


@dataclass(frozen=True)
class CovarianceMatching(Estimator):
    """Mean and covariance of the action in closed form, the correlation between the actor's units kept.

    Args:
        likelihood: "full" for N(mean, covariance), "diagonal" for the same variances and independent actions.
        transform: "linear" costs about A + `rank` passes through the actor, "unscented" 2 Z; see `mlp_covariance`.
        rank: Rank of the linear transform: directions of the latent in which the variances of hidden units keep their
            correlation, those that the actor's first two layers pass most strongly. The covariance itself has all.
        backend: As for the ops.
    """

    likelihood: str = "full"
    transform: str = "linear"
    rank: int = 8
    backend: str | None = None
    spelling: ClassVar[str] = "cm, cm-diagonal, cm-unscented"
    remembers: ClassVar[tuple[str, ...]] = ("mean", "scale")

    def __post_init__(self) -> None:
        if self.likelihood not in LIKELIHOODS:
            raise ValueError(f"likelihood: expected one of {', '.join(LIKELIHOODS)}, got {self.likelihood!r}")
        if self.transform not in TRANSFORMS:
            raise ValueError(f"transform: expected one of {', '.join(TRANSFORMS)}, got {self.transform!r}")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise ValueError(f"rank: expected an integer >= 1, got {self.rank!r}")

    @property
    def label(self) -> str:
        """cm, cm-diagonal, cm-unscented or cm-diagonal-unscented; other ranks are not told apart."""
        parts = ["diagonal"] * (self.likelihood == "diagonal") + ["unscented"] * (self.transform == "unscented")
        return "-".join(["cm", *parts])

    @classmethod
    def spelt(cls, text: str) -> CovarianceMatching | None:
        """The one of this label."""
        every = [cls(likelihood, transform) for likelihood in LIKELIHOODS for transform in TRANSFORMS]
        return next((one for one in every if one.label == text), None)

    def policy(
        self, actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor, action_std: Tensor
    ) -> GaussianPolicy | CorrelatedGaussianPolicy:
        """The marginal policy; arguments as for `Estimator.policy`."""
        checks.check_policy(actor, context, latent_mean, latent_std, action_std)
        linear = self.transform == "linear"
        weights = mlp_layers(actor).weights
        directions = latent_directions(weights, latent_std.shape[-1], self.rank) if linear else None
        options = {"transform": self.transform, "directions": directions, "backend": self.backend}
        mean, covariance = propagated(mlp_covariance, actor, context, latent_mean, latent_std, **options)
        if self.likelihood == "diagonal":
            latent_var = covariance.diagonal(dim1=-2, dim2=-1)
            return GaussianPolicy(mean, latent_var, action_std, latent_mean, latent_std, self.backend)
        return CorrelatedGaussianPolicy(mean, covariance, action_std, latent_mean, latent_std)
