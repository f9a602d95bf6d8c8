"""Mean and variance of ELU(x), x ~ N(mean, var), exact to rounding. Derivation: docs/derivation.md."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from p3kernels.reference.elementwise import evaluate, moments_formulas
from p3kernels.reference.gaussian import (
    LARGEST_SLOPE,
    PositivePart,
    density_curvature,
    density_slope,
    guard,
    positive_part,
)

# Below this step of erfcx's argument its differences come from the Taylor series.
_SERIES_STEP = 0.02
_SERIES_TERMS = 10
_SMALL_STD = 0.5


@dataclass
class _EluParts:
    """ELU(x) = y − α u with y = max(x, 0) and u = 1 − e^min(x, 0); y u = 0."""

    y: PositivePart
    u_mean: Tensor
    u_var: Tensor
    exp_1: Tensor
    """E[e^x; x ≤ 0]."""
    exp_2: Tensor
    """E[e^2x; x ≤ 0]."""


def _erfcx_differences(b: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """erfcx(b) − erfcx(b + step) and erfcx(b) − 2 erfcx(b + step) + erfcx(b + 2 step), without cancellation."""
    values = [torch.special.erfcx(b + k * step) for k in range(3)]
    first, second = values[0] - values[1], values[0] - 2 * values[1] + values[2]
    # c_n = erfcx⁽ⁿ⁾(b) / n!, c_(n+1) = (2 b c_n + 2 c_(n-1)) / (n + 1)
    series_first, series_second = torch.zeros_like(b), torch.zeros_like(b)
    previous, current = values[0], 2 * b * values[0] - 2 / math.sqrt(math.pi)
    power = step
    for n in range(1, _SERIES_TERMS + 1):
        series_first = series_first - current * power
        series_second = series_second + current * power * (2**n - 2)
        previous, current = current, (2 * b * current + 2 * previous) / (n + 1)
        power = power * step
    small = step.abs() < _SERIES_STEP
    return torch.where(small, series_first, first), torch.where(small, series_second, second)


def _elu_parts(mean: Tensor, var: Tensor) -> _EluParts:
    y = positive_part(mean, var)
    step = y.std / math.sqrt(2)
    b = y.beta / math.sqrt(2)
    positive = mean >= 0
    half_density = 0.5 * y.exp_half_square

    # Zero below the mean, or far above it, or a narrow distribution: differences of erfcx from |b|, towards or away.
    lognormal = ~positive & ((b + 2 * step <= 0) | (y.std <= _SMALL_STD))
    signed_step = torch.where(positive, step, -step)
    # Where neither holds the result is not used; keep the arguments harmless there.
    usable = positive | lognormal
    first, second = _erfcx_differences(b.abs().clamp_max(1e8), torch.where(usable, signed_step, step))
    first, second = half_density * first, half_density * second

    # E[e^kx; x ≤ 0], from whichever tail is the small one.
    exponentials = []
    for k in (1, 2):
        argument = b + k * step
        tail = half_density * torch.special.erfcx(argument.abs())
        whole = torch.exp((k * mean + 0.5 * k * k * var).clamp_max(0))
        exponentials.append(torch.where(argument < 0, whole - tail, tail))
    exp_1, exp_2 = exponentials

    expm1 = torch.expm1((mean + 0.5 * var).clamp_max(1))
    lognormal_var = -torch.exp((2 * mean + 2 * var).clamp_max(1)) * torch.expm1(-var)
    far_mean, far_var = -first - expm1, lognormal_var - second - first * (first + 2 * expm1)
    near_mean, near_var = y.below - exp_1, y.above + exp_2 - (y.above + exp_1).square()
    u_mean = torch.where(positive, first, torch.where(lognormal, far_mean, near_mean))
    u_var = torch.where(positive, second - first.square(), torch.where(lognormal, far_var, near_var))
    return _EluParts(y, u_mean, u_var, exp_1, exp_2)


def _elu_values(mean: Tensor, var: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """E[f] and Var[f]."""
    parts = _elu_parts(mean.double(), var.double())
    y = parts.y
    out_mean = y.mean - alpha * parts.u_mean
    out_var = y.var + alpha * (alpha * parts.u_var + 2 * y.mean * parts.u_mean)
    return guard(mean, var, out_mean), guard(mean, var, out_var.clamp_min(0))


def elu_gradients(mean: Tensor, var: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """∂out_mean/∂mean, ∂out_mean/∂var, ∂out_var/∂mean, ∂out_var/∂var, by Price's theorem."""
    m, v = mean.double(), var.double()
    parts = _elu_parts(m, v)
    y, u_mean, exp_1, exp_2 = parts.y, parts.u_mean, parts.exp_1, parts.exp_2
    kink = 1 - alpha
    mean_mean = y.above + alpha * exp_1
    mean_var = 0.5 * (alpha * exp_1 + kink * y.density_over_std)
    var_mean = 2 * (
        kink * (y.mean * y.below + alpha * y.above * u_mean) + alpha * (y.mean * u_mean + alpha * parts.u_var)
    )
    var_var = (
        y.above
        + alpha * (alpha * (2 * exp_2 - exp_1 * (exp_1 + y.above)) - y.mean * exp_1)
        - kink * y.density_over_std * (y.mean - alpha * u_mean)
    )
    return (
        guard(mean, var, mean_mean),
        guard(mean, var, mean_var),
        guard(mean, var, var_mean),
        guard(mean, var, var_var),
    )


def elu_derivatives(mean: Tensor, var: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """E[f″], E[f‴] and E[f⁗]: each the derivative by `mean` of the one before, the first that of the gain E[f′]."""
    m, v = mean.double(), var.double()
    parts = _elu_parts(m, v)
    density, slope, curvature = parts.y.density_over_std, density_slope(parts.y), density_curvature(m, parts.y)
    kink = 1 - alpha
    second = alpha * parts.exp_1 + kink * density
    third = alpha * (parts.exp_1 - density) + kink * slope
    fourth = alpha * (parts.exp_1 - density - slope) + kink * curvature
    return guard(mean, var, second), guard(mean, var, third), guard(mean, var, fourth)


def _elu_curvatures(mean: Tensor, var: Tensor, alpha: float) -> tuple[Tensor, ...]:
    """∂²E/∂mean², ∂²E/∂mean∂var, ∂²E/∂var², and those of Var; docs/derivation.md."""
    m, v = mean.double(), var.double()
    mean_mean, _, _, var_var = elu_gradients(m, v, alpha)
    second, third, fourth = elu_derivatives(m, v, alpha)
    parts = _elu_parts(m, v)
    y, exp_1, exp_2, u_mean = parts.y, parts.exp_1, parts.exp_2, parts.u_mean
    density, slope, curvature = y.density_over_std, density_slope(y), density_curvature(m, y)
    kink = 1 - alpha

    def of_var_var(d_above: Tensor, d_exp_1: Tensor, d_exp_2: Tensor, d_y: Tensor, d_u: Tensor, d_p: Tensor) -> Tensor:
        """The derivative of ∂Var/∂var, from those of what it is made of."""
        inside = 2 * d_exp_2 - d_exp_1 * (2 * exp_1 + y.above) - exp_1 * d_above
        at_kink = d_p * (y.mean - alpha * u_mean) + density * (d_y - alpha * d_u)
        return d_above + alpha * (alpha * inside - d_y * exp_1 - y.mean * d_exp_1) - kink * at_kink

    by_mean = of_var_var(density, exp_1 - density, 2 * exp_2 - density, y.above, -exp_1, slope)
    by_var = of_var_var(
        0.5 * slope,
        0.5 * (exp_1 - density - slope),
        0.5 * (4 * exp_2 - 2 * density - slope),
        0.5 * density,
        0.5 * (density - exp_1),
        0.5 * curvature,
    )
    var_mean_mean = 2 * (var_var - mean_mean.square())
    values = (second, 0.5 * third, 0.25 * fourth, var_mean_mean, by_mean, by_var)
    return tuple(guard(mean, var, value.clamp(-LARGEST_SLOPE, LARGEST_SLOPE)) for value in values)


ELU_MOMENTS = moments_formulas("the moments of ELU", _elu_values, elu_gradients, _elu_curvatures)


def elu_moments(mean: Tensor, var: Tensor, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """Moments of ELU(x), elementwise, with exact derivatives up to second; in float64 whatever the dtype."""
    out_mean, out_var = evaluate(mean, var, ELU_MOMENTS, alpha)
    return out_mean, out_var
