// Standard normals of a row on a CPU, many counters at once; the mathematics is in normal_math.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../normal_math.h"
#include "kernels.h"

namespace p3 {
namespace P3_ISA {

constexpr int kPhiloxBlock = 32;  // counters handled at once, stage by stage, so that each stage vectorises

static inline void philox4x32(uint64_t seed, uint32_t (&c)[4][kPhiloxBlock]) {
  PhiloxKey key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int j = 0; j < kPhiloxBlock; ++j) philox_round(c[0][j], c[1][j], c[2][j], c[3][j], key);
    key.advance();
  }
}

static inline void box_muller(uint32_t word1, uint32_t word2, double* a, double* b) {
  const double u1 = (word1 + 0.5) / 4294967296.0, u2 = (word2 + 0.5) / 4294967296.0;
  const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 6.283185307179586 * u2;
  *a = radius * std::cos(angle);
  *b = radius * std::sin(angle);
}

// Column z of n comes from word z / blocks of counter z % blocks, blocks = ceil(n / 4): whole words are stored at once.
template <class S>
void normal(uint64_t seed, uint32_t stream, uint32_t sample, uint64_t row, S* out, int64_t n) {
  uint32_t c[4][kPhiloxBlock];
  S values[4][kPhiloxBlock];
  const int64_t blocks = (n + 3) / 4;
  for (int64_t at = 0; at < blocks; at += kPhiloxBlock) {
    for (int j = 0; j < kPhiloxBlock; ++j) {
      c[0][j] = static_cast<uint32_t>(at + j);
      c[1][j] = sample;
      c[2][j] = static_cast<uint32_t>(row);
      c[3][j] = stream_word(stream, row);
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
