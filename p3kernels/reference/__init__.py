"""Every op as plain torch: the truth that the kernels are held to. Differentiable, on any device, not fast."""

from p3kernels.reference.elu_moments import elu_moments
from p3kernels.reference.gaussian_head import gaussian_head
from p3kernels.reference.latent_noise import latent_noise
from p3kernels.reference.leaky_relu_moments import leaky_relu_moments
from p3kernels.reference.linear_elu_moments import linear_elu_moments
from p3kernels.reference.linear_moments import linear_moments
from p3kernels.reference.mixture_log_prob import mixture_log_prob
from p3kernels.reference.mlp_covariance import mlp_covariance
from p3kernels.reference.mlp_mixture_log_prob import mlp_mixture_log_prob
from p3kernels.reference.mlp_moments import mlp_moments
from p3kernels.reference.mlp_unscented import mlp_unscented
from p3kernels.reference.relu_moments import relu_moments

__all__ = [
    "elu_moments",
    "gaussian_head",
    "latent_noise",
    "leaky_relu_moments",
    "linear_elu_moments",
    "linear_moments",
    "mixture_log_prob",
    "mlp_covariance",
    "mlp_mixture_log_prob",
    "mlp_moments",
    "mlp_unscented",
    "relu_moments",
]
