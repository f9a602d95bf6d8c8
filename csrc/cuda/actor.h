// A whole network in one launch: a block takes a tile of rows through all layers, activations never leaving it.
#pragma once

#include "elementwise.h"
#include "layer.h"
#include "row_reductions.h"

namespace p3 {
namespace cuda {

template <class T>
struct TilePerBlock {
  static constexpr int kThreads = T::kThreads;
  static constexpr int kBlocksPerSm = 2;  // what the registers are held down to
};

// ---- Moments --------------------------------------------------------------------------------------------------

template <class T, class Weight>
struct MlpMoments : TilePerBlock<T> {
  struct Arguments {
    Network network;
    Input mean, var;
    int stochastic;
    int64_t rows;
    float *out_mean, *out_var;
  };

  static int64_t shared_floats(const Network& network) {
    const Buffers b = Buffers::of<T>(network, network.widths[0]);
    return 2 * int64_t{T::kRows} * (b.even + b.odd) + 2 * T::kStageFloats;
  }

  static P3_DEVICE void run(const Thread& thread, const Arguments& a) {
    const Network& network = a.network;
    const Buffers sizes = Buffers::of<T>(network, network.widths[0]);
    float* const stages = thread.shared;
    float* const even = stages + 2 * T::kStageFloats;
    float* const odd = even + 2 * sizes.even * T::kRows;
    const Units in{even, even + sizes.even * T::kRows}, other{odd, odd + sizes.odd * T::kRows};
    const int inputs = network.widths[0], width = padded<T>(inputs), deterministic = inputs - a.stochastic;
    const int64_t first_row = thread.block * T::kRows;

    for (int e = thread.index; e < width * T::kRows; e += T::kThreads) {
      const int unit = e % width, r = e / width;  // along the rows of the tensors
      const bool inside = first_row + r < a.rows && unit < inputs;
      const int at = unit * T::kRows + r;
      in.mean[at] = inside ? read(a.mean, (first_row + r) * inputs + unit) : 0.0f;
      in.var[at] = inside && unit >= deterministic
                       ? read(a.var, (first_row + r) * a.stochastic + unit - deterministic)
                       : 0.0f;
    }
    thread.sync();
    LinearLayer<Weight> first = LinearLayer<Weight>::of(network, 0);
    first.first_stochastic = deterministic;
    const int activated = network.activate_last ? network.layers : network.layers - 1;
    const Units out = run_layers<T, true>(thread, network, first, network.layers, activated, in, other, stages);
    const int outputs = network.widths[network.layers];
    for (int e = thread.index; e < outputs * T::kRows; e += T::kThreads) {
      const int unit = e % outputs, r = e / outputs;
      if (first_row + r >= a.rows) continue;
      a.out_mean[(first_row + r) * outputs + unit] = out.mean[unit * T::kRows + r];
      a.out_var[(first_row + r) * outputs + unit] = out.var[unit * T::kRows + r];
    }
  }
};

// ---- Values: at the latent's mean, or at samples of it ----------------------------------------------------------

template <class T, class Weight>
struct MlpActions : TilePerBlock<T> {
  struct Arguments {
    Network network;
    Sampled sampled;
    Likelihood likelihood;
    float* means;
  };
  static constexpr int kWarps = T::kThreads / kWarp;
  static constexpr int kWarpRows = T::kRows / kWarps;

  static P3_HD Buffers buffers(const Network& network, int context_columns) {
    const int latent = network.widths[0] - context_columns;
    return Buffers::of<T>(network, latent > context_columns ? latent : context_columns);
  }
  static int64_t shared_floats(const Network& network, int context_columns) {
    const Buffers b = buffers(network, context_columns);
    return int64_t{T::kRows} * (b.even + b.odd + padded<T>(network.widths[1])) + 2 * T::kStageFloats;
  }

  static P3_DEVICE void run(const Thread& thread, const Arguments& a) {
    const Network& network = a.network;
    const Sampled& s = a.sampled;
    const Buffers sizes = buffers(network, s.context_columns);
    float* const stages = thread.shared;
    float* const even = stages + 2 * T::kStageFloats;
    float* const odd = even + sizes.even * T::kRows;
    float* const context_part = odd + sizes.odd * T::kRows;
    const Units in{even, nullptr}, other{odd, nullptr};
    const int64_t first_row = thread.block * T::kRows;
    const int outputs = network.widths[network.layers];

    // What the context adds to the first layer is the same for every sample.
    load_context(thread, s, first_row, in.mean);
    LinearLayer<Weight> of_context = LinearLayer<Weight>::of(network, 0), of_latent = of_context;
    of_context.inputs = s.context_columns;
    of_latent.weight += s.context_columns;
    of_latent.inputs = s.latent_columns;
    of_latent.bias.data = nullptr;
    of_latent.start = context_part;

    OnlineLogSum totals[kWarpRows];
    // A first turn for the context: the loop holds the code of a layer once, not twice.
    for (int64_t sample = -1; sample < s.samples; ++sample) {
      const bool context = sample < 0;
      if (!context) load_latent(thread, s, first_row, sample, in.mean);
      thread.sync();
      const Units out = run_layers<T, false>(thread, network, context ? of_context : of_latent,
                                             context ? 1 : network.layers, context ? 0 : network.layers - 1, in,
                                             context ? Units{context_part, nullptr} : other, stages);
      if (context) continue;
      if (a.means != nullptr) {
        for (int e = thread.index; e < outputs * T::kRows; e += T::kThreads) {
          const int unit = e % outputs, r = e / outputs;
          if (first_row + r >= s.rows) continue;
          a.means[(sample * s.rows + first_row + r) * outputs + unit] = out.mean[unit * T::kRows + r];
        }
      }
      if (a.likelihood.log_prob != nullptr) add_likelihood(thread, a, first_row, outputs, out.mean, totals);
      thread.sync();  // before the next sample takes the buffers
    }
    if (a.likelihood.log_prob != nullptr) write_likelihood(thread, a, first_row, outputs, totals);
  }

  static P3_DEVICE void load_context(const Thread& thread, const Sampled& s, int64_t first_row, float* units) {
    const int width = padded<T>(s.context_columns);
    for (int e = thread.index; e < width * T::kRows; e += T::kThreads) {
      const int unit = e % width, r = e / width;
      const bool inside = first_row + r < s.rows && unit < s.context_columns;
      units[unit * T::kRows + r] = inside ? read(s.context, (first_row + r) * s.context_columns + unit) : 0.0f;
    }
  }

  // Four columns a thread at a time, those of one counter, so that noise is drawn into registers and nowhere else.
  static P3_DEVICE void load_latent(const Thread& thread, const Sampled& s, int64_t first_row, int64_t sample,
                                    float* units) {
    const int columns = s.latent_columns, quarter = (columns + 3) / 4, width = padded<T>(columns);
    const bool mirrored = sample >= s.half;
    const bool drawn = s.latent_std.data != nullptr && s.noise.data == nullptr;
    for (int e = thread.index; e < (width - columns) * T::kRows; e += T::kThreads) units[columns * T::kRows + e] = 0.0f;
    for (int e = thread.index; e < quarter * T::kRows; e += T::kThreads) {
      const int q = e % quarter, r = e / quarter;
      const int64_t row = first_row + r;
      const bool inside = row < s.rows;
      float noise[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (drawn && inside) {
        const int64_t number = s.row_numbers != nullptr ? s.row_numbers[row] : row;
        four_normals(s.seed, 0, static_cast<uint32_t>(mirrored ? sample - s.half : sample),
                     static_cast<uint64_t>(number), static_cast<uint32_t>(q), noise);
      }
      P3_UNROLL
      for (int word = 0; word < 4; ++word) {
        const int column = word * quarter + q;
        if (column >= columns) continue;
        float value = 0.0f;
        if (inside) {
          const int64_t at = row * columns + column;
          value = read(s.latent_mean, at);
          if (s.latent_std.data != nullptr) {
            const float eps = s.noise.data != nullptr ? read(s.noise, sample * s.rows * columns + at)
                              : mirrored              ? -noise[word]
                                                      : noise[word];
            value += read(s.latent_std, at) * eps;
          }
        }
        units[column * T::kRows + r] = value;
      }
    }
  }

  // A warp takes every kWarps-th row; lanes take the actions.
  static P3_DEVICE void add_likelihood(const Thread& thread, const Arguments& a, int64_t first_row, int actions,
                                       const float* means, OnlineLogSum (&totals)[kWarpRows]) {
    const Likelihood& l = a.likelihood;
    P3_UNROLL
    for (int i = 0; i < kWarpRows; ++i) {
      const int r = thread.index / kWarp + i * kWarps;
      const int64_t row = first_row + r;
      float sum = 0;
      for (int action = thread.index % kWarp; row < a.sampled.rows && action < actions; action += kWarp) {
        const float z = (read(l.action, row * actions + action) - means[action * T::kRows + r]) /
                        read(l.std, row * l.std_stride + action);
        sum += z * z;
      }
      const float exponent[1] = {-0.5f * warp_sum(thread, sum)};
      totals[i].add(exponent);
    }
  }

  static P3_DEVICE void write_likelihood(const Thread& thread, const Arguments& a, int64_t first_row, int actions,
                                         const OnlineLogSum (&totals)[kWarpRows]) {
    const Likelihood& l = a.likelihood;
    P3_UNROLL
    for (int i = 0; i < kWarpRows; ++i) {
      const int64_t row = first_row + thread.index / kWarp + i * kWarps;
      float logs = 0;
      for (int action = thread.index % kWarp; row < a.sampled.rows && action < actions; action += kWarp) {
        logs += logf(read(l.std, row * l.std_stride + action));
      }
      logs = warp_sum(thread, logs) + kLogSqrtTwoPi * static_cast<float>(actions);
      if (row < a.sampled.rows && thread.index % kWarp == 0) l.log_prob[row] = totals[i].value() - logs - l.offset;
    }
  }
};

}  // namespace cuda
}  // namespace p3
