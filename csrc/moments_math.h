// The scalar mathematics of Gaussian moments through ELU, ReLU and LeakyReLU, shared by host and device.
//
// As branch-free and as general in its number type as what it is made of, in scalar_math.h. Derivation and error
// analysis: docs/derivation.md.
#pragma once

#include "activation.h"
#include "scalar_math.h"

namespace p3 {
namespace P3_ISA {

template <class T>
struct Moments {
  T mean, var;
};

// d out_mean / d mean, d out_mean / d var, d out_var / d mean, d out_var / d var.
template <class T>
struct MomentGradients {
  T mean_mean, mean_var, var_mean, var_var;
};

// The input x ~ N(mean, var), seen from zero. NaN, and a negative variance, make every field NaN: they show, as they
// would for sqrt. var = 0 is the limit std -> 0.
template <class T>
struct Standardised {
  T std, beta;             // beta = mean / std
  T half_density;          // exp(-beta^2 / 2) / 2
  T density_over_std;      // phi(beta) / std, the density of x at 0; taken as 0 for var = 0
  MaskOf<T> non_negative;  // mean >= 0
};

template <class T>
P3_HD Standardised<T> standardise(T mean, T var) {
  using R = RealOf<T>;
  Standardised<T> s;
  s.std = square_root(var);
  const T inverse_std = reciprocal(maximum(T(R::kSmallestStd), s.std));  // this order: a NaN std stays NaN
  s.beta = mean * inverse_std;
  // mean^2 / (2 var) in two parts: an exponent of 20 with one rounding would already cost 1e-6.
  const T half_precision = T(0.5) * inverse_std * inverse_std;
  const T square = mean * mean;
  const T square_low = fused(mean, mean, -square);
  const T exponent = square * half_precision;
  const T rest = (fused(T(-2) * exponent, var, square) + square_low) * half_precision;
  const MaskOf<T> far = exponent > T(-R::kExpLowest);
  s.half_density = T(0.5) * select(far, T(0), scaled_exp(-exponent, -rest).exp());
  s.density_over_std = select(var == T(0), T(0), s.half_density * (T(0.7978845608028654) * inverse_std));
  s.non_negative = mean >= T(0);
  return s;
}

// Moments of max(x, 0) and of its mirror max(-x, 0), and what gradients need beside them.
template <class T>
struct PositivePart {
  T above, below;  // P(x > 0), P(x <= 0)
  T mean, var;
  T mirror_mean, mirror_var;
};

// `tail` is the probability of the far side of zero, `t` belongs to |beta| / sqrt 2.
template <class T>
P3_HD PositivePart<T> positive_part(T mean, T var, const Standardised<T>& s, T tail, T t) {
  // Repeated integrals of the tail, h1 = int tail and h2 = 2 int h1; h1 by a polynomial of its own, not a difference.
  const T distance = absolute(s.beta);
  const T h1 = s.half_density * T(0.7071067811865476) * (t * t * erfcx_slope(t));
  const T h2 = maximum(T(0), tail - distance * h1);
  const T far_mean = s.std * h1;
  const T far_var = var * (h2 - h1 * h1);
  const T near_mean = absolute(mean) + far_mean;
  const T near_var = var * (T(1) - h2 - h1 * (T(2) * distance + h1));
  PositivePart<T> y;
  y.above = select(s.non_negative, T(1) - tail, tail);
  y.below = select(s.non_negative, tail, T(1) - tail);
  y.mean = select(s.non_negative, near_mean, far_mean);
  y.var = select(s.non_negative, near_var, far_var);
  y.mirror_mean = select(s.non_negative, far_mean, near_mean);
  y.mirror_var = select(s.non_negative, far_var, near_var);
  return y;
}

// ---- LeakyReLU; ReLU is slope = 0 -----------------------------------------------------------------------------

template <class T>
struct LeakyReluParts {
  PositivePart<T> y;
  T density_over_std;
};

template <class T>
P3_HD LeakyReluParts<T> leaky_relu_parts(T mean, T var) {
  const Standardised<T> s = standardise(mean, var);
  const T t = erfcx_variable(absolute(s.beta) * T(0.7071067811865476));
  return {positive_part(mean, var, s, s.half_density * erfcx_value(t), t), s.density_over_std};
}

template <class T>
P3_HD Moments<T> leaky_relu_moments_of(const LeakyReluParts<T>& parts, T slope) {
  const PositivePart<T>& y = parts.y;
  const T out_var = y.var + slope * (slope * y.mirror_var + T(2) * y.mean * y.mirror_mean);
  return {y.mean - slope * y.mirror_mean, maximum(T(0), out_var)};
}

template <class T>
P3_HD MomentGradients<T> leaky_relu_gradients_of(const LeakyReluParts<T>& parts, T slope) {
  const PositivePart<T>& y = parts.y;
  const T kink = T(1) - slope;
  MomentGradients<T> d;
  d.mean_mean = y.above + slope * y.below;
  d.mean_var = T(0.5) * kink * parts.density_over_std;
  d.var_mean = T(2) * kink * (y.below * y.mean + slope * y.above * y.mirror_mean);
  d.var_var = y.above + slope * slope * y.below - parts.density_over_std * kink * (y.mean - slope * y.mirror_mean);
  return d;
}

// ---- ELU ------------------------------------------------------------------------------------------------------
//
// ELU(x) = y - alpha u with y = max(x, 0), u = 1 - e^min(x, 0), y u = 0. Three ways to the moments of u, chosen by
// where zero lies; each is free of cancellation where it is used:
//   mean >= 0, or beta >= -1 and std large   first and second differences of erfcx at beta, step +std
//   mean < 0, std small or zero far          lognormal moments less what lies above zero, differences with step -std
//   the rest: mean < 0, std large            E[e^(k x); x <= 0] directly

template <class T>
struct EluParts {
  PositivePart<T> y;
  T u_mean, u_var;  // of u
  T exp_1, exp_2;   // E[e^(k x); x <= 0], k = 1, 2
  T density_over_std;
};

template <class T>
P3_HD EluParts<T> elu_parts(T mean, T var) {
  using R = RealOf<T>;
  const T kSmallStd = T(0.5);
  const T kInvSqrt2 = T(0.7071067811865476);
  const Standardised<T> s = standardise(mean, var);

  const T step = s.std * kInvSqrt2;
  const T b0 = s.beta * kInvSqrt2;
  const T b1 = b0 + step;
  const T b2 = b1 + step;
  const MaskOf<T> near = s.non_negative | ((b0 >= -kInvSqrt2) & (s.std > kSmallStd));
  const MaskOf<T> lognormal = (!near) & ((b2 <= T(0)) | (s.std <= kSmallStd));
  const T distance_0 = absolute(b0);
  const T arg0 = select(near, b0, distance_0);
  const T arg1 = select(near, b1, select(lognormal, -b1, absolute(b1)));
  const T arg2 = select(near, b2, select(lognormal, -b2, absolute(b2)));
  const MaskOf<T> zero_is_far = arg0 >= arg2;

  // a is the farthest argument: then value, first and second difference are sums of positive terms.
  const T ta = erfcx_variable(maximum(arg0, arg2));
  const T tb = erfcx_variable(arg1);
  const T tc = erfcx_variable(minimum(arg0, arg2));
  const DividedDifferences<T> f =
      divided_differences(R::erfcx_value(), ta - T(0.5), tb - T(0.5), tc - T(0.5));
  const T first_bc = f.first + (tc - ta) * f.second;
  const T value_b = f.value + (tb - ta) * f.first;
  const T value_c = f.value + (tc - ta) * (f.first + (tc - tb) * f.second);
  const T below_0 = s.half_density * select(zero_is_far, f.value, value_c);
  const T tail_0 = select(near & (!s.non_negative), T(1) - below_0, below_0);
  const T tail_1 = s.half_density * value_b;
  const T tail_2 = s.half_density * select(zero_is_far, value_c, f.value);
  const T unit = step * T(1.0 / R::kKappa);
  const T scaled_unit = s.half_density * unit * tb;
  const T difference_1 = scaled_unit * select(near, tc * first_bc, ta * f.first);
  const T difference_2 = T(2) * scaled_unit * unit * (ta * tc) * (first_bc + ta * f.second);

  EluParts<T> e;
  e.density_over_std = s.density_over_std;
  e.y = positive_part(mean, var, s, tail_0, erfcx_variable(distance_0));

  // e^(mean + var / 2) in two parts, for its square is wanted to full precision; e^(2 mean + 2 var) = that^2 e^var.
  const T half_var = T(0.5) * var;
  const T sum = mean + half_var;
  const T sum_low = (mean - (sum - (sum - mean))) + (half_var - (sum - mean));
  const ScaledExp<T> lognormal_mean = scaled_exp(sum, sum_low);
  const ScaledExp<T> exp_minus_var = scaled_exp(-var, T(0));
  const T lognormal_1 = lognormal_mean.exp();
  const T lognormal_expm1 = lognormal_mean.expm1();
  const T lognormal_2 = lognormal_1 * (lognormal_1 * reciprocal(maximum(T(R::kSmallestNormal), exp_minus_var.exp())));
  e.exp_1 = select(lognormal | ((!near) & (b1 < T(0))), lognormal_1 - tail_1, tail_1);
  e.exp_2 = select(lognormal | ((!near) & (b2 < T(0))), lognormal_2 - tail_2, tail_2);

  const T lognormal_var = -lognormal_2 * exp_minus_var.expm1();
  const T w_mean = e.y.above + e.exp_1;  // of w = 1 - u
  const T var_near = e.y.above + e.exp_2 - w_mean * w_mean;
  const T var_far = lognormal_var - difference_2 - difference_1 * (difference_1 - T(2) * lognormal_expm1);
  const T var_beside = difference_2 - difference_1 * difference_1;
  e.u_mean = select(near, difference_1,
                    select(lognormal, difference_1 - lognormal_expm1, e.y.below - e.exp_1));
  e.u_var = select(near, var_beside, select(lognormal, var_far, var_near));
  return e;
}

template <class T>
P3_HD Moments<T> elu_moments_of(const EluParts<T>& e, T alpha) {
  const T out_var = e.y.var + alpha * (alpha * e.u_var + T(2) * e.y.mean * e.u_mean);
  return {e.y.mean - alpha * e.u_mean, maximum(T(0), out_var)};
}

template <class T>
P3_HD MomentGradients<T> elu_gradients_of(const EluParts<T>& e, T alpha) {
  const PositivePart<T>& y = e.y;
  const T kink = T(1) - alpha;
  MomentGradients<T> d;
  d.mean_mean = y.above + alpha * e.exp_1;
  d.mean_var = T(0.5) * (alpha * e.exp_1 + kink * e.density_over_std);
  d.var_mean = T(2) * (kink * (y.mean * y.below + alpha * y.above * e.u_mean) +
                       alpha * (y.mean * e.u_mean + alpha * e.u_var));
  d.var_var = y.above + alpha * (alpha * (T(2) * e.exp_2 - e.exp_1 * (e.exp_1 + y.above)) - y.mean * e.exp_1) -
              kink * e.density_over_std * (y.mean - alpha * e.u_mean);
  return d;
}

// ---- By kind --------------------------------------------------------------------------------------------------

template <class T>
P3_HD Moments<T> activation_moments(Activation kind, T parameter, T mean, T var) {
  return kind == Activation::kElu ? elu_moments_of(elu_parts(mean, var), parameter)
                                  : leaky_relu_moments_of(leaky_relu_parts(mean, var), parameter);
}

// Moments and their gradients, which share most of the work.
template <class T>
P3_HD void activation_gradients(Activation kind, T parameter, T mean, T var, Moments<T>* out, MomentGradients<T>* d) {
  if (kind == Activation::kElu) {
    const EluParts<T> parts = elu_parts(mean, var);
    *out = elu_moments_of(parts, parameter);
    *d = elu_gradients_of(parts, parameter);
  } else {
    const LeakyReluParts<T> parts = leaky_relu_parts(mean, var);
    *out = leaky_relu_moments_of(parts, parameter);
    *d = leaky_relu_gradients_of(parts, parameter);
  }
}

// The activation itself.
template <class T>
P3_HD T activate(Activation kind, T parameter, T x) {
  const T below = kind == Activation::kElu ? parameter * scaled_exp(minimum(x, T(0)), T(0)).expm1() : parameter * x;
  // NaN > 0 is false and expm1 of a clamped NaN is finite: NaN is passed on by hand.
  return select(x == x, select(x > T(0), x, below), x);
}

// Its derivative, from its value.
template <class T>
P3_HD T activation_slope(Activation kind, T parameter, T value) {
  return select(value > T(0), T(1), kind == Activation::kElu ? value + parameter : parameter);
}

}  // namespace P3_ISA
}  // namespace p3
