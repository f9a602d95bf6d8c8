// A linear layer on a block's tile of rows: activations in shared memory, weights streamed through it.
//
// Activations lie as [unit][row], so that the rows of a unit are read as whole vectors that all threads of a warp share.
// A thread makes 8 rows x 4 outputs; weights come in stages of 2,048, read along their rows (coalesced), turned round on
// the way into shared memory, the next stage being loaded while the present one is used.
#pragma once

#include "device.h"

namespace p3 {
namespace cuda {

template <int kRowsOfTile>
struct Tile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kThreads = 128;
  static constexpr int kThreadRows = 8;
  static constexpr int kThreadColumns = 4;
  static constexpr int kColumnThreads = kThreads * kThreadRows / kRows;
  static constexpr int kColumns = kColumnThreads * kThreadColumns;  // outputs made at once: 512 or 256
  static constexpr int kStageWeights = 2048;
  static constexpr int kDepth = kStageWeights / kColumns;   // inputs of a stage: 4 or 8
  static constexpr int kStride = kColumns + kWarp / kDepth;  // the extra keeps a warp's stores in different banks
  static constexpr int kStageFloats = kDepth * kStride;
  static constexpr int kLoads = kStageWeights / kThreads;
  static_assert(kColumnThreads % kWarp == 0, "a warp shares its rows");
};

// Units are padded to whole stages of zeros, so that the loop over a stage needs no bounds.
template <class T>
P3_HD int padded(int units) {
  return (units + T::kDepth - 1) / T::kDepth * T::kDepth;
}

// Moments of a layer's units [unit][row]; without `var`, plain values.
struct Units {
  float *mean, *var;
};

template <class Weight>
struct LinearLayer {
  const Weight* weight;  // [outputs, row_stride], of which `inputs` columns count
  int inputs, outputs, row_stride;
  Input bias;              // [outputs] or null
  const float* start;      // [unit][row] in shared memory, instead of a bias; or null
  int first_stochastic;    // inputs before it have variance 0

  static P3_DEVICE LinearLayer of(const Network& network, int index) {
    const int inputs = network.widths[index];
    return {static_cast<const Weight*>(network.weights[index]), inputs, network.widths[index + 1], inputs,
            network.biases[index], nullptr, 0};
  }
};

template <class T>
struct Accumulators {
  float value[T::kThreadColumns][T::kThreadRows];

  P3_DEVICE void clear() {
    P3_UNROLL
    for (int c = 0; c < T::kThreadColumns; ++c) {
      P3_UNROLL
      for (int r = 0; r < T::kThreadRows; ++r) value[c][r] = 0.0f;
    }
  }
  P3_DEVICE void add(const float (&weights)[T::kThreadColumns], const float* rows) {
    const float4 low = reinterpret_cast<const float4*>(rows)[0], high = reinterpret_cast<const float4*>(rows)[1];
    const float x[T::kThreadRows] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    P3_UNROLL
    for (int c = 0; c < T::kThreadColumns; ++c) {
      P3_UNROLL
      for (int r = 0; r < T::kThreadRows; ++r) value[c][r] = fused(weights[c], x[r], value[c][r]);
    }
  }
  P3_DEVICE void store(int column, float shift, float* rows) const {
    const float(&v)[T::kThreadRows] = value[column];
    reinterpret_cast<float4*>(rows)[0] = float4{v[0] + shift, v[1] + shift, v[2] + shift, v[3] + shift};
    reinterpret_cast<float4*>(rows)[1] = float4{v[4] + shift, v[5] + shift, v[6] + shift, v[7] + shift};
  }
};

// A stage of weights on its way: element e of the stage is input e % kDepth of output e / kDepth.
template <class T, class Weight>
struct StageLoads {
  float value[T::kLoads];

  P3_DEVICE void load(const Thread& thread, const LinearLayer<Weight>& layer, int first_output, int first_input) {
    constexpr int kOutputStep = T::kThreads / T::kDepth;
    const int input = first_input + thread.index % T::kDepth;
    const int output = first_output + thread.index / T::kDepth;
    const int left = input < layer.inputs ? layer.outputs - output : 0;
    const Weight* const at = layer.weight + output * layer.row_stride + input;
    const int step = kOutputStep * layer.row_stride;  // 32 bits: sixteen 64-bit addresses would cost 32 registers
    P3_UNROLL
    for (int i = 0; i < T::kLoads; ++i) {
      value[i] = i * kOutputStep < left ? to_float(at[i * step]) : 0.0f;
    }
  }
  P3_DEVICE void store(const Thread& thread, float* stage) const {
    P3_UNROLL
    for (int i = 0; i < T::kLoads; ++i) {
      const int e = thread.index + i * T::kThreads;
      stage[(e % T::kDepth) * T::kStride + e / T::kDepth] = value[i];
    }
  }
};

// out = W in + bias, and the variance with W * W; needs two stages of shared memory. The caller waits for all threads
// before and after.
template <class T, bool kMoments, class Weight>
P3_DEVICE void linear(const Thread& thread, const LinearLayer<Weight>& layer, Units in, Units out, float* stages) {
  const int row = thread.index / T::kColumnThreads * T::kThreadRows;
  const int column = thread.index % T::kColumnThreads * T::kThreadColumns;
  const int depth = padded<T>(layer.inputs);
  for (int first = 0; first < layer.outputs; first += T::kColumns) {
    Accumulators<T> mean, var;
    mean.clear();
    if (kMoments) var.clear();
    StageLoads<T, Weight> coming;
    if (depth > 0) {
      coming.load(thread, layer, first, 0);
      coming.store(thread, stages);
    }
    thread.sync();
    int parity = 0;
    for (int k = 0; k < depth; k += T::kDepth, parity ^= 1) {
      const bool more = k + T::kDepth < depth;
      if (more) coming.load(thread, layer, first, k + T::kDepth);
      const bool stochastic = kMoments && k + T::kDepth > layer.first_stochastic;
      const float* stage = stages + parity * T::kStageFloats + column;
      const float* in_mean = in.mean + k * T::kRows + row;
      const float* in_var = kMoments ? in.var + k * T::kRows + row : nullptr;
      P3_UNROLL
      for (int j = 0; j < T::kDepth; ++j) {
        const float4 four = *reinterpret_cast<const float4*>(stage + j * T::kStride);
        const float weights[T::kThreadColumns] = {four.x, four.y, four.z, four.w};
        mean.add(weights, in_mean + j * T::kRows);
        if (kMoments && stochastic) {
          const float squares[T::kThreadColumns] = {four.x * four.x, four.y * four.y, four.z * four.z,
                                                    four.w * four.w};
          var.add(squares, in_var + j * T::kRows);
        }
      }
      if (more) coming.store(thread, stages + (parity ^ 1) * T::kStageFloats);
      thread.sync();
    }
    P3_UNROLL
    for (int c = 0; c < T::kThreadColumns; ++c) {
      const int output = first + column + c;
      if (output >= padded<T>(layer.outputs)) continue;
      const bool real = output < layer.outputs;
      const float shift = real && layer.bias.data != nullptr ? read(layer.bias, output) : 0.0f;
      const int at = output * T::kRows + row;
      mean.store(c, shift, out.mean + at);
      if (kMoments) var.store(c, 0.0f, out.var + at);
      if (real && layer.start != nullptr) {
        P3_UNROLL
        for (int r = 0; r < T::kThreadRows; ++r) out.mean[at + r] += layer.start[at + r];
      }
    }
  }
}

// Activates units in place, one element a thread at a time: with the accumulators gone, it has the registers it needs.
template <class T, bool kMoments>
P3_DEVICE void activate_units(const Thread& thread, ActivationOf activation, Units units, int count) {
  for (int at = thread.index; at < count * T::kRows; at += T::kThreads) {
    if (kMoments) {
      const Moments<float> out =
          activation_moments(activation.kind, activation.parameter, units.mean[at], units.var[at]);
      units.mean[at] = out.mean;
      units.var[at] = out.var;
    } else {
      units.mean[at] = activate(activation.kind, activation.parameter, units.mean[at]);
    }
  }
}

// Where the activations of a network live: layers alternate between two buffers, each as wide as its widest layer.
struct Buffers {
  int even, odd;  // units of the inputs of layers 0, 2, ... and of layers 1, 3, ...

  template <class T>
  static P3_HD Buffers of(const Network& network, int inputs) {
    Buffers b{padded<T>(inputs), 0};
    for (int layer = 1; layer <= network.layers; ++layer) {
      const int width = padded<T>(network.widths[layer]);
      if (layer % 2 == 0 && width > b.even) b.even = width;
      if (layer % 2 == 1 && width > b.odd) b.odd = width;
    }
    return b;
  }
};

// `layers` layers from the inputs in `in` on, of which the first is `first` and the first `activated` are followed by the
// activation; returns where the output is.
template <class T, bool kMoments, class Weight>
P3_DEVICE Units run_layers(const Thread& thread, const Network& network, const LinearLayer<Weight>& first, int layers,
                           int activated, Units in, Units other, float* stages) {
  LinearLayer<Weight> layer = first;
  for (int index = 0; index < layers; ++index) {
    linear<T, kMoments>(thread, layer, in, other, stages);
    thread.sync();
    if (index < activated) {
      activate_units<T, kMoments>(thread, network.activation, other, layer.outputs);
      thread.sync();
    }
    const Units swapped = in;
    in = other;
    other = swapped;
    if (index + 1 < layers) layer = LinearLayer<Weight>::of(network, index + 1);
  }
  return in;
}

}  // namespace cuda
}  // namespace p3
