"""Estimators of one marginal policy π(a | o) = ∫ p(a | z) q(z | o) dz, on the same actor and weights.

`MomentMatching` and `MonteCarlo` are P³'s two; `CovarianceMatching` is deterministic as the first and keeps the
correlation that it loses; `SharedNoise` needs no marginal, for it takes the latent's noise as observed. They are
compared with `LatentMean`, the latent's distribution ignored, and `StoredComponent`, what open implementations do.
`protocol` says what every one of them can do.
"""

from p3kernels.estimators.covariance_matching import CovarianceMatching
from p3kernels.estimators.gaussian import CorrelatedGaussianPolicy, GaussianPolicy
from p3kernels.estimators.moment_matching import LatentMean, MomentMatching
from p3kernels.estimators.monte_carlo import MonteCarlo, MonteCarloPolicy
from p3kernels.estimators.protocol import Estimator, Judgement, Policy, parse_estimator
from p3kernels.estimators.shared_noise import SharedNoise, SharedNoisePolicy
from p3kernels.estimators.stored_component import StoredComponent

__all__ = [
    "CorrelatedGaussianPolicy",
    "CovarianceMatching",
    "Estimator",
    "GaussianPolicy",
    "Judgement",
    "LatentMean",
    "MomentMatching",
    "MonteCarlo",
    "MonteCarloPolicy",
    "Policy",
    "SharedNoise",
    "SharedNoisePolicy",
    "StoredComponent",
    "parse_estimator",
]
