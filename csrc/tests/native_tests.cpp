// Native tests, meant for sanitizers: every kernel of every instruction set this CPU runs, on buffers without slack.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../cpu/kernels.h"
#include "../cpu/parallel.h"

namespace {

int failures = 0;

void check(bool condition, const std::string& what) {
  if (condition) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

// Exactly n elements on the heap, so that a sanitizer sees any access beyond them.
template <class S>
struct Buffer {
  explicit Buffer(int64_t n, S value = std::numeric_limits<S>::quiet_NaN()) : data(new S[n]), size(n) {
    std::fill(data.get(), data.get() + n, value);
  }
  S& operator[](int64_t i) { return data[i]; }
  operator S*() { return data.get(); }
  std::unique_ptr<S[]> data;
  int64_t size;
};

double activation(p3::Activation kind, double parameter, double x) {
  if (x > 0) return x;
  return kind == p3::Activation::kElu ? parameter * std::expm1(x) : parameter * x;
}

// Mean and variance by Simpson's rule, split at the kink: independent of every formula in moments_math.h.
void quadrature(p3::Activation kind, double parameter, double mean, double var, double* out_mean, double* out_var) {
  const double std = std::sqrt(var);
  double m1 = 0, m2 = 0;
  const double centre = activation(kind, parameter, mean);
  const auto integrate = [&](double low, double high) {
    const int steps = 4000;
    if (high <= low) return;
    const double h = (high - low) / steps;
    for (int k = 0; k <= steps; ++k) {
      const double x = low + k * h, z = (x - mean) / std;
      const double weight = (k == 0 || k == steps ? 1 : k % 2 ? 4 : 2) * h / 3;
      const double density = std::exp(-0.5 * z * z) / (std * std::sqrt(2 * M_PI));
      const double y = activation(kind, parameter, x) - centre;
      m1 += weight * density * y;
      m2 += weight * density * y * y;
    }
  };
  const double low = mean - 12 * std, high = mean + 12 * std;
  integrate(low, std::min(high, std::max(low, 0.0)));
  integrate(std::max(low, std::min(high, 0.0)), high);
  *out_mean = centre + m1;
  *out_var = m2 - m1 * m1;
}

template <class S>
void test_moments(const p3::Kernels<S>& k, const std::string& name) {
  const double tolerance = sizeof(S) == 4 ? 1e-5 : 1e-9;
  for (p3::Activation kind : {p3::Activation::kElu, p3::Activation::kLeakyRelu}) {
    const S parameter = kind == p3::Activation::kElu ? S(1) : S(0.125);
    // Lengths around every register and pack width.
    for (int64_t n : {0, 1, 3, 7, 8, 15, 16, 17, 31, 32, 33, 101}) {
      Buffer<S> mean(n), var(n), shift(n), out_mean(n), out_var(n), d_out(n, S(1)), zero(n, S(0));
      Buffer<S> d_mean(n), d_var(n), again_mean(n), again_var(n);
      for (int64_t i = 0; i < n; ++i) {
        mean[i] = S(std::sin(1.7 * i) * 3);
        var[i] = S(0.01 + 2 * std::pow(std::cos(0.9 * i), 2));
        shift[i] = S(0.25 * std::cos(3.1 * i));
      }
      k.moments_forward(kind, parameter, mean, var, shift, out_mean, out_var, n);
      k.moments_backward(kind, parameter, mean, var, shift, d_out, zero, d_mean, d_var, again_mean, again_var, n);
      for (int64_t i = 0; i < n; ++i) {
        double exact_mean, exact_var, above, below, unused;
        const double m = double(S(mean[i] + shift[i])), h = 1e-4;
        quadrature(kind, parameter, m, var[i], &exact_mean, &exact_var);
        check(std::abs(out_mean[i] - exact_mean) < tolerance, name + " moments mean");
        check(std::abs(out_var[i] - exact_var) < tolerance * exact_var, name + " moments var");
        // To rounding: with fused multiply-adds the compiler fuses other products there than in the forward pass.
        const S rounding = 8 * std::numeric_limits<S>::epsilon();
        check(std::abs(out_mean[i] - again_mean[i]) <= rounding * (std::abs(out_mean[i]) + std::sqrt(var[i])) &&
                  std::abs(out_var[i] - again_var[i]) <= rounding * out_var[i],
              name + " backward repeats the forward");
        quadrature(kind, parameter, m + h, var[i], &above, &unused);
        quadrature(kind, parameter, m - h, var[i], &below, &unused);
        check(std::abs(d_mean[i] - (above - below) / (2 * h)) < 1e-5, name + " moments gradient");
      }
    }
  }
}

template <class S>
void test_activation(const p3::Kernels<S>& k, const std::string& name) {
  const int64_t n = 53;
  Buffer<S> x(n), shift(n, S(0.5)), out(n), d_out(n, S(2)), d_x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = S(i - 26) / 4;
  k.activation_forward(p3::Activation::kElu, S(1), x, shift, out, n);
  k.activation_backward(p3::Activation::kElu, S(1), out, d_out, d_x, n);
  for (int64_t i = 0; i < n; ++i) {
    const double v = double(x[i]) + 0.5;
    check(std::abs(out[i] - activation(p3::Activation::kElu, 1, v)) < 1e-6, name + " activation");
    check(std::abs(d_x[i] - 2 * (v > 0 ? 1 : std::exp(v))) < 1e-6, name + " activation gradient");
  }
}

template <class S>
void test_mixture(const p3::Kernels<S>& k, const std::string& name) {
  const int64_t samples = 5, actions = 29;
  Buffer<S> action(actions, S(0.3)), means(samples * actions), std(actions, S(0.7));
  for (int64_t i = 0; i < samples * actions; ++i) means[i] = S(std::sin(double(i)));
  double sum = 0;
  for (int64_t i = 0; i < samples; ++i) {
    double log_prob = 0;
    for (int64_t a = 0; a < actions; ++a) {
      const double z = (double(action[a]) - means[i * actions + a]) / std[a];
      log_prob += -0.5 * z * z - std::log(double(std[a])) - 0.5 * std::log(2 * M_PI);
    }
    sum += std::exp(log_prob);
  }
  Buffer<S> inverse(actions);
  const S constant = k.mixture_constant(std, inverse, actions);
  const S log_sum = k.mixture_forward(action, means, actions, inverse, constant, samples, actions);
  check(std::abs(log_sum - std::log(sum)) < 1e-4, name + " mixture");
  Buffer<S> d_means(samples * actions), d_action(actions, S(0)), d_std(actions, S(0));
  k.mixture_backward(action, means, actions, inverse, constant, samples, actions, log_sum, S(1), d_means, actions,
                     d_action, d_std);
  for (int64_t a = 0; a < actions; ++a) {
    double total = 0;
    for (int64_t i = 0; i < samples; ++i) total += d_means[i * actions + a];
    check(std::abs(total + d_action[a]) < 1e-4 && total != 0, name + " mixture gradients cancel under translation");
  }
  std::fill(action.data.get(), action.data.get() + actions, std::numeric_limits<S>::infinity());
  const S none = k.mixture_forward(action, means, actions, inverse, constant, samples, actions);
  check(none == -std::numeric_limits<S>::infinity(), name + " no likelihood is -inf");
  k.mixture_backward(action, means, actions, inverse, constant, samples, actions, none, S(1), d_means, actions, d_action,
                     d_std);
  check(d_means[0] == S(0) && d_means[samples * actions - 1] == S(0), name + " no likelihood has gradient 0");
}

// Linearised units and the action's rows: the gradients against differences of the forward values in float64 arithmetic
// of the plain set, at every register width, on buffers without slack.
template <class S>
void test_units(const p3::Kernels<S>& k, const std::string& name) {
  const auto& exact = p3::plain::kernels_double;
  const double tolerance = sizeof(S) == 4 ? 2e-4 : 1e-6, step = 1e-5;
  const int64_t tangents = 2;
  for (int64_t n : {1, 7, 17, 33}) {
    for (bool whole : {false, true}) {
      const int64_t size = (1 + tangents) * n;
      Buffer<S> pre(size), shift(n, S(0.25)), pre_rest(n), out(size), rest(n), gain(n), residual(n), curvature(n);
      Buffer<S> ones(size, S(1)), d_pre(size), d_pre_rest(n);
      Buffer<double> pre64(size), shift64(n, 0.25), rest64(n);
      for (int64_t i = 0; i < size; ++i) pre64[i] = pre[i] = S(std::sin(1.3 * i + 0.4));
      for (int64_t i = 0; i < n; ++i) rest64[i] = pre_rest[i] = S((whole ? 3 : 0.1) + std::pow(std::cos(0.7 * i), 2));
      const auto kind = p3::Activation::kElu;
      const double p = 1.25;  // a kink, so that every term counts
      k.units_forward(kind, S(p), pre, n, tangents, shift, pre_rest, whole, out, rest, gain, residual, curvature, n);
      k.units_backward(kind, S(p), pre, n, tangents, shift, pre_rest, whole, ones, ones, ones, ones, ones, d_pre,
                       d_pre_rest, n);
      // The sum of everything that comes out of unit i.
      const auto sum = [&](int64_t i) {
        Buffer<double> o(size), r(n), g(n), e(n), h(n);
        exact.units_forward(kind, p, pre64, n, tangents, shift64, rest64, whole, o, r, g, e, h, n);
        return o[i] + o[n + i] + o[2 * n + i] + r[i] + g[i] + e[i] + h[i];
      };
      for (int64_t i = 0; i < n; ++i) {
        const S all = out[i] + out[n + i] + out[2 * n + i] + rest[i] + gain[i] + residual[i] + curvature[i];
        check(std::abs(all - sum(i)) < tolerance, name + " units");
        check(residual[i] >= S(0) && rest[i] >= S(0), name + " units' variances are not negative");
        const auto slope = [&](double& x) {
          const double at = x;
          x = at + step;
          const double above = sum(i);
          x = at - step;
          const double below = sum(i);
          x = at;
          return (above - below) / (2 * step);
        };
        for (int64_t t = 0; t <= tangents; ++t) {
          check(std::abs(d_pre[t * n + i] - slope(pre64[t * n + i])) < tolerance, name + " units gradient");
        }
        check(std::abs(d_pre_rest[i] - slope(rest64[i])) < tolerance, name + " units gradient of the variance");
      }
    }
    const int64_t actions = 3;
    Buffer<S> rows(actions * n, S(0.5)), d_scaled(actions * n, S(2)), weighted(actions * n, S(3)), gain(n, S(0.25));
    Buffer<S> residual(n, S(0.125)), d_gain(n), d_residual(n);
    k.rows_backward(rows, d_scaled, weighted, gain, residual, d_gain, d_residual, actions, n);
    for (int64_t i = 0; i < n; ++i) {
      check(d_gain[i] == S(3) && d_residual[i] == S(2.25), name + " rows: gain and residual");
      check(d_scaled[2 * n + i] == S(0.875) && weighted[2 * n + i] == S(0.125), name + " rows: in place");
    }
  }
}

// A matrix of three outputs and four inputs with two weights, images in both layouts, against a plain loop.
template <class S>
void test_taps(const p3::Kernels<S>& k, const std::string& name) {
  const int64_t inputs = 4, outputs = 3, entries = 5;
  const int32_t output[] = {0, 0, 1, 1, 2}, input[] = {0, 3, 1, 2, 3}, weight_of[] = {0, 1, 1, 0, 0};
  const int32_t by_output[] = {0, 2, 4, 5}, by_weight[] = {0, 3, 5};
  const int32_t weight_output[] = {0, 1, 2, 0, 1}, weight_input[] = {0, 2, 3, 3, 1};
  const double tolerance = sizeof(S) == 4 ? 1e-4 : 1e-12;
  const auto kind = p3::Activation::kElu;
  for (int64_t images : {1, 15, 16, 33, 70}) {
    for (bool by_cell : {false, true}) {
      Buffer<S> x(images * inputs), out(images * outputs), weight(2), bias(outputs), d_weight(2);
      for (int64_t i = 0; i < images * inputs; ++i) x[i] = S(std::sin(0.9 * i));
      for (int64_t i = 0; i < outputs; ++i) bias[i] = S(0.1 * i - 0.2);
      weight[0] = S(0.7), weight[1] = S(-1.3);
      const auto at = [&](int64_t image, int64_t cell, int64_t cells) {
        return by_cell ? cell * images + image : image * cells + cell;
      };
      const p3::Images<const S> read{x, by_cell ? 1 : inputs, by_cell ? images : 1};
      const p3::Images<S> made{out, by_cell ? 1 : outputs, by_cell ? images : 1};
      k.taps_forward({by_output, input, weight_of}, weight, bias, &kind, S(1), read, inputs, made, outputs, 0, images);
      double expected_d[2] = {0, 0};
      for (int64_t r = 0; r < images; ++r) {
        double sum[3] = {bias[0], bias[1], bias[2]};
        for (int64_t e = 0; e < entries; ++e) {
          sum[output[e]] += double(weight[weight_of[e]]) * x[at(r, input[e], inputs)];
        }
        for (int64_t o = 0; o < outputs; ++o) {
          check(std::abs(out[at(r, o, outputs)] - activation(kind, 1, sum[o])) < tolerance, name + " taps");
        }
        for (int64_t e = 0; e < entries; ++e) {
          expected_d[weight_of[e]] += double(out[at(r, output[e], outputs)]) * x[at(r, input[e], inputs)];
        }
      }
      const p3::Images<const S> gradient{out, made.image_stride, made.cell_stride};
      k.taps_weights({by_weight, weight_output, weight_input}, gradient, outputs, read, inputs, images, d_weight, 0, 2);
      for (int t = 0; t < 2; ++t) check(std::abs(d_weight[t] - expected_d[t]) < tolerance, name + " taps' weights");
    }
  }
}

// Every layout, with a bias, added to what is there, or alone; sizes around the tiles and blocks of isa_products.cpp.
template <class S>
void test_product(const p3::Kernels<S>& k, const std::string& name) {
  const struct {
    int64_t rows, columns, inner;
  } sizes[] = {{1, 1, 1}, {5, 3, 0}, {12, 32, 7}, {13, 33, 257}, {49, 29, 61}, {3, 530, 5}, {0, 4, 4}, {4, 0, 4}};
  for (const auto& [rows, columns, inner] : sizes) {
    for (int layout = 0; layout < 4; ++layout) {
      for (int start = 0; start < 3; ++start) {
        Buffer<S> a(rows * inner), b(inner * columns), bias(columns), c(rows * columns);
        for (int64_t i = 0; i < a.size; ++i) a[i] = S(std::sin(0.7 * double(i)));
        for (int64_t i = 0; i < b.size; ++i) b[i] = S(std::cos(1.1 * double(i)));
        for (int64_t i = 0; i < bias.size; ++i) bias[i] = S(0.01 * double(i) - 0.2);
        if (start == 2) std::fill(c.data.get(), c.data.get() + c.size, S(0.5));
        const p3::Matrix<const S> left{a, layout & 1 ? 1 : inner, layout & 1 ? rows : 1};
        const p3::Matrix<const S> right{b, layout & 2 ? 1 : columns, layout & 2 ? inner : 1};
        k.product(left, right, start == 1 ? static_cast<S*>(bias) : nullptr, start == 2, c, columns, rows, columns,
                  inner);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            double expected = start == 1 ? double(bias[j]) : start == 2 ? 0.5 : 0.0, scale = 1;
            for (int64_t n = 0; n < inner; ++n) {
              const double term = double(left.data[i * left.row_stride + n * left.column_stride]) *
                                  double(right.data[n * right.row_stride + j * right.column_stride]);
              expected += term;
              scale += std::abs(term);
            }
            const double rounding = scale * double(inner + 1) * double(std::numeric_limits<S>::epsilon());
            check(std::abs(c[i * columns + j] - expected) <= rounding, name + " product");
          }
        }
      }
    }
  }
}

template <class S>
void test_normal(const p3::Kernels<S>& k, const p3::Kernels<S>& plain, const std::string& name) {
  for (int64_t n : {0, 1, 5, 110, 128, 129, 1000}) {
    Buffer<S> out(n), expected(n);
    k.normal(12345678901234ull, 0, 3, 7ull << 33, out, n);
    plain.normal(12345678901234ull, 0, 3, 7ull << 33, expected, n);
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; ++i) {
      check(std::abs(out[i] - expected[i]) < 2e-6, name + " normal is the same on every instruction set");
      mean += out[i] / n;
      square += double(out[i]) * out[i] / n;
    }
    if (n == 1000) check(std::abs(mean) < 0.16 && std::abs(square - 1) < 0.23, name + " normal moments (5 sigma)");
  }
}

void test_parallel_for() {
  for (int threads : {1, 2, 5}) {
    for (int64_t size : {0, 1, 7, 1000}) {
      std::vector<std::atomic<int>> seen(size);
      p3::parallel_for(size, 3, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[i];
      });
      for (auto& count : seen) check(count == 1, "parallel_for visits every index once");
    }
  }
}

template <class S>
void test_isa(const p3::Kernels<S>& k, const p3::Kernels<S>& plain, const std::string& name) {
  test_moments(k, name);
  test_activation(k, name);
  test_mixture(k, name);
  test_units(k, name);
  test_taps(k, name);
  test_product(k, name);
  test_normal(k, plain, name);
}

void test_isa_both(const p3::Kernels<float>& f32, const p3::Kernels<double>& f64, const std::string& name) {
  test_isa(f32, p3::plain::kernels_float, name + " float32");
  test_isa(f64, p3::plain::kernels_double, name + " float64");
}

}  // namespace

int main() {
  test_parallel_for();
  test_isa_both(p3::plain::kernels_float, p3::plain::kernels_double, "plain");
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    test_isa_both(p3::avx2::kernels_float, p3::avx2::kernels_double, "avx2");
  }
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    test_isa_both(p3::avx512::kernels_float, p3::avx512::kernels_double, "avx512");
  }
#endif
  std::printf("dispatch chose %s; %d failures\n", p3::isa_name(), failures);
  return failures == 0 ? 0 : 1;
}
