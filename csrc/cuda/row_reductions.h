// One warp a row: the mixture's log-likelihood and the head of a Gaussian policy, forward and backward.
//
// Lanes take the actions, so that a sample's means are read in whole cache lines; sums over actions are butterflies.
#pragma once

#include "device.h"

namespace p3 {
namespace cuda {

constexpr float kLogSqrtTwoPi = 0.9189385332046727f;

P3_DEVICE float negative_infinity() { return -static_cast<float>(HUGE_VAL); }

// log sum_i e^(x_i), one x after the other. All at -inf leave it at -inf, a NaN stays.
struct OnlineLogSum {
  float highest = negative_infinity();
  float sum = 0;

  template <int kCount>
  P3_DEVICE void add(const float (&x)[kCount]) {
    float next = highest;
    P3_UNROLL
    for (int j = 0; j < kCount; ++j) next = x[j] > next ? x[j] : next;
    // A difference of infinities would be NaN; before the first finite x the sum is 0, or NaN, and stays.
    const float relative_to = next == negative_infinity() ? 0.0f : next;
    sum *= highest == negative_infinity() ? 1.0f : expf(highest - relative_to);
    P3_UNROLL
    for (int j = 0; j < kCount; ++j) sum += expf(x[j] - relative_to);
    highest = next;
  }
  P3_DEVICE float value() const { return (highest == negative_infinity() ? 0.0f : highest) + logf(sum); }
};

struct WarpPerRow {
  static constexpr int kThreads = 128;
  static constexpr int kRows = kThreads / kWarp;
  static constexpr int kBlocksPerSm = 1;
};

// A row's action and std, the first 64 actions of it in registers; a policy rarely has more.
struct MixtureRow {
  static constexpr int kSlots = 2;
  int64_t row, actions;
  int lane;
  const Mixture& m;
  float action[kSlots], inverse[kSlots];
  float constant;  // of the Gaussian's logarithm

  P3_DEVICE MixtureRow(const Thread& thread, const Mixture& mixture, int64_t row_)
      : row(row_), actions(mixture.actions), lane(thread.index % kWarp), m(mixture) {
    float logs = 0;
    P3_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const int64_t a = lane + slot * kWarp;
      action[slot] = a < actions ? read(m.action, row * actions + a) : 0.0f;
      inverse[slot] = a < actions ? inverse_std(a) : 0.0f;
      logs += a < actions ? log_std(a) : 0.0f;
    }
    for (int64_t a = lane + kSlots * kWarp; a < actions; a += kWarp) logs += log_std(a);
    constant = -warp_sum(thread, logs) - kLogSqrtTwoPi * static_cast<float>(actions);
  }
  P3_DEVICE float inverse_std(int64_t a) const { return 1.0f / read(m.std, row * m.std_stride + a); }
  P3_DEVICE float log_std(int64_t a) const { return logf(read(m.std, row * m.std_stride + a)); }
  P3_DEVICE int64_t mean_at(int64_t sample, int64_t a) const { return (sample * m.rows + row) * actions + a; }
  // ((action - mean) / std) of an action beyond the registers.
  P3_DEVICE float far_z(int64_t sample, int64_t a) const {
    return (read(m.action, row * actions + a) - read(m.means, mean_at(sample, a))) * inverse_std(a);
  }
  // This lane's part of sum ((action - mean) / std)^2; z of the first actions comes along.
  P3_DEVICE float squares(int64_t sample, float (&z)[kSlots]) const {
    float sum = 0;
    P3_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const int64_t a = lane + slot * kWarp;
      z[slot] = a < actions ? (action[slot] - read(m.means, mean_at(sample, a))) * inverse[slot] : 0.0f;
      sum += z[slot] * z[slot];
    }
    for (int64_t a = lane + kSlots * kWarp; a < actions; a += kWarp) {
      const float z_far = far_z(sample, a);
      sum += z_far * z_far;
    }
    return sum;
  }
};

struct MixtureForward : WarpPerRow {
  struct Arguments {
    Mixture mixture;
    float* log_sum;
  };
  static P3_DEVICE void run(const Thread& thread, const Arguments& arguments) {
    constexpr int kTogether = 4;  // samples whose loads and butterflies overlap
    const Mixture& m = arguments.mixture;
    const int64_t row = thread.block * kRows + thread.index / kWarp;
    if (row >= m.rows) return;
    const MixtureRow of(thread, m, row);
    OnlineLogSum total;
    for (int64_t first = 0; first < m.samples; first += kTogether) {
      float exponents[kTogether];
      P3_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        float z[MixtureRow::kSlots];
        const bool inside = first + j < m.samples;
        const float sum = warp_sum(thread, inside ? of.squares(first + j, z) : 0.0f);
        exponents[j] = inside ? -0.5f * sum : negative_infinity();
      }
      total.add(exponents);
    }
    if (of.lane == 0) arguments.log_sum[row] = total.value() + of.constant - m.offset;
  }
};

struct MixtureBackward : WarpPerRow {
  struct Arguments {
    Mixture mixture;
    const float *log_sum, *d_log_sum;
    Output d_means;
    float *d_action, *d_std;
    bool add;
  };
  static P3_DEVICE void run(const Thread& thread, const Arguments& arguments) {
    const Mixture& m = arguments.mixture;
    const int64_t row = thread.block * kRows + thread.index / kWarp;
    if (row >= m.rows) return;
    const MixtureRow of(thread, m, row);
    const float log_sum = arguments.log_sum[row] + m.offset, d_log_sum = arguments.d_log_sum[row];
    const int64_t out = row * m.actions;
    float* const d_action = arguments.d_action + out;
    float* const d_std = arguments.d_std + out;
    float sum_action[MixtureRow::kSlots] = {}, sum_std[MixtureRow::kSlots] = {};
    const int64_t far = of.lane + MixtureRow::kSlots * kWarp;
    if (!arguments.add) {
      for (int64_t a = far; a < m.actions; a += kWarp) d_action[a] = d_std[a] = 0.0f;
    }
    float total_weight = 0;
    for (int64_t sample = 0; sample < m.samples; ++sample) {
      float z[MixtureRow::kSlots];
      const float exponent = -0.5f * warp_sum(thread, of.squares(sample, z));
      // A row without any likelihood has no direction to improve in, nor has a sample of weight 0: gradient 0.
      const float weight =
          log_sum == negative_infinity() ? 0.0f : d_log_sum * expf(exponent + of.constant - log_sum);
      total_weight += weight;
      P3_UNROLL
      for (int slot = 0; slot < MixtureRow::kSlots; ++slot) {
        const int64_t a = of.lane + slot * kWarp;
        if (a >= m.actions) continue;
        const float g = weight == 0.0f ? 0.0f : weight * z[slot] * of.inverse[slot];
        write(arguments.d_means, of.mean_at(sample, a), g);
        sum_action[slot] -= g;
        sum_std[slot] += weight == 0.0f ? 0.0f : g * z[slot];
      }
      for (int64_t a = far; a < m.actions; a += kWarp) {
        const float z_far = of.far_z(sample, a);
        const float g = weight == 0.0f ? 0.0f : weight * z_far * of.inverse_std(a);
        write(arguments.d_means, of.mean_at(sample, a), g);
        d_action[a] -= g;
        d_std[a] += weight == 0.0f ? 0.0f : g * z_far;
      }
    }
    P3_UNROLL
    for (int slot = 0; slot < MixtureRow::kSlots; ++slot) {
      const int64_t a = of.lane + slot * kWarp;
      if (a >= m.actions) continue;
      d_action[a] = sum_action[slot] + (arguments.add ? d_action[a] : 0.0f);
      d_std[a] = sum_std[slot] - total_weight * of.inverse[slot] + (arguments.add ? d_std[a] : 0.0f);
    }
    for (int64_t a = far; a < m.actions; a += kWarp) d_std[a] -= total_weight * of.inverse_std(a);
  }
};

// One action of the head: N(mean, var), var being the latent's and the exploration's together.
struct HeadElement {
  float difference, var, inverse, shift, old_std;

  P3_DEVICE HeadElement(const Head& head, int64_t row, int64_t a) {
    const int64_t at = row * head.actions + a;
    const float mean = read(head.mean, at), std = read(head.std, row * head.std_stride + a);
    difference = read(head.action, at) - mean;
    var = read(head.var, at) + std * std;
    inverse = 1.0f / var;
    shift = read(head.old_mean, at) - mean;
    old_std = read(head.old_std, at);
  }
};

struct GaussianHeadForward : WarpPerRow {
  struct Arguments {
    Head head;
    float *log_prob, *entropy, *kl;
  };
  static P3_DEVICE void run(const Thread& thread, const Arguments& arguments) {
    const Head& head = arguments.head;
    const int64_t row = thread.block * kRows + thread.index / kWarp;
    if (row >= head.rows) return;
    const int lane = thread.index % kWarp;
    float squares = 0, logs = 0, kl = 0;
    for (int64_t a = lane; a < head.actions; a += kWarp) {
      const HeadElement e(head, row, a);
      squares += e.difference * e.difference * e.inverse;
      logs += 0.5f * logf(e.var);
      // 1/2 (r - 1 - log r), r the ratio of the variances: by log1p, for both are often close
      const float excess = (e.old_std * e.old_std - e.var) * e.inverse;
      kl += 0.5f * (excess - log1pf(excess) + e.shift * e.shift * e.inverse);
    }
    squares = warp_sum(thread, squares);
    logs = warp_sum(thread, logs) + kLogSqrtTwoPi * static_cast<float>(head.actions);
    kl = warp_sum(thread, kl);
    if (lane != 0) return;
    arguments.log_prob[row] = -0.5f * squares - logs;
    arguments.entropy[row] = logs + 0.5f * static_cast<float>(head.actions);
    arguments.kl[row] = kl;
  }
};

struct GaussianHeadBackward : WarpPerRow {
  struct Arguments {
    Head head;
    const float *d_log_prob, *d_entropy, *d_kl;
    Output d_action, d_mean, d_var;
    float* d_std;
  };
  static P3_DEVICE void run(const Thread& thread, const Arguments& arguments) {
    const Head& head = arguments.head;
    const int64_t row = thread.block * kRows + thread.index / kWarp;
    if (row >= head.rows) return;
    const float of_log_prob = arguments.d_log_prob[row], of_entropy = arguments.d_entropy[row];
    const float of_kl = arguments.d_kl[row];
    for (int64_t a = thread.index % kWarp; a < head.actions; a += kWarp) {
      const HeadElement e(head, row, a);
      const int64_t at = row * head.actions + a;
      const float d_difference = -of_log_prob * e.difference * e.inverse;
      const float excess = (e.old_std * e.old_std - e.var) * e.inverse;
      const float d_var = 0.5f * e.inverse *
                          (of_log_prob * (e.difference * e.difference * e.inverse - 1.0f) + of_entropy -
                           of_kl * (excess + e.shift * e.shift * e.inverse));
      write(arguments.d_action, at, d_difference);
      write(arguments.d_mean, at, -d_difference - of_kl * e.shift * e.inverse);
      write(arguments.d_var, at, d_var);
      arguments.d_std[at] = 2.0f * read(head.std, row * head.std_stride + a) * d_var;
    }
  }
};

}  // namespace cuda
}  // namespace p3
