// One row of a layer in `mlp_covariance`: its units linearised, the tangents scaled by the gains; the action's rows.
#pragma once

#include "activation_moments.h"

namespace p3 {
namespace P3_ISA {

template <class T>
struct Linearised {
  T mean, gain, residual, curvature;  // curvature: E[f'']
};

// Of what `Linearised` has, by the mean and the variance of the pre-activation; d mean / d mean is the gain, and
// d gain / d mean the curvature.
template <class T>
struct LinearisedGradients {
  T mean_var, gain_var, residual_mean, residual_var, curvature_mean, curvature_var;
};

template <class T>
P3_HD Linearised<T> linearised_of(const Moments<T>& out, const MomentGradients<T>& d, T curvature, T var) {
  // The difference is a small part of its terms only where the unit is almost linear; then its rounding is as small
  // beside gain^2 var, to which it is added in the end.
  return {out.mean, d.mean_mean, maximum(T(0), fused(-d.mean_mean * d.mean_mean, var, out.var)), curvature};
}

template <class T>
P3_HD LinearisedGradients<T> linearised_gradients_of(const MomentGradients<T>& d, T second, T third, T fourth, T var) {
  // second, third, fourth: the expected derivatives of the activation of that order
  LinearisedGradients<T> g;
  g.mean_var = d.mean_var;
  g.gain_var = T(0.5) * third;
  const T along = d.mean_mean * var;
  g.residual_mean = d.var_mean - T(2) * along * second;
  g.residual_var = d.var_var - d.mean_mean * d.mean_mean - along * third;
  g.curvature_mean = third;
  g.curvature_var = T(0.5) * fourth;
  return g;
}

// The density of x at zero and its derivatives by the mean, bounded: the bound only meets variances far below its
// reciprocal.
template <class T>
struct Density {
  T value, slope, curvature;
};

template <class T>
P3_HD Density<T> density_at_zero(T mean, T var, T value) {
  const auto bounded = [](T x) { return maximum(T(-1e30), minimum(T(1e30), x)); };
  const T inverse = reciprocal(maximum(T(RealOf<T>::kSmallestNormal), var));
  const T slope = bounded(-(mean * value) * inverse);
  return {value, slope, bounded(-fused(mean, slope, value) * inverse)};
}

template <class T>
P3_HD void linearise(Activation kind, T p, T mean, T var, Linearised<T>* out, LinearisedGradients<T>* gradients) {
  const T kink = T(1) - p;
  if (kind == Activation::kElu) {
    const EluParts<T> parts = elu_parts(mean, var);
    const MomentGradients<T> d = elu_gradients_of(parts, p);
    const T second = p * parts.exp_1 + kink * parts.density_over_std;
    *out = linearised_of(elu_moments_of(parts, p), d, second, var);
    if (!gradients) return;
    const Density<T> density = density_at_zero(mean, var, parts.density_over_std);
    const T below = parts.exp_1 - density.value;
    *gradients = linearised_gradients_of(d, second, p * below + kink * density.slope,
                                         p * (below - density.slope) + kink * density.curvature, var);
  } else {
    const LeakyReluParts<T> parts = leaky_relu_parts(mean, var);
    const MomentGradients<T> d = leaky_relu_gradients_of(parts, p);
    *out = linearised_of(leaky_relu_moments_of(parts, p), d, kink * parts.density_over_std, var);
    if (!gradients) return;
    const Density<T> density = density_at_zero(mean, var, parts.density_over_std);
    *gradients =
        linearised_gradients_of(d, kink * density.value, kink * density.slope, kink * density.curvature, var);
  }
}

template <class S>
void units_forward(Activation kind, S parameter, const S* pre, int64_t stride, int64_t num_tangents, const S* shift,
                   const S* pre_rest, bool whole, S* out, S* rest, S* gain, S* residual, S* curvature, int64_t n) {
  using P = Piece<S>;
  using N = typename P::N;
  const N p = N(parameter);
  for (int64_t at = 0; at < n; at += P::kCount) {
    N squares = N(0);
    for (int64_t k = 1; k <= num_tangents; ++k) {
      const N tangent = P::read(pre + k * stride, at, n);
      squares = fused(tangent, tangent, squares);
    }
    const N given = P::read(pre_rest, at, n);
    const N var = whole ? given : given + squares;
    const N beside = whole ? maximum(N(0), given - squares) : given;
    const N mean = P::read(pre, at, n) + P::read(shift, at, n);
    Linearised<N> unit;
    linearise<N>(kind, p, mean, var, &unit, nullptr);
    P::write(out, at, n, unit.mean);
    P::write(gain, at, n, unit.gain);
    P::write(residual, at, n, unit.residual);
    if (curvature) P::write(curvature, at, n, unit.curvature);
    if (!rest) continue;
    P::write(rest, at, n, fused(beside, unit.gain * unit.gain, unit.residual));
    for (int64_t k = 1; k <= num_tangents; ++k) {
      P::write(out + k * stride, at, n, P::read(pre + k * stride, at, n) * unit.gain);
    }
  }
}

template <class S>
void units_backward(Activation kind, S parameter, const S* pre, int64_t stride, int64_t num_tangents, const S* shift,
                    const S* pre_rest, bool whole, const S* d_out, const S* d_rest, const S* d_gain,
                    const S* d_residual, const S* d_curvature, S* d_pre, S* d_pre_rest, int64_t n) {
  using P = Piece<S>;
  using N = typename P::N;
  const N p = N(parameter);
  for (int64_t at = 0; at < n; at += P::kCount) {
    N squares = N(0), along = N(0);
    for (int64_t k = 1; k <= num_tangents; ++k) {
      const N tangent = P::read(pre + k * stride, at, n);
      squares = fused(tangent, tangent, squares);
      if (d_rest) along = fused(P::read(d_out + k * stride, at, n), tangent, along);
    }
    const N given = P::read(pre_rest, at, n);
    const N var = whole ? given : given + squares;
    const N beside = whole ? maximum(N(0), given - squares) : given;
    const N mean = P::read(pre, at, n) + P::read(shift, at, n);
    Linearised<N> unit;
    LinearisedGradients<N> d;
    linearise<N>(kind, p, mean, var, &unit, &d);

    const N g_mean = P::read(d_out, at, n);
    N g_gain = P::read(d_gain, at, n), g_residual = P::read(d_residual, at, n), g_beside = N(0);
    if (d_rest) {
      const N g_rest = P::read(d_rest, at, n);
      g_gain = g_gain + along + N(2) * unit.gain * beside * g_rest;
      g_residual = g_residual + g_rest;
      g_beside = unit.gain * unit.gain * g_rest;
    }
    if (whole) g_beside = select(given > squares, g_beside, N(0));
    const N g_curvature = d_curvature ? P::read(d_curvature, at, n) : N(0);
    const N g_var = g_mean * d.mean_var + g_gain * d.gain_var + g_residual * d.residual_var +
                    g_curvature * d.curvature_var;
    P::write(d_pre, at, n, g_mean * unit.gain + g_gain * unit.curvature + g_residual * d.residual_mean +
                               g_curvature * d.curvature_mean);
    P::write(d_pre_rest, at, n, g_var + g_beside);
    const N per_tangent = N(2) * (whole ? -g_beside : g_var);
    for (int64_t k = 1; k <= num_tangents; ++k) {
      N g = per_tangent * P::read(pre + k * stride, at, n);
      if (d_rest) g = fused(unit.gain, P::read(d_out + k * stride, at, n), g);
      P::write(d_pre + k * stride, at, n, g);
    }
  }
}

template <class S>
void rows_backward(const S* rows, S* d_scaled, S* weighted, const S* gain, const S* residual, S* d_gain,
                   S* d_residual, int64_t num_actions, int64_t n) {
  using P = Piece<S>;
  using N = typename P::N;
  for (int64_t at = 0; at < n; at += P::kCount) {
    const N g = P::read(gain, at, n), r = P::read(residual, at, n);
    N along = N(0), beside = N(0);
    for (int64_t a = 0; a < num_actions; ++a) {
      const N row = P::read(rows + a * n, at, n);
      const N d = P::read(d_scaled + a * n, at, n), w = P::read(weighted + a * n, at, n);
      along = fused(d, row, along);
      beside = fused(w, row, beside);
      P::write(d_scaled + a * n, at, n, fused(d, g, w * r));
      P::write(weighted + a * n, at, n, row * g);
    }
    P::write(d_gain, at, n, along);
    P::write(d_residual, at, n, N(0.5) * beside);
  }
}

}  // namespace P3_ISA
}  // namespace p3
