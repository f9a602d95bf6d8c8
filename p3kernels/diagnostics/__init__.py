"""What an estimator does to a policy, in numbers: one diagnostic a file; `plots` draws them."""

from p3kernels.diagnostics.action_cloud import ActionCloud, PlaneGaussian, action_cloud
from p3kernels.diagnostics.correlation import Correlation, correlation
from p3kernels.diagnostics.data_efficiency import DataEfficiency, data_efficiency
from p3kernels.diagnostics.gaussianity import Gaussianity, gaussianity
from p3kernels.diagnostics.gradient_fidelity import GradientFidelity, gradient_fidelity
from p3kernels.diagnostics.gradient_noise import GradientNoise, gradient_noise, noise_law, ratio_variance
from p3kernels.diagnostics.inputs import LatentPolicy
from p3kernels.diagnostics.kl_scan import Estimate, KlPoint, KlScan, kl_scan, policy_kl
from p3kernels.diagnostics.linearity import Linearity, linearity
from p3kernels.diagnostics.noise_scaling import NoiseLaws, NoiseScaling, PowerLaw, noise_scaling
from p3kernels.diagnostics.samples import SampledMoments, actor_jacobian, sampled_moments
from p3kernels.diagnostics.variance_gap import PropagatedMoments, VarianceGap, variance_gap

__all__ = [
    "ActionCloud",
    "Correlation",
    "DataEfficiency",
    "Estimate",
    "Gaussianity",
    "GradientFidelity",
    "GradientNoise",
    "KlPoint",
    "KlScan",
    "LatentPolicy",
    "Linearity",
    "NoiseLaws",
    "NoiseScaling",
    "PlaneGaussian",
    "PowerLaw",
    "PropagatedMoments",
    "SampledMoments",
    "VarianceGap",
    "action_cloud",
    "actor_jacobian",
    "correlation",
    "data_efficiency",
    "gaussianity",
    "gradient_fidelity",
    "gradient_noise",
    "kl_scan",
    "linearity",
    "noise_law",
    "noise_scaling",
    "policy_kl",
    "ratio_variance",
    "sampled_moments",
    "variance_gap",
]
