// Moments through an activation, and the activation itself, over contiguous pieces of any length.
#pragma once

#include "../moments_math.h"
#include "kernels.h"
#include "simd.h"

namespace p3 {
namespace P3_ISA {

// Calls body(offset, lanes) over [0, n); the last, partial step runs on padded copies made by `Piece`.
template <class S>
struct Piece {
  static constexpr int kCount = Lanes<S>::kCount;
  using N = typename Lanes<S>::Number;

  static P3_INLINE N read(const S* p, int64_t at, int64_t n) {
    if (at + kCount <= n) return load(p + at);
    alignas(64) S padded[kCount];
    for (int k = 0; k < kCount; ++k) padded[k] = at + k < n ? p[at + k] : S(1);
    return load(padded);
  }
  // The piece of `shift` added, where there is one.
  static P3_INLINE N shifted(const S* p, const S* shift, int64_t at, int64_t n) {
    const N value = read(p, at, n);
    return shift ? value + read(shift, at, n) : value;
  }
  static P3_INLINE void write(S* p, int64_t at, int64_t n, N value) {
    if (at + kCount <= n) return store_lanes(p + at, value);
    alignas(64) S padded[kCount];
    store_lanes(padded, value);
    std::memcpy(p + at, padded, sizeof(S) * (n - at));
  }
};

template <class S>
void moments_forward(Activation kind, S parameter, const S* mean, const S* var, const S* shift, S* out_mean,
                     S* out_var, int64_t n) {
  using P = Piece<S>;
  const typename P::N p(parameter);
  for (int64_t at = 0; at < n; at += P::kCount) {
    const auto out = activation_moments(kind, p, P::shifted(mean, shift, at, n), P::read(var, at, n));
    P::write(out_mean, at, n, out.mean);
    P::write(out_var, at, n, out.var);
  }
}

template <class S>
void moments_backward(Activation kind, S parameter, const S* mean, const S* var, const S* shift, const S* d_out_mean,
                      const S* d_out_var, S* d_mean, S* d_var, S* out_mean, S* out_var, int64_t n) {
  using P = Piece<S>;
  using N = typename P::N;
  const N p(parameter);
  for (int64_t at = 0; at < n; at += P::kCount) {
    Moments<N> out;
    MomentGradients<N> d;
    activation_gradients(kind, p, P::shifted(mean, shift, at, n), P::read(var, at, n), &out, &d);
    const N g_mean = P::read(d_out_mean, at, n);
    const N g_var = P::read(d_out_var, at, n);
    P::write(d_mean, at, n, g_mean * d.mean_mean + g_var * d.var_mean);
    P::write(d_var, at, n, g_mean * d.mean_var + g_var * d.var_var);
    if (out_mean) {
      P::write(out_mean, at, n, out.mean);
      P::write(out_var, at, n, out.var);
    }
  }
}

template <class S>
void activation_forward(Activation kind, S parameter, const S* x, const S* shift, S* out, int64_t n) {
  using P = Piece<S>;
  const typename P::N p(parameter);
  for (int64_t at = 0; at < n; at += P::kCount) {
    P::write(out, at, n, activate(kind, p, P::shifted(x, shift, at, n)));
  }
}

template <class S>
void activation_backward(Activation kind, S parameter, const S* out, const S* d_out, S* d_x, int64_t n) {
  using P = Piece<S>;
  const typename P::N p(parameter);
  for (int64_t at = 0; at < n; at += P::kCount) {
    const auto slope = activation_slope(kind, p, P::read(out, at, n));
    P::write(d_x, at, n, P::read(d_out, at, n) * slope);
  }
}

}  // namespace P3_ISA
}  // namespace p3
