"""The scalar mathematics of csrc/moments_math.h as device functions: Gaussian moments through ELU and (Leaky)ReLU.

Everything is float32, elementwise and branch-free. Derivation and error analysis: docs/derivation.md. The device
computes what the interpreter computes, to the last bits: e^x is the header's own polynomial (not ex2.approx); a
reciprocal or a square root is the hardware's approximation with one Newton step, within 1 ulp of the correctly rounded
ones that the interpreter takes, at a third of their instructions and without their branches.
What is left is contraction: the compiler may fuse a * b + c into one rounding, the interpreter never does. Nothing
here relies on it: where the header forms an exact residual by a fused multiply-add, these functions split the factors
into halves of 12 bits, whose products are exact either way.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels import activation_codes, launch

_INTERPRETED = tl.constexpr(launch.interpreted())
ELU = tl.constexpr(activation_codes.ELU)
LEAKY_RELU = tl.constexpr(activation_codes.LEAKY_RELU)
NONE = tl.constexpr(activation_codes.NONE)

# csrc/erfcx_coefficients.h, kErfcxKappa_float, kErfcxValue_float and kErfcxSlope_float; a test keeps them equal.
KAPPA = tl.constexpr(4.0)
VALUE_TERMS = tl.constexpr(13)
SLOPE_TERMS = tl.constexpr(11)
ERFCX_VALUE = tl.constexpr(
    (
        -1.88511617e-2,
        -1.3992095e-1,
        -6.98345528e-2,
        3.98403735e-1,
        1.05423077,
        1.64682461,
        2.00084757,
        2.01906404,
        1.7435737,
        1.31408643,
        8.74874632e-1,
        5.1813567e-1,
        1.36999472e-1,
    )
)
ERFCX_SLOPE = tl.constexpr(
    (
        -3.99539625e-1,
        -2.02562991e-1,
        9.08587164e-1,
        2.11231012,
        2.87838761,
        3.00120765,
        2.52425201,
        1.74356376,
        9.85547661e-1,
        4.37437463e-1,
        1.29534024e-1,
    )
)

_ROUND_TO_INTEGER = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it leaves round(x) in the low bits
_LN2_HIGH = tl.constexpr(0.693359375)  # 9 bits: its product with an exponent is exact
_LN2_LOW = tl.constexpr(-2.12194440e-4)
_EXP_LOWEST = tl.constexpr(-88.0)  # below it the result is 0
_SMALLEST_STD = tl.constexpr(1e-15)  # keeps 1 / var and mean^2 / var finite
_SMALLEST_NORMAL = tl.constexpr(1.2e-38)
_SMALL_STD = tl.constexpr(0.5)
_INVERSE_SQRT_2 = tl.constexpr(0.7071067811865476)
_INVERSE_FACTORIALS = tl.constexpr(
    (
        1.984126984126984e-4,
        1.3888888888888889e-3,
        8.333333333333333e-3,
        4.1666666666666664e-2,
        1.6666666666666666e-1,
        0.5,
    )
)


@triton.jit
def at_least(a: tl.tensor, lowest: tl.tensor) -> tl.tensor:
    """max(a, lowest); unlike with PTX's max, a NaN stays."""
    return tl.where(a < lowest, lowest, a)


@triton.jit
def reciprocal(a: tl.tensor) -> tl.tensor:
    """1 / a for a normal, finite a."""
    if _INTERPRETED:
        return tl.div_rn(tl.full(a.shape, 1.0, tl.float32), a)
    else:
        near = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [a], tl.float32, is_pure=True, pack=1)
        return near + near * (1.0 - a * near)


@triton.jit
def square_root(a: tl.tensor) -> tl.tensor:
    """√a for 0 and for a normal, finite a; NaN below 0."""
    if _INTERPRETED:
        return tl.sqrt_rn(a)
    else:
        near = tl.inline_asm_elementwise("rsqrt.approx.ftz.f32 $0, $1;", "=f,f", [a], tl.float32, is_pure=True, pack=1)
        root = a * near
        root += 0.5 * near * (a - root * root)
        return tl.where(a == 0.0, 0.0, root)


@triton.jit
def upper_half(a: tl.tensor) -> tl.tensor:
    """The first 12 bits of the significand; a less this has the other 12."""
    return (a.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)


@triton.jit
def polynomial(x: tl.tensor, COEFFICIENTS: tl.constexpr, TERMS: tl.constexpr) -> tl.tensor:
    """Horner's sum, the highest power first."""
    y = tl.full(x.shape, COEFFICIENTS[0], tl.float32)
    for k in tl.static_range(1, TERMS):
        y = y * x + COEFFICIENTS[k]
    return y


@triton.jit
def scaled_exp(high: tl.tensor, low: tl.tensor) -> tuple[tl.tensor, ...]:
    """(scale, fraction) of e^(high + low) = scale (1 + fraction), high at most about 80; 0 below the normal range.

    scale is a power of two and fraction = expm1 of the reduced argument: both e^x and e^x − 1 keep full precision.
    """
    x = at_least(high, _EXP_LOWEST)
    shifted = x * 1.4426950408889634 + _ROUND_TO_INTEGER
    n = shifted - _ROUND_TO_INTEGER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW + low
    scale = ((shifted.to(tl.int32, bitcast=True) + 127) << 23).to(tl.float32, bitcast=True)
    return scale, (r * r) * polynomial(r, _INVERSE_FACTORIALS, 6) + r


@triton.jit
def standardise(mean: tl.tensor, var: tl.tensor) -> tuple[tl.tensor, ...]:
    """std, beta = mean / std, half_density = e^(−beta²/2) / 2, density_over_std = the density of x ~ N(mean, var) at 0.

    NaN, and a negative variance, make every one of them NaN. var = 0 is the limit std → 0, the density taken as 0.
    """
    std = square_root(var)
    inverse_std = reciprocal(at_least(std, _SMALLEST_STD))
    half_precision = 0.5 * inverse_std * inverse_std
    # mean² / (2 var) in two parts, for an exponent of 20 with one rounding would already cost 1e-6. Factors of 12 bits
    # have exact products; the first difference is of close numbers, so exact as well.
    mean_high, var_high = upper_half(mean), upper_half(var)
    exponent = upper_half(mean * mean * half_precision)
    rest = mean_high * mean_high - 2.0 * exponent * var_high
    rest += (mean - mean_high) * (mean + mean_high) - 2.0 * exponent * (var - var_high)
    scale, fraction = scaled_exp(-exponent, -rest * half_precision)
    half_density = 0.5 * tl.where(exponent > -_EXP_LOWEST, 0.0, scale * fraction + scale)
    density_over_std = tl.where(var == 0.0, 0.0, half_density * (0.7978845608028654 * inverse_std))
    return std, mean * inverse_std, half_density, density_over_std


@triton.jit
def erfcx_variable(argument: tl.tensor) -> tl.tensor:
    """t = kappa / (kappa + b)."""
    return reciprocal(argument + KAPPA) * KAPPA


@triton.jit
def positive_part(
    mean: tl.tensor,
    var: tl.tensor,
    std: tl.tensor,
    beta: tl.tensor,
    half_density: tl.tensor,
    tail: tl.tensor,
    t: tl.tensor,
) -> tuple[tl.tensor, ...]:
    """above = P(x > 0), below = P(x ≤ 0), mean and variance of max(x, 0), then of max(−x, 0).

    `tail` is the probability of the far side of zero, `t` belongs to |beta| / √2.
    """
    # Repeated integrals of the tail, h1 = ∫ tail and h2 = 2 ∫ h1; h1 by a polynomial of its own, not a difference.
    distance = tl.abs(beta)
    h1 = half_density * _INVERSE_SQRT_2 * (t * t * polynomial(t - 0.5, ERFCX_SLOPE, SLOPE_TERMS))
    h2 = at_least(tail - distance * h1, 0.0)
    far_mean = std * h1
    far_var = var * (h2 - h1 * h1)
    near_mean = tl.abs(mean) + far_mean
    near_var = var * (1.0 - h2 - h1 * (2.0 * distance + h1))
    positive = mean >= 0.0
    return (
        tl.where(positive, 1.0 - tail, tail),
        tl.where(positive, tail, 1.0 - tail),
        tl.where(positive, near_mean, far_mean),
        tl.where(positive, near_var, far_var),
        tl.where(positive, far_mean, near_mean),
        tl.where(positive, far_var, near_var),
    )


@triton.jit
def leaky_relu_parts(mean: tl.tensor, var: tl.tensor) -> tuple[tl.tensor, ...]:
    """`positive_part` and density_over_std."""
    std, beta, half_density, density_over_std = standardise(mean, var)
    t = erfcx_variable(tl.abs(beta) * _INVERSE_SQRT_2)
    tail = half_density * polynomial(t - 0.5, ERFCX_VALUE, VALUE_TERMS)
    above, below, y_mean, y_var, n_mean, n_var = positive_part(mean, var, std, beta, half_density, tail, t)
    return above, below, y_mean, y_var, n_mean, n_var, density_over_std


@triton.jit
def elu_parts(mean: tl.tensor, var: tl.tensor) -> tuple[tl.tensor, ...]:
    """above, below, y_mean, y_var, u_mean, u_var, exp_1, exp_2, density_over_std.

    ELU(x) = y − alpha u with y = max(x, 0), u = 1 − e^min(x, 0); exp_k = E[e^(k x); x ≤ 0]. Three ways to the moments
    of u, chosen by where zero lies, each free of cancellation where it is used; see the header.
    """
    std, beta, half_density, density_over_std = standardise(mean, var)
    positive = mean >= 0.0

    step = std * _INVERSE_SQRT_2
    b0 = beta * _INVERSE_SQRT_2
    b1 = b0 + step
    b2 = b1 + step
    near = positive | ((b0 >= -_INVERSE_SQRT_2) & (std > _SMALL_STD))
    lognormal = (near == 0) & ((b2 <= 0.0) | (std <= _SMALL_STD))
    distance = tl.abs(b0)
    arg0 = tl.where(near, b0, distance)
    arg1 = tl.where(near, b1, tl.where(lognormal, -b1, tl.abs(b1)))
    arg2 = tl.where(near, b2, tl.where(lognormal, -b2, tl.abs(b2)))
    zero_is_far = arg0 >= arg2

    # a is the farthest argument: then value, first and second difference are sums of positive terms.
    ta = erfcx_variable(tl.where(zero_is_far, arg0, arg2))
    tb = erfcx_variable(arg1)
    tc = erfcx_variable(tl.where(zero_is_far, arg2, arg0))
    value, first, second = divided_differences(ta - 0.5, tb - 0.5, tc - 0.5)
    first_bc = first + (tc - ta) * second
    value_b = value + (tb - ta) * first
    value_c = value + (tc - ta) * (first + (tc - tb) * second)
    below_0 = half_density * tl.where(zero_is_far, value, value_c)
    tail_0 = tl.where(near & (mean < 0.0), 1.0 - below_0, below_0)
    tail_1 = half_density * value_b
    tail_2 = half_density * tl.where(zero_is_far, value_c, value)
    unit = step * (1.0 / KAPPA)
    scaled_unit = half_density * unit * tb
    difference_1 = scaled_unit * tl.where(near, tc * first_bc, ta * first)
    difference_2 = 2.0 * scaled_unit * unit * (ta * tc) * (first_bc + ta * second)

    t = erfcx_variable(distance)
    above, below, y_mean, y_var, _n_mean, _n_var = positive_part(mean, var, std, beta, half_density, tail_0, t)

    # e^(mean + var / 2) in two parts, for its square is wanted to full precision; e^(2 mean + 2 var) = that² e^var.
    half_var = 0.5 * var
    total = mean + half_var
    total_low = (mean - (total - (total - mean))) + (half_var - (total - mean))
    scale, fraction = scaled_exp(total, total_low)
    lognormal_1 = scale * fraction + scale
    lognormal_expm1 = scale * fraction + (scale - 1.0)
    scale, fraction = scaled_exp(-var, tl.zeros_like(var))
    exp_minus_var = scale * fraction + scale
    expm1_minus_var = scale * fraction + (scale - 1.0)
    lognormal_2 = lognormal_1 * (lognormal_1 * reciprocal(at_least(exp_minus_var, _SMALLEST_NORMAL)))
    exp_1 = tl.where(lognormal | ((near == 0) & (b1 < 0.0)), lognormal_1 - tail_1, tail_1)
    exp_2 = tl.where(lognormal | ((near == 0) & (b2 < 0.0)), lognormal_2 - tail_2, tail_2)

    lognormal_var = -lognormal_2 * expm1_minus_var
    w_mean = above + exp_1  # of w = 1 − u
    var_near = above + exp_2 - w_mean * w_mean
    var_far = lognormal_var - difference_2 - difference_1 * (difference_1 - 2.0 * lognormal_expm1)
    var_beside = difference_2 - difference_1 * difference_1
    u_mean = tl.where(near, difference_1, tl.where(lognormal, difference_1 - lognormal_expm1, below - exp_1))
    u_var = tl.where(near, var_beside, tl.where(lognormal, var_far, var_near))
    return above, below, y_mean, y_var, u_mean, u_var, exp_1, exp_2, density_over_std


@triton.jit
def divided_differences(a: tl.tensor, b: tl.tensor, c: tl.tensor) -> tuple[tl.tensor, ...]:
    """F(a), F[a, b], F[a, b, c] of F(t − ½) = erfcx, by nested synthetic division."""
    f = tl.full(a.shape, ERFCX_VALUE[0], tl.float32)
    g = tl.zeros_like(a)
    h = tl.zeros_like(a)
    for k in tl.static_range(1, VALUE_TERMS):
        h = h * c + g
        g = g * b + f
        f = f * a + ERFCX_VALUE[k]
    return f, g, h


@triton.jit
def elu_moments_of(
    y_mean: tl.tensor, y_var: tl.tensor, u_mean: tl.tensor, u_var: tl.tensor, alpha: tl.tensor
) -> tuple[tl.tensor, ...]:
    """Mean and variance of y − alpha u."""
    out_var = y_var + alpha * (alpha * u_var + 2.0 * y_mean * u_mean)
    return y_mean - alpha * u_mean, at_least(out_var, 0.0)


@triton.jit
def leaky_relu_moments_of(
    y_mean: tl.tensor, y_var: tl.tensor, n_mean: tl.tensor, n_var: tl.tensor, slope: tl.tensor
) -> tuple[tl.tensor, ...]:
    """Mean and variance of y − slope n, n = max(−x, 0)."""
    out_var = y_var + slope * (slope * n_var + 2.0 * y_mean * n_mean)
    return y_mean - slope * n_mean, at_least(out_var, 0.0)


@triton.jit
def activation_moments(
    mean: tl.tensor, var: tl.tensor, parameter: tl.tensor, ACTIVATION: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """Mean and variance of the activation of N(mean, var); `parameter` is ELU's alpha or LeakyReLU's slope."""
    if ACTIVATION == ELU:
        _a, _b, y_mean, y_var, u_mean, u_var, _e1, _e2, _d = elu_parts(mean, var)
        return elu_moments_of(y_mean, y_var, u_mean, u_var, parameter)
    else:
        _a, _b, y_mean, y_var, n_mean, n_var, _d = leaky_relu_parts(mean, var)
        return leaky_relu_moments_of(y_mean, y_var, n_mean, n_var, parameter)


@triton.jit
def activation_gradients(
    mean: tl.tensor, var: tl.tensor, parameter: tl.tensor, ACTIVATION: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """Mean and variance, then ∂mean/∂mean, ∂mean/∂var, ∂var/∂mean, ∂var/∂var, from one evaluation of the parts."""
    kink = 1.0 - parameter
    if ACTIVATION == ELU:
        above, below, y_mean, y_var, u_mean, u_var, exp_1, exp_2, density = elu_parts(mean, var)
        out_mean, out_var = elu_moments_of(y_mean, y_var, u_mean, u_var, parameter)
        mean_mean = above + parameter * exp_1
        mean_var = 0.5 * (parameter * exp_1 + kink * density)
        var_mean = 2.0 * (
            kink * (y_mean * below + parameter * above * u_mean) + parameter * (y_mean * u_mean + parameter * u_var)
        )
        var_var = above + parameter * (parameter * (2.0 * exp_2 - exp_1 * (exp_1 + above)) - y_mean * exp_1)
        var_var -= kink * density * (y_mean - parameter * u_mean)
        return out_mean, out_var, mean_mean, mean_var, var_mean, var_var
    else:
        above, below, y_mean, y_var, n_mean, n_var, density = leaky_relu_parts(mean, var)
        out_mean, out_var = leaky_relu_moments_of(y_mean, y_var, n_mean, n_var, parameter)
        mean_mean = above + parameter * below
        mean_var = 0.5 * kink * density
        var_mean = 2.0 * kink * (below * y_mean + parameter * above * n_mean)
        var_var = above + parameter * parameter * below - density * kink * (y_mean - parameter * n_mean)
        return out_mean, out_var, mean_mean, mean_var, var_mean, var_var
