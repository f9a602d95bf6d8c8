// Products with a matrix of few entries that share their weights: what a convolution of a small image is.
//
// Vectors run over images, a chunk of them at a time. An entry is a multiply-add with a broadcast weight, so that the
// zeros of the matrix cost nothing. Images may lie one after the other or cell by cell; a chunk is copied cell by cell.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "../moments_math.h"
#include "kernels.h"
#include "simd.h"

namespace p3 {
namespace P3_ISA {

// Images side by side: enough registers to keep the multiply-adds of one entry independent of each other.
template <class S>
struct Chunk {
  using N = typename Lanes<S>::Number;
  static constexpr int kLanes = Lanes<S>::kCount;
  static constexpr int kNumbers = kLanes < 16 ? 16 / kLanes : 1;
  static constexpr int kImages = kLanes * kNumbers;

  explicit Chunk(int64_t cells) : cells_(cells), values_(static_cast<size_t>(cells * kImages)) {}

  // Copies `count` images; those that a full chunk would have beyond them are 0.
  void read(Images<const S> from, int64_t first, int64_t count) {
    if (count < kImages) std::fill(values_.begin(), values_.end(), S(0));
    const S* source = from.data + first * from.image_stride;
    if (from.image_stride == 1) {
      for (int64_t c = 0; c < cells_; ++c) {
        std::memcpy(cell(c), source + c * from.cell_stride, sizeof(S) * static_cast<size_t>(count));
      }
      return;
    }
    for (int64_t k = 0; k < count; ++k, source += from.image_stride) {
      for (int64_t c = 0; c < cells_; ++c) values_[c * kImages + k] = source[c * from.cell_stride];
    }
  }
  void write(Images<S> to, int64_t first, int64_t count) const {
    S* target = to.data + first * to.image_stride;
    if (to.image_stride == 1) {
      for (int64_t c = 0; c < cells_; ++c) {
        std::memcpy(target + c * to.cell_stride, cell(c), sizeof(S) * static_cast<size_t>(count));
      }
      return;
    }
    for (int64_t k = 0; k < count; ++k, target += to.image_stride) {
      for (int64_t c = 0; c < cells_; ++c) target[c * to.cell_stride] = values_[c * kImages + k];
    }
  }
  S* cell(int64_t c) { return values_.data() + c * kImages; }
  const S* cell(int64_t c) const { return values_.data() + c * kImages; }

 private:
  int64_t cells_;
  std::vector<S> values_;
};

// out cell o = sum over its entries of weight[tap] * x[source], plus bias[o], through the activation where there is one.
template <class S>
void taps_forward(Taps taps, const S* weight, const S* bias, const Activation* kind, S parameter,
                  Images<const S> x, int64_t inputs, Images<S> out, int64_t outputs, int64_t begin, int64_t end) {
  using C = Chunk<S>;
  using N = typename C::N;
  C read(inputs), made(outputs);
  const N p(parameter);
  for (int64_t first = begin; first < end; first += C::kImages) {
    const int64_t count = std::min<int64_t>(C::kImages, end - first);
    read.read(x, first, count);
    for (int64_t o = 0; o < outputs; ++o) {
      N sum[C::kNumbers];
      for (int k = 0; k < C::kNumbers; ++k) sum[k] = N(bias ? bias[o] : S(0));
      for (int32_t e = taps.start[o]; e < taps.start[o + 1]; ++e) {
        const S* cell = read.cell(taps.first[e]);
        const N w(weight[taps.second[e]]);
        for (int k = 0; k < C::kNumbers; ++k) sum[k] = fused(load(cell + k * C::kLanes), w, sum[k]);
      }
      S* cell = made.cell(o);
      for (int k = 0; k < C::kNumbers; ++k) {
        store_lanes(cell + k * C::kLanes, kind ? activate(*kind, p, sum[k]) : sum[k]);
      }
    }
    made.write(out, first, count);
  }
}

// d_weight[t] = sum over images and over the entries of weight t of d_out[first] * x[second], for t in [begin, end).
template <class S>
void taps_weights(Taps taps, Images<const S> d_out, int64_t outputs, Images<const S> x, int64_t inputs, int64_t images,
                  S* d_weight, int64_t begin, int64_t end) {
  using C = Chunk<S>;
  using N = typename C::N;
  C read(inputs), gradient(outputs);
  std::vector<S> sums(static_cast<size_t>((end - begin) * C::kLanes), S(0));
  for (int64_t first = 0; first < images; first += C::kImages) {
    const int64_t count = std::min<int64_t>(C::kImages, images - first);
    read.read(x, first, count);
    gradient.read(d_out, first, count);
    for (int64_t t = begin; t < end; ++t) {
      N sum[C::kNumbers];
      for (int k = 0; k < C::kNumbers; ++k) sum[k] = N(0.0);
      for (int32_t e = taps.start[t]; e < taps.start[t + 1]; ++e) {
        const S *g = gradient.cell(taps.first[e]), *cell = read.cell(taps.second[e]);
        for (int k = 0; k < C::kNumbers; ++k) {
          sum[k] = fused(load(g + k * C::kLanes), load(cell + k * C::kLanes), sum[k]);
        }
      }
      S* total = sums.data() + (t - begin) * C::kLanes;
      N all = load(total);
      for (int k = 0; k < C::kNumbers; ++k) all = all + sum[k];
      store_lanes(total, all);
    }
  }
  for (int64_t t = begin; t < end; ++t) {
    const S* total = sums.data() + (t - begin) * C::kLanes;
    S sum = 0;
    for (int k = 0; k < C::kLanes; ++k) sum += total[k];
    d_weight[t] = sum;
  }
}

}  // namespace P3_ISA
}  // namespace p3
