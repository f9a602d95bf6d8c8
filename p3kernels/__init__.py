"""Gaussian moments and mixture likelihoods through an MLP, as torch ops: the estimators of P³."""

from p3kernels.backends import available_backends
from p3kernels.estimators import CovarianceMatching, LatentMean, MomentMatching, MonteCarlo, SharedNoise
from p3kernels.ops.elu_moments import elu_moments
from p3kernels.ops.gaussian_head import gaussian_head
from p3kernels.ops.leaky_relu_moments import leaky_relu_moments
from p3kernels.ops.linear_elu_moments import linear_elu_moments
from p3kernels.ops.linear_moments import linear_moments
from p3kernels.ops.mixture_log_prob import mixture_log_prob
from p3kernels.ops.mlp_covariance import mlp_covariance
from p3kernels.ops.mlp_mixture_log_prob import mlp_mixture_log_prob
from p3kernels.ops.mlp_moments import mlp_moments
from p3kernels.ops.relu_moments import relu_moments
from p3kernels.version import __version__

__all__ = [
    "CovarianceMatching",
    "LatentMean",
    "MomentMatching",
    "MonteCarlo",
    "SharedNoise",
    "__version__",
    "available_backends",
    "elu_moments",
    "gaussian_head",
    "leaky_relu_moments",
    "linear_elu_moments",
    "linear_moments",
    "mixture_log_prob",
    "mlp_covariance",
    "mlp_mixture_log_prob",
    "mlp_moments",
    "relu_moments",
]
