"""Mean and variance of LeakyReLU(x), x ~ N(mean, var): f(x) = y − λ n with y = max(x, 0), n = max(−x, 0), y n = 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from p3kernels.reference.gaussian import chain, density_curvature, density_slope, guard, positive_part


class _LeakyReluMoments(torch.autograd.Function):
    @staticmethod
    def forward(mean: Tensor, var: Tensor, slope: float) -> tuple[Tensor, Tensor]:
        m, v = mean.double(), var.double()
        y = positive_part(m, v)
        out_mean = y.mean - slope * y.mirror_mean
        out_var = y.var + slope * (slope * y.mirror_var + 2 * y.mean * y.mirror_mean)
        return guard(mean, var, out_mean), guard(mean, var, out_var.clamp_min(0))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        mean, var, ctx.slope = inputs
        ctx.save_for_backward(mean, var)

    @staticmethod
    def backward(ctx: Any, d_out_mean: Tensor, d_out_var: Tensor) -> tuple[Tensor, Tensor, None]:
        mean, var = ctx.saved_tensors
        d_mean, d_var = chain(d_out_mean, d_out_var, mean, var, lambda: leaky_relu_gradients(mean, var, ctx.slope))
        return d_mean, d_var, None


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


def leaky_relu_moments(mean: Tensor, var: Tensor, negative_slope: float = 0.01) -> tuple[Tensor, Tensor]:
    """Moments of LeakyReLU(x), elementwise, with exact gradients; computed in float64 whatever the dtype."""
    out_mean, out_var = _LeakyReluMoments.apply(mean, var, negative_slope)
    return out_mean, out_var
