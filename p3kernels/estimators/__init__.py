"""Estimators of one marginal policy π(a | o) = ∫ p(a | z) q(z | o) dz, on the same actor and weights.

`MomentMatching` and `MonteCarlo` are P³'s two; `CovarianceMatching` is deterministic as the first and keeps the
correlation that it loses; `LatentMean` is what they are compared with: the latent's distribution ignored.
"""

from p3kernels.estimators.covariance_matching import CovarianceMatching
from p3kernels.estimators.gaussian import CorrelatedGaussianPolicy, GaussianPolicy
from p3kernels.estimators.moment_matching import LatentMean, MomentMatching
from p3kernels.estimators.monte_carlo import MonteCarlo, MonteCarloPolicy

__all__ = [
    "CorrelatedGaussianPolicy",
    "CovarianceMatching",
    "GaussianPolicy",
    "LatentMean",
    "MomentMatching",
    "MonteCarlo",
    "MonteCarloPolicy",
]
