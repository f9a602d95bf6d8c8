// One element a thread: moments through an activation, the activation itself, noise, and the latent's gradients.
#pragma once

#include "../normal_math.h"
#include "device.h"

namespace p3 {
namespace cuda {

// A kernel that calls Body::at(arguments, i) for every i below arguments.n.
template <class Body>
struct Elementwise {
  using Arguments = Body;
  static constexpr int kThreads = 256;
  static constexpr int kBlocksPerSm = 1;
  static P3_DEVICE void run(const Thread& thread, const Body& body) {
    const int64_t i = thread.block * kThreads + thread.index;
    if (i < body.n) body.at(i);
  }
  static void start(const Target& target, const Body& body) {
    launch<Elementwise>(target, blocks_for(body.n, kThreads), 0, body);
  }
};

// shift[i mod period]; 32-bit division where it will do, for 64-bit division is a subroutine on a GPU.
P3_DEVICE float shifted(float value, const Input& shift, int64_t period, int64_t i) {
  if (shift.data == nullptr) return value;
  const bool small = i <= 0xffffffffll && period <= 0xffffffffll;
  return value + read(shift, small ? static_cast<int64_t>(static_cast<uint32_t>(i) % static_cast<uint32_t>(period))
                                   : i % period);
}

struct ActivationMomentsForward {
  ActivationOf activation;
  Input mean, var, shift;
  int64_t period;
  Output out_mean, out_var;
  int64_t n;

  P3_DEVICE void at(int64_t i) const {
    const float m = shifted(read(mean, i), shift, period, i);
    const Moments<float> out = activation_moments(activation.kind, activation.parameter, m, read(var, i));
    write(out_mean, i, out.mean);
    write(out_var, i, out.var);
  }
};

struct ActivationMomentsBackward {
  ActivationOf activation;
  Input mean, var, shift;
  int64_t period;
  Input d_out_mean, d_out_var;
  Output d_mean, d_var, out_mean, out_var;
  int64_t n;

  P3_DEVICE void at(int64_t i) const {
    const float m = shifted(read(mean, i), shift, period, i);
    Moments<float> out;
    MomentGradients<float> d;
    activation_gradients(activation.kind, activation.parameter, m, read(var, i), &out, &d);
    const float g_mean = read(d_out_mean, i), g_var = read(d_out_var, i);
    write(d_mean, i, g_mean * d.mean_mean + g_var * d.var_mean);
    write(d_var, i, g_mean * d.mean_var + g_var * d.var_var);
    if (out_mean.data != nullptr) {
      write(out_mean, i, out.mean);
      write(out_var, i, out.var);
    }
  }
};

struct ActivationForward {
  ActivationOf activation;
  Input x, shift;
  int64_t period;
  Output out;
  int64_t n;

  P3_DEVICE void at(int64_t i) const {
    write(out, i, activate(activation.kind, activation.parameter, shifted(read(x, i), shift, period, i)));
  }
};

struct ActivationBackward {
  ActivationOf activation;
  Input out, d_out;
  Output d_x;
  int64_t n;

  P3_DEVICE void at(int64_t i) const {
    write(d_x, i, read(d_out, i) * activation_slope(activation.kind, activation.parameter, read(out, i)));
  }
};

// Four normals of one counter, which belong to columns q, q + Q, q + 2 Q and q + 3 Q of a row, Q = ceil(columns / 4).
P3_DEVICE void four_normals(const Seed& seed, uint32_t stream, uint32_t sample, uint64_t row, uint32_t q,
                            float (&out)[4]) {
  const uint64_t value = seed.device_seed != nullptr ? static_cast<uint64_t>(*seed.device_seed) : seed.value;
  PhiloxKey key{static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
  uint32_t c0 = q, c1 = sample, c2 = static_cast<uint32_t>(row), c3 = stream_word(stream, row);
  P3_UNROLL
  for (int round = 0; round < kPhiloxRounds; ++round) {
    philox_round(c0, c1, c2, c3, key);
    key.advance();
  }
  box_muller(c0, c1, &out[0], &out[1]);
  box_muller(c2, c3, &out[2], &out[3]);
}

struct Normal {  // one counter an element
  Seed seed;
  uint32_t stream;
  int64_t first_sample, first_row;
  const int64_t* row_numbers;
  int64_t rows, columns;
  float* out;
  int64_t n;

  P3_DEVICE void at(int64_t i) const {
    const int64_t quarter = (columns + 3) / 4;
    const int64_t q = i % quarter, pair = i / quarter;  // pair: of sample and row
    const int64_t row = row_numbers != nullptr ? row_numbers[pair % rows] : first_row + pair % rows;
    float values[4];
    four_normals(seed, stream, static_cast<uint32_t>(first_sample + pair / rows), static_cast<uint64_t>(row),
                 static_cast<uint32_t>(q), values);
    P3_UNROLL
    for (int word = 0; word < 4; ++word) {
      const int64_t column = word * quarter + q;
      if (column < columns) out[pair * columns + column] = values[word];
    }
  }
};

struct LatentBackward {  // one element of [rows, columns], over all samples
  const float* d;
  int64_t d_columns;
  const float* noise;
  float *d_mean, *d_std;
  int64_t samples, rows, columns;
  int64_t n;

  P3_DEVICE void at(int64_t i) const {
    const int64_t row = i / columns, column = i % columns;
    float sum = 0, sum_noise = 0;
    for (int64_t sample = 0; sample < samples; ++sample) {
      const float g = d[(sample * rows + row) * d_columns + column];
      sum += g;
      sum_noise += g * noise[sample * n + i];
    }
    d_mean[i] += sum;
    d_std[i] += sum_noise;
  }
};

}  // namespace cuda
}  // namespace p3
