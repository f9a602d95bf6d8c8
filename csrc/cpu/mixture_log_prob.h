// One row of the mixture likelihood: log sum_i N(action | means_i, std^2) and its gradients.
#pragma once

#include <cmath>
#include <limits>

#include "kernels.h"

namespace p3 {
namespace P3_ISA {

// log N(action | mean, std^2) without its constant: -1/2 sum ((action - mean) / std)^2.
template <class S>
static inline S mixture_exponent(const S* action, const S* mean, const S* inverse_std, int64_t num_actions) {
  S sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t a = 0; a < num_actions; ++a) {
    const S z = (action[a] - mean[a]) * inverse_std[a];
    sum += z * z;
  }
  return S(-0.5) * sum;
}

template <class S>
S mixture_constant(const S* std, S* inverse_std, int64_t num_actions) {
  S sum = 0;
  for (int64_t a = 0; a < num_actions; ++a) {
    inverse_std[a] = S(1) / std[a];
    sum += std::log(std[a]);
  }
  return -sum - S(0.9189385332046727) * S(num_actions);  // log sqrt(2 pi)
}

template <class S>
S mixture_forward(const S* action, const S* means, int64_t sample_stride, const S* inverse_std, S constant,
                  int64_t num_samples, int64_t num_actions) {
  // Online: a running maximum and a sum relative to it. All samples at -inf leave it at -inf, never NaN.
  S highest = -std::numeric_limits<S>::infinity();
  S sum = 0;
  for (int64_t i = 0; i < num_samples; ++i) {
    const S exponent = mixture_exponent(action, means + i * sample_stride, inverse_std, num_actions);
    if (exponent <= highest) {
      if (exponent > -std::numeric_limits<S>::infinity()) sum += std::exp(exponent - highest);
    } else {  // also taken by NaN, which then stays
      sum = sum * std::exp(highest - exponent) + S(1);
      highest = exponent;
    }
  }
  if (highest == -std::numeric_limits<S>::infinity()) return highest;
  return highest + std::log(sum) + constant;
}

template <class S>
void mixture_backward(const S* action, const S* means, int64_t sample_stride, const S* inverse_std, S constant,
                      int64_t num_samples, int64_t num_actions, S log_sum, S d_log_sum, S* d_means,
                      int64_t d_sample_stride, S* d_action, S* d_std) {
  S total_weight = 0;
  for (int64_t i = 0; i < num_samples; ++i) {
    const S* mean = means + i * sample_stride;
    S* d_mean = d_means + i * d_sample_stride;
    const S exponent = mixture_exponent(action, mean, inverse_std, num_actions);
    // A row without any likelihood has no direction to improve in: gradient 0.
    const S weight = log_sum == -std::numeric_limits<S>::infinity()
                         ? S(0)
                         : d_log_sum * std::exp(exponent + constant - log_sum);
    if (weight == S(0)) {
      for (int64_t a = 0; a < num_actions; ++a) d_mean[a] = S(0);
      continue;
    }
    total_weight += weight;
#pragma omp simd
    for (int64_t a = 0; a < num_actions; ++a) {
      const S z = (action[a] - mean[a]) * inverse_std[a];
      const S g = weight * z * inverse_std[a];
      d_mean[a] = g;
      d_action[a] -= g;
      d_std[a] += g * z;
    }
  }
  for (int64_t a = 0; a < num_actions; ++a) d_std[a] -= total_weight * inverse_std[a];
}

// Gradients of z = mean + std noise_i, summed over the samples of one row.
template <class S>
void latent_backward(const S* d, int64_t d_stride, const S* noise, int64_t noise_stride, int64_t num_samples,
                     S* d_mean, S* d_std, int64_t n) {
  for (int64_t i = 0; i < num_samples; ++i) {
    const S* d_i = d + i * d_stride;
    const S* noise_i = noise + i * noise_stride;
#pragma omp simd
    for (int64_t z = 0; z < n; ++z) {
      d_mean[z] += d_i[z];
      d_std[z] += d_i[z] * noise_i[z];
    }
  }
}

}  // namespace P3_ISA
}  // namespace p3
