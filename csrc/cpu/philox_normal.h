// Standard normals from a counter: Philox4x32-10 (Salmon et al., 2011) and Box-Muller.
//
// The number at (seed, stream, sample, row, column) depends on nothing else, so a backward pass or another backend
// draws the same noise again. p3kernels/reference/latent_noise.py is the same in torch.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace p3 {
namespace P3_ISA {

constexpr int kPhiloxBlock = 32;  // counters handled at once, stage by stage, so that each stage vectorises

static inline void philox4x32(uint64_t seed, uint32_t (&c)[4][kPhiloxBlock]) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int j = 0; j < kPhiloxBlock; ++j) {
      const uint64_t product0 = uint64_t(0xD2511F53u) * c[0][j];
      const uint64_t product1 = uint64_t(0xCD9E8D57u) * c[2][j];
      const uint32_t low0 = static_cast<uint32_t>(product0), high0 = static_cast<uint32_t>(product0 >> 32);
      const uint32_t low1 = static_cast<uint32_t>(product1), high1 = static_cast<uint32_t>(product1 >> 32);
      c[0][j] = high1 ^ c[1][j] ^ key0;
      c[1][j] = low1;
      c[2][j] = high0 ^ c[3][j] ^ key1;
      c[3][j] = low0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// Natural logarithm of u in (0, 1), to about 1e-7 relative; `complement` = 1 - u, which u has forgotten when close to 1.
static inline float log_unit(float u, float complement) {
  uint32_t bits;
  std::memcpy(&bits, &u, 4);
  const int32_t exponent = static_cast<int32_t>((bits - 0x3f3504f3u) >> 23) - ((bits < 0x3f3504f3u) ? 512 : 0);
  bits -= static_cast<uint32_t>(exponent) << 23;
  float m;
  std::memcpy(&m, &bits, 4);
  const float above_one = exponent == 0 ? -complement : m - 1.0f;
  const float s = above_one / (2.0f + above_one), s2 = s * s;
  const float series = 0.66666667f + s2 * (0.4f + s2 * (0.28571430f + s2 * 0.22222222f));
  return exponent * 0.69314718f + (2.0f * s + s * s2 * series);
}

// Two normals of two 32-bit words, each taken as (word + 1/2) / 2^32.
static inline void box_muller(uint32_t word1, uint32_t word2, float* a, float* b) {
  const float scale = 1.0f / 4294967296.0f;
  const float u1 = (static_cast<float>(word1) + 0.5f) * scale, u2 = (static_cast<float>(word2) + 0.5f) * scale;
  const float complement = (static_cast<float>(~word1) + 0.5f) * scale;
  const float radius = __builtin_sqrtf(-2.0f * log_unit(u1, complement));
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

static inline void box_muller(uint32_t word1, uint32_t word2, double* a, double* b) {
  const double u1 = (word1 + 0.5) / 4294967296.0, u2 = (word2 + 0.5) / 4294967296.0;
  const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 6.283185307179586 * u2;
  *a = radius * std::cos(angle);
  *b = radius * std::sin(angle);
}

// Column z of n comes from word z / blocks of counter z % blocks, blocks = ceil(n / 4): whole words are stored at once.
template <class S>
void normal(uint64_t seed, uint32_t stream, uint32_t sample, uint32_t row, S* out, int64_t n) {
  uint32_t c[4][kPhiloxBlock];
  S values[4][kPhiloxBlock];
  const int64_t blocks = (n + 3) / 4;
  for (int64_t at = 0; at < blocks; at += kPhiloxBlock) {
    for (int j = 0; j < kPhiloxBlock; ++j) {
      c[0][j] = static_cast<uint32_t>(at + j);
      c[1][j] = sample;
      c[2][j] = row;
      c[3][j] = stream;
    }
    philox4x32(seed, c);
    for (int j = 0; j < kPhiloxBlock; ++j) box_muller(c[0][j], c[1][j], &values[0][j], &values[1][j]);
    for (int j = 0; j < kPhiloxBlock; ++j) box_muller(c[2][j], c[3][j], &values[2][j], &values[3][j]);
    for (int word = 0; word < 4; ++word) {
      const int64_t begin = word * blocks + at;
      const int64_t end = begin + (blocks - at < kPhiloxBlock ? blocks - at : kPhiloxBlock);
      const int64_t count = (end < n ? end : n) - begin;
      if (count > 0) std::memcpy(out + begin, values[word], sizeof(S) * count);
    }
  }
}

}  // namespace P3_ISA
}  // namespace p3
