// The CPU kernels' flat interface: pointers and sizes, no torch. One table per instruction set (see dispatch.cpp).
#pragma once

#include <cstdint>

#include "../activation.h"

namespace p3 {

// Entries of a matrix in groups, group g at start[g] to start[g + 1]: the two other numbers of each entry. In
// `taps_forward` a group is an output, and an entry its input and its weight; in `taps_weights` a group is a weight, and
// an entry its output and its input.
struct Taps {
  const int32_t *start, *first, *second;
};

// Many images: cell c of image k is at k * image_stride + c * cell_stride.
template <class S>
struct Images {
  S* data;
  int64_t image_stride, cell_stride;
};

// A matrix in any layout: element (i, j) is at i * row_stride + j * column_stride.
template <class S>
struct Matrix {
  S* data;
  int64_t row_stride, column_stride;
};

// Every kernel works on one contiguous piece; threads are given pieces by threaded.h.
template <class S>
struct Kernels {
  // [n] -> [n]; `shift` [n] or null is added to the mean first (a bias, saved from a pass of its own).
  void (*moments_forward)(Activation kind, S parameter, const S* mean, const S* var, const S* shift, S* out_mean,
                          S* out_var, int64_t n);
  // Gradients [n]; out_mean and out_var [n], or null, are the forward values recomputed on the way.
  // d_mean and d_var may be d_out_mean and d_out_var.
  void (*moments_backward)(Activation kind, S parameter, const S* mean, const S* var, const S* shift,
                           const S* d_out_mean, const S* d_out_var, S* d_mean, S* d_var, S* out_mean, S* out_var,
                           int64_t n);
  // out [n] = activation(x + shift); may be in place.
  void (*activation_forward)(Activation kind, S parameter, const S* x, const S* shift, S* out, int64_t n);
  // d_x [n] = d_out * activation'(x), from the activation's output; may be in place.
  void (*activation_backward)(Activation kind, S parameter, const S* out, const S* d_out, S* d_x, int64_t n);
  // inverse_std [A] = 1 / std, and the constant of the Gaussian's logarithm: once for all rows that share a std.
  S (*mixture_constant)(const S* std, S* inverse_std, int64_t num_actions);
  // log sum_i N(action | means_i, std^2) of one row; means of sample i start at means + i * sample_stride.
  S (*mixture_forward)(const S* action, const S* means, int64_t sample_stride, const S* inverse_std, S constant,
                       int64_t num_samples, int64_t num_actions);
  // Gradients of one row, given its log-sum (over all samples, these or more) and the incoming gradient.
  // d_means may be means; d_action and d_std [A] are added to.
  void (*mixture_backward)(const S* action, const S* means, int64_t sample_stride, const S* inverse_std, S constant,
                           int64_t num_samples, int64_t num_actions, S log_sum, S d_log_sum, S* d_means,
                           int64_t d_sample_stride, S* d_action, S* d_std);
  // d_mean [n] += sum_i d_i and d_std [n] += sum_i d_i noise_i over the samples of one row; the d_i are d_stride apart.
  void (*latent_backward)(const S* d, int64_t d_stride, const S* noise, int64_t noise_stride, int64_t num_samples,
                          S* d_mean, S* d_std, int64_t n);
  // One row of a layer in `mlp_covariance`. pre: mean [n], then num_tangents tangents [n], `stride` apart; `shift` [n]
  // is added to the mean. pre_rest [n] is the variance beside that of the tangents or, with `whole`, all of it. out has
  // the layout of pre; where `rest` is null it gets the mean alone. curvature [n] may be null.
  void (*units_forward)(Activation kind, S parameter, const S* pre, int64_t stride, int64_t num_tangents,
                        const S* shift, const S* pre_rest, bool whole, S* out, S* rest, S* gain, S* residual,
                        S* curvature, int64_t n);
  // Gradients of pre and pre_rest; d_rest and d_curvature are null where units_forward's rest and curvature were.
  void (*units_backward)(Activation kind, S parameter, const S* pre, int64_t stride, int64_t num_tangents,
                         const S* shift, const S* pre_rest, bool whole, const S* d_out, const S* d_rest,
                         const S* d_gain, const S* d_residual, const S* d_curvature, S* d_pre, S* d_pre_rest,
                         int64_t n);
  // One row of the batch, of whose action the `rows` [A, n] are the derivatives by the units. d_scaled [A, n], the
  // gradient of rows * gain, becomes that of rows; weighted [A, n], the covariance's gradient times rows, becomes
  // rows * gain; d_gain and d_residual [n] are written.
  void (*rows_backward)(const S* rows, S* d_scaled, S* weighted, const S* gain, const S* residual, S* d_gain,
                        S* d_residual, int64_t num_actions, int64_t n);
  // Images [begin, end) times a matrix of shared weights, plus bias [outputs] or null, through the activation or none.
  void (*taps_forward)(Taps taps, const S* weight, const S* bias, const Activation* kind, S parameter,
                       Images<const S> x, int64_t inputs, Images<S> out, int64_t outputs, int64_t begin, int64_t end);
  // The gradients of weights [begin, end) of that matrix, over all images.
  void (*taps_weights)(Taps taps, Images<const S> d_out, int64_t outputs, Images<const S> x, int64_t inputs,
                       int64_t images, S* d_weight, int64_t begin, int64_t end);
  // c [rows, columns] = a [rows, inner] b [inner, columns], plus bias [columns] or null, or with `add` what c has. Its rows
  // are contiguous and c_stride apart, and it overlaps neither a nor b.
  void (*product)(Matrix<const S> a, Matrix<const S> b, const S* bias, bool add, S* c, int64_t c_stride, int64_t rows,
                  int64_t columns, int64_t inner);

  // [n] standard normals of one (seed, stream, sample, row), row below 2^63.
  void (*normal)(uint64_t seed, uint32_t stream, uint32_t sample, uint64_t row, S* out, int64_t n);
};

#define P3_DECLARE_ISA(isa)            \
  namespace isa {                      \
  extern const Kernels<float> kernels_float;   \
  extern const Kernels<double> kernels_double; \
  }
P3_DECLARE_ISA(plain)
P3_DECLARE_ISA(avx2)
P3_DECLARE_ISA(avx512)
#undef P3_DECLARE_ISA

// The best set this CPU runs, or the one named by P3_CPU_ISA (plain, avx2, avx512); see dispatch.cpp.
const char* isa_name();

// Whether `product` is to take the place of torch's products here: P3_CPU_PRODUCTS (p3, torch), else on processors with
// AVX-512 that are not Intel's. MKL, torch's library, runs AVX2 on those.
bool own_products();
template <class S>
const Kernels<S>& kernels();

}  // namespace p3
