// Heights of terrain maps under many points: each tile a map of equal cells with a border of one cell, which whatever
// lies outside is taken to be in.
#pragma once

#include <cstdint>

#include "parallel.h"
#include "threaded.h"

namespace p3::height_maps {

using threaded::Address;
using threaded::at;
using threaded::over_rows;

// [tiles, rows, columns]
struct Maps {
  const float* heights;
  int64_t rows, columns;

  // The height in cell (x, y) of a map; NaN is taken for 0.
  float look_up(const float* map, float x, float y) const {
    const float last_row = static_cast<float>(rows - 1), last_column = static_cast<float>(columns - 1);
    x = x > 0.0f ? (x < last_row ? x : last_row) : 0.0f;
    y = y > 0.0f ? (y < last_column ? y : last_column) : 0.0f;
    return map[static_cast<int32_t>(x) * static_cast<int32_t>(columns) + static_cast<int32_t>(y)];
  }
  const float* of(int64_t tile) const { return heights + tile * rows * columns; }
};

// heights [K, M] of tile [K] at the cells (x, y) = points [K, M, 2] · scale + middle [2]
inline void at_points(Address maps, int64_t rows, int64_t columns, Address tile, Address points, float scale,
                      Address middle, Address heights, int64_t robots, int64_t count, int threads) {
  const Maps all{at<float>(maps), rows, columns};
  const float middle_x = at<float>(middle)[0], middle_y = at<float>(middle)[1];
  over_rows(robots, count, threads, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const float* map = all.of(at<int64_t>(tile)[k]);
      const float* point = at<float>(points, 2 * k * count);
      float* out = at<float>(heights, k * count);
      for (int64_t m = 0; m < count; ++m) {
        out[m] = all.look_up(map, point[2 * m] * scale + middle_x, point[2 * m + 1] * scale + middle_y);
      }
    }
  });
}

// heights [K, S] of tile [K] at offsets [2, S], in cells, turned by cos and sin [K] and moved to the cells
// root · scale + middle [2] of the rows root [K, 3], which are root_stride apart
inline void scan(Address maps, int64_t rows, int64_t columns, Address tile, Address root, int64_t root_stride,
                 float scale, Address middle, Address cos, Address sin, Address offsets, Address heights,
                 int64_t robots, int64_t count, int threads) {
  const Maps all{at<float>(maps), rows, columns};
  const float *along = at<float>(offsets), *across = along + count;
  over_rows(robots, count, threads, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const float* map = all.of(at<int64_t>(tile)[k]);
      const float* place = at<float>(root, k * root_stride);
      const float x = place[0] * scale + at<float>(middle)[0], y = place[1] * scale + at<float>(middle)[1];
      const float c = at<float>(cos)[k], s = at<float>(sin)[k];
      float* out = at<float>(heights, k * count);
      for (int64_t m = 0; m < count; ++m) {
        out[m] = all.look_up(map, (x + c * along[m]) - s * across[m], (y + s * along[m]) + c * across[m]);
      }
    }
  });
}

}  // namespace p3::height_maps
