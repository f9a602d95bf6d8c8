// The kernels over whole arrays, in pieces on torch's threads. Tensors arrive as addresses, for Python has no pointers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "parallel.h"

namespace p3::threaded {

using Address = uintptr_t;
constexpr int64_t kGrain = 4096;  // elements below which another thread costs more than it saves
constexpr int64_t kProductGrain = 1 << 20;  // multiply-adds below which it does

template <class S>
S* at(Address address) {
  return reinterpret_cast<S*>(address);
}
template <class S>
S* at(Address address, int64_t offset) {
  return address ? reinterpret_cast<S*>(address) + offset : nullptr;
}

// Pieces of a [rows, columns] array in whole rows; without a shift the rows do not matter and columns may be anything.
template <class Work>
void over_rows(int64_t rows, int64_t columns, int threads, Work work) {
  parallel_for(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(columns, 1)), threads, work);
}

// `shift` [shift_rows, columns] is added to row r % shift_rows.
template <class S>
void moments_forward(int code, double parameter, Address mean, Address var, Address shift, Address out_mean,
                     Address out_var, int64_t rows, int64_t columns, int threads) {
  const auto& k = kernels<S>();
  if (!shift) {
    parallel_for(rows * columns, kGrain, threads, [&](int64_t begin, int64_t end) {
      k.moments_forward(Activation(code), S(parameter), at<S>(mean, begin), at<S>(var, begin), nullptr,
                        at<S>(out_mean, begin), at<S>(out_var, begin), end - begin);
    });
    return;
  }
  over_rows(rows, columns, threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t o = r * columns;
      k.moments_forward(Activation(code), S(parameter), at<S>(mean, o), at<S>(var, o), at<S>(shift),
                        at<S>(out_mean, o), at<S>(out_var, o), columns);
    }
  });
}

template <class S>
void moments_backward(int code, double parameter, Address mean, Address var, Address shift, Address d_out_mean,
                      Address d_out_var, Address d_mean, Address d_var, Address out_mean, Address out_var,
                      int64_t rows, int64_t columns, int threads) {
  const auto& k = kernels<S>();
  const auto piece = [&](int64_t o, int64_t n) {
    k.moments_backward(Activation(code), S(parameter), at<S>(mean, o), at<S>(var, o), at<S>(shift),
                       at<S>(d_out_mean, o), at<S>(d_out_var, o), at<S>(d_mean, o), at<S>(d_var, o),
                       at<S>(out_mean, o), at<S>(out_var, o), n);
  };
  if (!shift) {
    parallel_for(rows * columns, kGrain, threads, [&](int64_t begin, int64_t end) { piece(begin, end - begin); });
    return;
  }
  over_rows(rows, columns, threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) piece(r * columns, columns);
  });
}

// Calls body(kernels, row) for every row.
template <class S, class Body>
void each_row(int64_t rows, int64_t columns, int threads, const Body& body) {
  const auto& k = kernels<S>();
  over_rows(rows, columns, threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) body(k, r);
  });
}

template <class S>
void activation_forward(int code, double parameter, Address x, Address shift, int64_t shift_rows, Address out,
                        int64_t rows, int64_t columns, int threads) {
  each_row<S>(rows, columns, threads, [&](const auto& k, int64_t r) {
    k.activation_forward(Activation(code), S(parameter), at<S>(x, r * columns),
                         at<S>(shift, (r % shift_rows) * columns), at<S>(out, r * columns), columns);
  });
}

template <class S>
void activation_backward(int code, double parameter, Address out, Address d_out, Address d_x, int64_t n,
                         int threads) {
  const auto& k = kernels<S>();
  parallel_for(n, kGrain, threads, [&](int64_t begin, int64_t end) {
    k.activation_backward(Activation(code), S(parameter), at<S>(out, begin), at<S>(d_out, begin),
                          at<S>(d_x, begin), end - begin);
  });
}

// What a row needs of its std: made once for a shared std [A] (stride 0), row by row for [B, A].
template <class S>
class RowStd {
 public:
  RowStd(const S* std, int64_t stride, int64_t actions)
      : std_(std), stride_(stride), actions_(actions), inverse_(static_cast<size_t>(actions)) {
    if (stride_ == 0) constant_ = kernels<S>().mixture_constant(std_, inverse_.data(), actions_);
  }
  void move_to(int64_t row) {
    if (stride_ != 0) {
      constant_ = kernels<S>().mixture_constant(std_ + row * stride_, inverse_.data(), actions_);
    }
  }
  const S* inverse() const { return inverse_.data(); }
  S constant() const { return constant_; }

 private:
  const S* std_;
  int64_t stride_, actions_;
  std::vector<S> inverse_;
  S constant_ = 0;
};

// Calls body(kernels, b, std of row b) for every row of a mixture.
template <class S, class Body>
void over_mixtures(Address std, int64_t std_stride, int64_t samples, int64_t rows, int64_t actions, int threads,
                   const Body& body) {
  const auto& k = kernels<S>();
  over_rows(rows, samples * actions, threads, [&](int64_t begin, int64_t end) {
    RowStd<S> row_std(at<S>(std), std_stride, actions);
    for (int64_t b = begin; b < end; ++b) {
      row_std.move_to(b);
      body(k, b, row_std);
    }
  });
}

// action [B, A], means [N, B, A], std [A] or [B, A] (std_stride 0 or A) -> log_sum [B]
template <class S>
void mixture_forward(Address action, Address means, Address std, int64_t std_stride, Address log_sum, int64_t samples,
                     int64_t rows, int64_t actions, int threads) {
  over_mixtures<S>(std, std_stride, samples, rows, actions, threads, [&](const auto& k, int64_t b, const auto& row) {
    at<S>(log_sum)[b] = k.mixture_forward(at<S>(action, b * actions), at<S>(means, b * actions), rows * actions,
                                          row.inverse(), row.constant(), samples, actions);
  });
}

// d_means [N, B, A] is written, d_action and d_std [B, A] are added to.
template <class S>
void mixture_backward(Address action, Address means, Address std, int64_t std_stride, Address log_sum,
                      Address d_log_sum, Address d_means, Address d_action, Address d_std, int64_t samples,
                      int64_t rows, int64_t actions, int threads) {
  over_mixtures<S>(std, std_stride, samples, rows, actions, threads, [&](const auto& k, int64_t b, const auto& row) {
    k.mixture_backward(at<S>(action, b * actions), at<S>(means, b * actions), rows * actions, row.inverse(),
                       row.constant(), samples, actions, at<S>(log_sum)[b], at<S>(d_log_sum)[b],
                       at<S>(d_means, b * actions), rows * actions, at<S>(d_action, b * actions),
                       at<S>(d_std, b * actions));
  });
}

// d [samples, rows, d_columns], of which the first `columns` count, noise [samples, rows, columns]; d_mean and d_std
// [rows, columns] are added to.
template <class S>
void latent_backward(Address d, int64_t d_columns, Address noise, Address d_mean, Address d_std, int64_t samples,
                     int64_t rows, int64_t columns, int threads) {
  each_row<S>(rows, samples * columns, threads, [&](const auto& k, int64_t b) {
    k.latent_backward(at<S>(d, b * d_columns), rows * d_columns, at<S>(noise, b * columns), rows * columns, samples,
                      at<S>(d_mean, b * columns), at<S>(d_std, b * columns), columns);
  });
}

// pre and out [1 + tangents, rows, columns], shift [columns], the others [rows, columns]; see cpu/kernels.h.
template <class S>
void units_forward(int code, double parameter, Address pre, int64_t tangents, Address shift, Address pre_rest,
                   bool whole, Address out, Address rest, Address gain, Address residual, Address curvature,
                   int64_t rows, int64_t columns, int threads) {
  each_row<S>(rows, columns, threads, [&](const auto& k, int64_t r) {
    const int64_t o = r * columns;
    k.units_forward(Activation(code), S(parameter), at<S>(pre, o), rows * columns, tangents,
                    at<S>(shift), at<S>(pre_rest, o), whole, at<S>(out, o), at<S>(rest, o), at<S>(gain, o),
                    at<S>(residual, o), at<S>(curvature, o), columns);
  });
}

template <class S>
void units_backward(int code, double parameter, Address pre, int64_t tangents, Address shift, Address pre_rest,
                    bool whole, Address d_out, Address d_rest, Address d_gain, Address d_residual,
                    Address d_curvature, Address d_pre, Address d_pre_rest, int64_t rows, int64_t columns,
                    int threads) {
  each_row<S>(rows, columns, threads, [&](const auto& k, int64_t r) {
    const int64_t o = r * columns;
    k.units_backward(Activation(code), S(parameter), at<S>(pre, o), rows * columns, tangents,
                     at<S>(shift), at<S>(pre_rest, o), whole, at<S>(d_out, o), at<S>(d_rest, o), at<S>(d_gain, o),
                     at<S>(d_residual, o), at<S>(d_curvature, o), at<S>(d_pre, o), at<S>(d_pre_rest, o), columns);
  });
}

// rows, d_scaled and weighted [rows, actions, columns], the others [rows, columns].
template <class S>
void rows_backward(Address rows_of_actions, Address d_scaled, Address weighted, Address gain, Address residual,
                   Address d_gain, Address d_residual, int64_t actions, int64_t rows, int64_t columns, int threads) {
  each_row<S>(rows, actions * columns, threads, [&](const auto& k, int64_t r) {
    const int64_t o = r * columns;
    k.rows_backward(at<S>(rows_of_actions, actions * o), at<S>(d_scaled, actions * o), at<S>(weighted, actions * o),
                    at<S>(gain, o), at<S>(residual, o), at<S>(d_gain, o), at<S>(d_residual, o), actions, columns);
  });
}

// x [images, inputs] and out [images, outputs], in any layout; `code` is an activation's, or -1 for none.
template <class S>
void taps_forward(Address start, Address source, Address tap, Address weight, Address bias, int code, double parameter,
                  Address x, int64_t x_image, int64_t x_cell, int64_t inputs, Address out, int64_t out_image,
                  int64_t out_cell, int64_t outputs, int64_t images, int threads) {
  const Taps taps{at<int32_t>(start), at<int32_t>(source), at<int32_t>(tap)};
  const Activation kind = Activation(code);
  over_rows(images, inputs + outputs, threads, [&](int64_t begin, int64_t end) {
    kernels<S>().taps_forward(taps, at<S>(weight), at<S>(bias), code < 0 ? nullptr : &kind, S(parameter),
                              {at<S>(x), x_image, x_cell}, inputs, {at<S>(out), out_image, out_cell}, outputs, begin,
                              end);
  });
}

// d_weight [weights]; each is summed in the same order whatever the number of threads.
template <class S>
void taps_weights(Address start, Address output, Address input, Address d_out, int64_t d_image, int64_t d_cell,
                  int64_t outputs, Address x, int64_t x_image, int64_t x_cell, int64_t inputs, int64_t images,
                  Address d_weight, int64_t weights, int threads) {
  const Taps taps{at<int32_t>(start), at<int32_t>(output), at<int32_t>(input)};
  parallel_for(weights, 1, threads, [&](int64_t begin, int64_t end) {
    kernels<S>().taps_weights(taps, {at<S>(d_out), d_image, d_cell}, outputs, {at<S>(x), x_image, x_cell}, inputs,
                              images, at<S>(d_weight), begin, end);
  });
}

// c [rows, columns] = a [rows, inner] b [inner, columns]; see cpu/kernels.h. Threads take rows of c.
template <class S>
void product(Address a, int64_t a_row, int64_t a_column, Address b, int64_t b_row, int64_t b_column, Address bias,
             bool add, Address c, int64_t c_row, int64_t rows, int64_t columns, int64_t inner, int threads) {
  constexpr int64_t kTogether = 48;  // whole tiles of every instruction set
  const int64_t grain = std::max<int64_t>(1, kProductGrain / std::max<int64_t>(columns * inner * kTogether, 1));
  parallel_for((rows + kTogether - 1) / kTogether, grain, threads, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kTogether, count = std::min(rows, end * kTogether) - first;
    kernels<S>().product({at<S>(a, first * a_row), a_row, a_column}, {at<S>(b), b_row, b_column}, at<S>(bias), add,
                         at<S>(c, first * c_row), c_row, count, columns, inner);
  });
}

// out [samples, rows, columns] for samples first_sample.. and rows first_row.. of the whole.
template <class S>
void normal(uint64_t seed, uint32_t stream, int64_t first_sample, int64_t samples, int64_t first_row, int64_t rows,
            int64_t columns, Address out, int threads) {
  each_row<S>(samples * rows, columns, threads, [&](const auto& k, int64_t r) {
    k.normal(seed, stream, static_cast<uint32_t>(first_sample + r / rows),
             static_cast<uint64_t>(first_row + r % rows), at<S>(out, r * columns), columns);
  });
}

// The same for rows with numbers of their own, numbers [rows].
template <class S>
void normal_of_rows(uint64_t seed, uint32_t stream, int64_t first_sample, int64_t samples, Address numbers,
                    int64_t rows, int64_t columns, Address out, int threads) {
  each_row<S>(samples * rows, columns, threads, [&](const auto& k, int64_t r) {
    k.normal(seed, stream, static_cast<uint32_t>(first_sample + r / rows),
             static_cast<uint64_t>(at<int64_t>(numbers)[r % rows]), at<S>(out, r * columns), columns);
  });
}

}  // namespace p3::threaded
