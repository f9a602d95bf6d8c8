// Products of small matrices for one instruction set: c [M, N] = a [M, K] b [K, N], plus a bias or what c has already.
//
// A tile of c, a few rows by a few vectors, stays in registers while k runs. Blocks of b are copied vector by vector in
// the order in which tiles read them; of a only what does not lie row by row. Each number of c is summed in the same
// order, whatever the number of threads and the rows that are asked for together.
//
// CMake compiles this file once per set, apart from the other kernels: the scheduling of instructions that is worth 7 %
// to the moments costs a product a fifth.
#include <algorithm>
#include <new>

#include "../scalar_math.h"
#include "product.h"
#include "simd.h"

namespace p3 {
namespace P3_ISA {

template <class S>
struct Tile {
  using N = typename Lanes<S>::Number;
  static constexpr int kLanes = Lanes<S>::kCount;
#if defined(P3_AVX512)
  // 24 of the 32 registers hold sums: two vectors of 16 floats are one number here.
  static constexpr int kRows = 12, kNumbers = 1;
#elif defined(P3_AVX2)
  static constexpr int kRows = 6, kNumbers = 2;
#else
  static constexpr int kRows = 4, kNumbers = 4;
#endif
  static constexpr int kColumns = kLanes * kNumbers;
  // Blocks: b's [kInner, kWidth] stays in the second cache, a tile's rows of a in the first.
  static constexpr int kInner = 256, kWidth = 16 * kColumns;
};

// Scratch of a thread, aligned to cache lines.
template <class S>
struct Packed {
  static constexpr std::align_val_t kLine{64};
  explicit Packed(int64_t size) : data(static_cast<S*>(::operator new(sizeof(S) * static_cast<size_t>(size), kLine))) {}
  ~Packed() { ::operator delete(data, kLine); }
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;
  S* data;
};

// to [rows, columns] = from.
template <class S>
void copy(const S* from, int64_t from_stride, S* to, int64_t to_stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * from_stride, columns, to + i * to_stride);
}

// block [columns / kColumns][inner][kColumns] = b [inner, columns], zeros beyond the columns.
template <class S>
void pack_columns(Matrix<const S> b, int64_t inner, int64_t columns, S* block) {
  constexpr int64_t kColumns = Tile<S>::kColumns;
  for (int64_t first = 0; first < columns; first += kColumns, block += inner * kColumns) {
    const int64_t count = std::min(kColumns, columns - first);
    const S* from = b.data + first * b.column_stride;
    if (count < kColumns) std::fill_n(block, inner * kColumns, S(0));
    if (b.column_stride == 1) {
      copy(from, b.row_stride, block, kColumns, inner, count);
      continue;
    }
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t k = 0; k < inner; ++k) block[k * kColumns + j] = from[j * b.column_stride + k * b.row_stride];
    }
  }
}

// rows [inner][kRows] = a [count, inner], zeros beyond `count`.
template <class S>
void pack_rows(Matrix<const S> a, int64_t count, int64_t inner, S* rows) {
  using T = Tile<S>;
  if (count < T::kRows) std::fill(rows, rows + inner * T::kRows, S(0));
  if (a.row_stride == 1 && count == T::kRows) {
    for (int64_t k = 0; k < inner; ++k) {
      const S* from = a.data + k * a.column_stride;
      for (int i = 0; i < T::kRows; ++i) rows[k * T::kRows + i] = from[i];
    }
    return;
  }
  for (int64_t k = 0; k < inner; ++k) {
    for (int64_t i = 0; i < count; ++i) rows[k * T::kRows + i] = a.data[i * a.row_stride + k * a.column_stride];
  }
}

// One tile: rows of a by a packed block of columns, added to what c has or, of the first block, to the bias or nothing.
// Each block is summed by itself first: of a sum over thousands of rows the roundings are those of a block.
// Lying: a's rows lie one after the other, `stride` apart; otherwise they are packed.
template <class S, bool Lying>
P3_INLINE void multiply_tile(const S* a, int64_t stride, const S* block, int64_t inner, const S* start,
                             int64_t start_stride, S* c, int64_t c_stride) {
  using T = Tile<S>;
  using N = typename T::N;
  N sum[T::kRows][T::kNumbers];
  P3_UNROLL
  for (int i = 0; i < T::kRows; ++i) {
    P3_UNROLL
    for (int j = 0; j < T::kNumbers; ++j) sum[i][j] = N(0.0);
  }
  for (int64_t k = 0; k < inner; ++k) {
    N column[T::kNumbers];
    P3_UNROLL
    for (int j = 0; j < T::kNumbers; ++j) column[j] = load(block + k * T::kColumns + j * T::kLanes);
    P3_UNROLL
    for (int i = 0; i < T::kRows; ++i) {
      const N value(Lying ? a[i * stride + k] : a[k * T::kRows + i]);
      P3_UNROLL
      for (int j = 0; j < T::kNumbers; ++j) sum[i][j] = fused(value, column[j], sum[i][j]);
    }
  }
  P3_UNROLL
  for (int i = 0; i < T::kRows; ++i) {
    P3_UNROLL
    for (int j = 0; j < T::kNumbers; ++j) {
      if (start) sum[i][j] = sum[i][j] + load(start + i * start_stride + j * T::kLanes);
      store_lanes(c + i * c_stride + j * T::kLanes, sum[i][j]);
    }
  }
}

// What a tile of c begins with: nothing where `data` is null, rows `stride` apart, of a bias the same row with stride 0.
template <class S>
struct Start {
  const S* data;
  int64_t stride;
};

// A row of tiles: `count` rows of a by a packed block of b, into c.
template <class S>
void multiply_rows(Matrix<const S> a, int64_t count, const S* block, int64_t inner, Start<S> start, S* c,
                   int64_t c_stride, int64_t columns, S* packed) {
  constexpr int64_t kRows = Tile<S>::kRows, kColumns = Tile<S>::kColumns;
  const bool lying = a.column_stride == 1 && count == kRows;
  if (!lying) pack_rows(a, count, inner, packed);
  for (int64_t j = 0; j < columns; j += kColumns, block += inner * kColumns) {
    const auto multiply = [&](Start<S> from, S* to, int64_t to_stride) {
      if (lying) {
        multiply_tile<S, true>(a.data, a.row_stride, block, inner, from.data, from.stride, to, to_stride);
      } else {
        multiply_tile<S, false>(packed, 0, block, inner, from.data, from.stride, to, to_stride);
      }
    };
    const int64_t wide = std::min(kColumns, columns - j);
    Start<S> from{start.data ? start.data + j : nullptr, start.stride};
    if (count == kRows && wide == kColumns) {
      multiply(from, c + j, c_stride);
      continue;
    }
    S edge[kRows * kColumns] = {};  // c's last rows and columns, in a whole tile
    if (from.data) {
      copy(from.data, from.stride, edge, kColumns, count, wide);
      from = {edge, kColumns};
    }
    multiply(from, edge, kColumns);
    copy<S>(edge, kColumns, c + j, c_stride, count, wide);
  }
}

template <class S>
void product(Matrix<const S> a, Matrix<const S> b, const S* bias, bool add, S* c, int64_t c_stride, int64_t rows,
             int64_t columns, int64_t inner) {
  using T = Tile<S>;
  const int64_t width = std::min<int64_t>(T::kWidth, (columns + T::kColumns - 1) / T::kColumns * T::kColumns);
  const int64_t depth = std::min<int64_t>(T::kInner, inner);
  const Packed<S> block(width * depth), packed(T::kRows * depth);
  for (int64_t left = 0; left < columns; left += T::kWidth) {
    const int64_t wide = std::min<int64_t>(T::kWidth, columns - left);
    int64_t k = 0;
    do {  // once without any k, too: a bias alone is a product of nothing
      const int64_t deep = std::min<int64_t>(T::kInner, inner - k);
      pack_columns<S>({b.data + k * b.row_stride + left * b.column_stride, b.row_stride, b.column_stride}, deep, wide,
                      block.data);
      for (int64_t top = 0; top < rows; top += T::kRows) {
        const int64_t high = std::min<int64_t>(T::kRows, rows - top);
        S* out = c + top * c_stride + left;
        const Start<S> start = add || k > 0 ? Start<S>{out, c_stride} : Start<S>{bias ? bias + left : nullptr, 0};
        multiply_rows<S>({a.data + top * a.row_stride + k * a.column_stride, a.row_stride, a.column_stride}, high,
                         block.data, deep, start, out, c_stride, wide, packed.data);
      }
      k += T::kInner;
    } while (k < inner);
  }
}

template void product<float>(Matrix<const float>, Matrix<const float>, const float*, bool, float*, int64_t, int64_t,
                             int64_t, int64_t);
template void product<double>(Matrix<const double>, Matrix<const double>, const double*, bool, double*, int64_t,
                              int64_t, int64_t, int64_t);

}  // namespace P3_ISA
}  // namespace p3
