// Standard normals from a counter, shared by host and device: Philox4x32-10 (Salmon et al., 2011) and Box-Muller.
//
// The number at (seed, stream, sample, row, column) depends on nothing else, so a backward pass or another backend
// draws the same noise again. p3kernels/reference/latent_noise.py is the same in torch.
#pragma once

#include "scalar_math.h"

namespace p3 {
namespace P3_ISA {

struct PhiloxKey {
  uint32_t low, high;
  P3_HD void advance() {
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
};
constexpr int kPhiloxRounds = 10;

P3_HD void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, PhiloxKey key) {
  const uint64_t product0 = uint64_t(0xD2511F53u) * c0;
  const uint64_t product1 = uint64_t(0xCD9E8D57u) * c2;
  const uint32_t low0 = static_cast<uint32_t>(product0), high0 = static_cast<uint32_t>(product0 >> 32);
  const uint32_t low1 = static_cast<uint32_t>(product1), high1 = static_cast<uint32_t>(product1 >> 32);
  c0 = high1 ^ c1 ^ key.low;
  c1 = low1;
  c2 = high0 ^ c3 ^ key.high;
  c3 = low0;
}

// The fourth counter word: the stream, 0 or 1, below what the row's number has beyond 32 bits.
P3_HD uint32_t stream_word(uint32_t stream, uint64_t row) { return stream + 2u * static_cast<uint32_t>(row >> 32); }

// Natural logarithm of u in (0, 1), to about 1e-7 relative; `complement` = 1 - u, which u has forgotten when close to 1.
P3_HD float log_unit(float u, float complement) {
  uint32_t bits;
  memcpy(&bits, &u, 4);
  const int32_t exponent = static_cast<int32_t>((bits - 0x3f3504f3u) >> 23) - ((bits < 0x3f3504f3u) ? 512 : 0);
  bits -= static_cast<uint32_t>(exponent) << 23;
  float m;
  memcpy(&m, &bits, 4);
  const float above_one = exponent == 0 ? -complement : m - 1.0f;
  const float s = above_one / (2.0f + above_one), s2 = s * s;
  const float series = 0.66666667f + s2 * (0.4f + s2 * (0.28571430f + s2 * 0.22222222f));
  return exponent * 0.69314718f + (2.0f * s + s * s2 * series);
}

// Two normals of two 32-bit words, each taken as (word + 1/2) / 2^32.
P3_HD void box_muller(uint32_t word1, uint32_t word2, float* a, float* b) {
  const float scale = 1.0f / 4294967296.0f;
  const float u1 = (static_cast<float>(word1) + 0.5f) * scale, u2 = (static_cast<float>(word2) + 0.5f) * scale;
  const float complement = (static_cast<float>(~word1) + 0.5f) * scale;
  const float radius = square_root(-2.0f * log_unit(u1, complement));
  // cos and sin of 2 pi u2, by quarter turns
  const float turns = 4.0f * u2;
  const int quarter = static_cast<int>(turns + 0.5f);
  const float x = (turns - static_cast<float>(quarter)) * 1.57079633f, x2 = x * x;
  const float sine = x * (1.0f + x2 * (-0.16666667f + x2 * (8.3333310e-3f + x2 * -1.9840874e-4f)));
  const float cosine = 1.0f + x2 * (-0.5f + x2 * (4.1666638e-2f + x2 * (-1.3888397e-3f + x2 * 2.4760495e-5f)));
  const float c = (quarter & 1) ? -sine : cosine, s = (quarter & 1) ? cosine : sine;
  *a = radius * ((quarter & 2) ? -c : c);
  *b = radius * ((quarter & 2) ? -s : s);
}

}  // namespace P3_ISA
}  // namespace p3
