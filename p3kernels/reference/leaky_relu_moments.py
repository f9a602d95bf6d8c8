"""Mean and variance of LeakyReLU(x), x ~ N(mean, var): f(x) = y − λ n with y = max(x, 0), n = max(−x, 0), y n = 0."""

from __future__ import annotations

from torch import Tensor

from p3kernels.reference.elementwise import evaluate, moments_formulas
from p3kernels.reference.gaussian import (
    LARGEST_SLOPE,
    density_curvature,
    density_slope,
    guard,
    positive_part,
)


def _leaky_relu_values(mean: Tensor, var: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """E[f] and Var[f]."""
    y = positive_part(mean.double(), var.double())
    out_mean = y.mean - slope * y.mirror_mean
    out_var = y.var + slope * (slope * y.mirror_var + 2 * y.mean * y.mirror_mean)
    return guard(mean, var, out_mean), guard(mean, var, out_var.clamp_min(0))


def leaky_relu_gradients(mean: Tensor, var: Tensor, slope: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """∂out_mean/∂mean, ∂out_mean/∂var, ∂out_var/∂mean, ∂out_var/∂var, by Price's theorem."""
    m, v = mean.double(), var.double()
    y = positive_part(m, v)
    kink = 1 - slope
    mean_mean = y.above + slope * y.below
    mean_var = 0.5 * kink * y.density_over_std
    var_mean = 2 * kink * (y.below * y.mean + slope * y.above * y.mirror_mean)
    var_var = y.above + slope**2 * y.below - kink * y.density_over_std * (y.mean - slope * y.mirror_mean)
    return (
        guard(mean, var, mean_mean),
        guard(mean, var, mean_var),
        guard(mean, var, var_mean),
        guard(mean, var, var_var),
    )


def leaky_relu_derivatives(mean: Tensor, var: Tensor, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    """E[f″], E[f‴] and E[f⁗]: each the derivative by `mean` of the one before, the first that of the gain E[f′]."""
    m = mean.double()
    y = positive_part(m, var.double())
    second, third, fourth = (
        (1 - slope) * part for part in (y.density_over_std, density_slope(y), density_curvature(m, y))
    )
    return guard(mean, var, second), guard(mean, var, third), guard(mean, var, fourth)


def _leaky_relu_curvatures(mean: Tensor, var: Tensor, slope: float) -> tuple[Tensor, ...]:
    """∂²E/∂mean², ∂²E/∂mean∂var, ∂²E/∂var², and those of Var; docs/derivation.md."""
    m, v = mean.double(), var.double()
    mean_mean, _, _, var_var = leaky_relu_gradients(m, v, slope)
    second, third, fourth = leaky_relu_derivatives(m, v, slope)
    y = positive_part(m, v)
    density, bend, curvature = y.density_over_std, density_slope(y), density_curvature(m, y)
    kink, value = 1 - slope, y.mean - slope * y.mirror_mean
    by_mean = (1 - slope**2) * density - kink * (bend * value + density * mean_mean)
    by_var = 0.5 * (1 - slope**2) * bend - 0.5 * kink * (curvature * value + kink * density.square())
    var_mean_mean = 2 * (var_var - mean_mean.square())
    values = (second, 0.5 * third, 0.25 * fourth, var_mean_mean, by_mean, by_var)
    return tuple(guard(mean, var, value.clamp(-LARGEST_SLOPE, LARGEST_SLOPE)) for value in values)


LEAKY_RELU_MOMENTS = moments_formulas(
    "the moments of LeakyReLU", _leaky_relu_values, leaky_relu_gradients, _leaky_relu_curvatures
)


def leaky_relu_moments(mean: Tensor, var: Tensor, negative_slope: float = 0.01) -> tuple[Tensor, Tensor]:
    """Moments of LeakyReLU(x), elementwise, with exact derivatives up to second; in float64 whatever the dtype."""
    out_mean, out_var = evaluate(mean, var, LEAKY_RELU_MOMENTS, negative_slope)
    return out_mean, out_var
