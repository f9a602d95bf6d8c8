#include "bindings.h"

#include <pybind11/stl.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels.h"

namespace py = pybind11;

namespace p3 {
namespace cuda {
namespace {

using Address = uintptr_t;
using Tensor = std::pair<Address, bool>;
using Where = std::pair<int, Address>;

Input in(const Tensor& tensor) { return {reinterpret_cast<const void*>(tensor.first), tensor.second}; }
Output out(const Tensor& tensor) { return {reinterpret_cast<void*>(tensor.first), tensor.second}; }
float* floats(Address address) { return reinterpret_cast<float*>(address); }
const int64_t* integers(Address address) { return reinterpret_cast<const int64_t*>(address); }
Target target(const Where& where) { return {where.first, reinterpret_cast<void*>(where.second)}; }
ActivationOf activation(int kind, double parameter) {
  return {static_cast<Activation>(kind), static_cast<float>(parameter)};
}

// weights [O, I], all of one dtype, and biases [O] or address 0.
Network network(const std::vector<Tensor>& weights, const std::vector<Tensor>& biases, const std::vector<int>& widths,
                int kind, double parameter, bool activate_last) {
  if (weights.empty() || weights.size() > kMostLayers || biases.size() != weights.size() ||
      widths.size() != weights.size() + 1) {
    throw std::invalid_argument("a network has 1 to 8 layers");
  }
  Network n{};
  n.layers = static_cast<int>(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    n.weights[i] = reinterpret_cast<const void*>(weights[i].first);
    n.biases[i] = in(biases[i]);
  }
  for (size_t i = 0; i < widths.size(); ++i) n.widths[i] = widths[i];
  n.bf16 = weights[0].second;
  n.activation = activation(kind, parameter);
  n.activate_last = activate_last;
  return n;
}

// Only the widths: what tiles and shared memory depend on.
Network shape_of(const std::vector<int>& widths) {
  const std::vector<Tensor> none(widths.size() - 1);
  return network(none, none, widths, 0, 0, false);
}

Mixture mixture(const Tensor& action, const Tensor& means, const Tensor& std, int64_t std_stride, int64_t samples,
                int64_t rows, int64_t actions, double offset) {
  return {in(action), in(means), in(std), std_stride, samples, rows, actions, static_cast<float>(offset)};
}

Head head(const std::vector<Tensor>& t, int64_t std_stride, int64_t rows, int64_t actions) {
  return {in(t.at(0)), in(t.at(1)), in(t.at(2)), in(t.at(3)), in(t.at(4)), in(t.at(5)), std_stride, rows, actions};
}

Seed seed(uint64_t value, Address device_seed) { return {value, integers(device_seed)}; }

}  // namespace

void define(py::module_& m) {
  const auto guard = py::call_guard<py::gil_scoped_release>();
  m.attr("runs_on") = kRunsOn;
  m.attr("most_layers") = kMostLayers;
  m.def("limits", [](int device) {
    const Limits limits = limits_of(device);
    return std::make_pair(limits.processors, limits.shared_bytes);
  });

  m.def("activation_moments_forward",
        [](Where where, int kind, double parameter, Tensor mean, Tensor var, Tensor shift, int64_t period,
           Tensor out_mean, Tensor out_var, int64_t n) {
          activation_moments_forward(target(where), activation(kind, parameter), in(mean), in(var), in(shift), period,
                                     out(out_mean), out(out_var), n);
        }, guard);
  m.def("activation_moments_backward",
        [](Where where, int kind, double parameter, Tensor mean, Tensor var, Tensor shift, int64_t period,
           Tensor d_out_mean, Tensor d_out_var, Tensor d_mean, Tensor d_var, Tensor out_mean, Tensor out_var,
           int64_t n) {
          activation_moments_backward(target(where), activation(kind, parameter), in(mean), in(var), in(shift), period,
                                      in(d_out_mean), in(d_out_var), out(d_mean), out(d_var), out(out_mean),
                                      out(out_var), n);
        }, guard);
  m.def("activation_forward",
        [](Where where, int kind, double parameter, Tensor x, Tensor shift, int64_t period, Tensor to, int64_t n) {
          activation_forward(target(where), activation(kind, parameter), in(x), in(shift), period, out(to), n);
        }, guard);
  m.def("activation_backward",
        [](Where where, int kind, double parameter, Tensor from, Tensor d_out, Tensor d_x, int64_t n) {
          activation_backward(target(where), activation(kind, parameter), in(from), in(d_out), out(d_x), n);
        }, guard);

  m.def("mixture_log_prob_forward",
        [](Where where, Tensor action, Tensor means, Tensor std, int64_t std_stride, int64_t samples, int64_t rows,
           int64_t actions, double offset, Address log_sum) {
          mixture_log_prob_forward(target(where),
                                   mixture(action, means, std, std_stride, samples, rows, actions, offset),
                                   floats(log_sum));
        }, guard);
  m.def("mixture_log_prob_backward",
        [](Where where, Tensor action, Tensor means, Tensor std, int64_t std_stride, int64_t samples, int64_t rows,
           int64_t actions, double offset, Address log_sum, Address d_log_sum, Tensor d_means, Address d_action,
           Address d_std, bool add) {
          mixture_log_prob_backward(target(where),
                                    mixture(action, means, std, std_stride, samples, rows, actions, offset),
                                    floats(log_sum), floats(d_log_sum), out(d_means), floats(d_action), floats(d_std),
                                    add);
        }, guard);

  // tensors: action, mean, var, std, old_mean, old_std
  m.def("gaussian_head_forward",
        [](Where where, std::vector<Tensor> tensors, int64_t std_stride, int64_t rows, int64_t actions,
           Address log_prob, Address entropy, Address kl) {
          gaussian_head_forward(target(where), head(tensors, std_stride, rows, actions), floats(log_prob),
                                floats(entropy), floats(kl));
        }, guard);
  m.def("gaussian_head_backward",
        [](Where where, std::vector<Tensor> tensors, int64_t std_stride, int64_t rows, int64_t actions,
           Address d_log_prob, Address d_entropy, Address d_kl, Tensor d_action, Tensor d_mean, Tensor d_var,
           Address d_std) {
          gaussian_head_backward(target(where), head(tensors, std_stride, rows, actions), floats(d_log_prob),
                                 floats(d_entropy), floats(d_kl), out(d_action), out(d_mean), out(d_var),
                                 floats(d_std));
        }, guard);

  m.def("normal",
        [](Where where, uint64_t value, Address device_seed, uint32_t stream, int64_t first_sample, int64_t samples,
           int64_t first_row, Address row_numbers, int64_t rows, int64_t columns, Address to) {
          normal(target(where), seed(value, device_seed), stream, first_sample, samples, first_row,
                 integers(row_numbers), rows, columns, floats(to));
        }, guard);
  m.def("latent_backward",
        [](Where where, Address d, int64_t d_columns, Address noise, Address d_mean, Address d_std, int64_t samples,
           int64_t rows, int64_t columns) {
          latent_backward(target(where), floats(d), d_columns, floats(noise), floats(d_mean), floats(d_std), samples,
                          rows, columns);
        }, guard);

  // Rows of a block and its shared memory, (0, bytes of the smallest) where that does not fit.
  m.def("moments_tile", [](std::vector<int> widths, int64_t rows, int processors, int shared_bytes) {
    const Network n = shape_of(widths);
    const int tile = moments_tile(n, rows, {processors, shared_bytes});
    return std::make_pair(tile, moments_shared_bytes(n, tile));
  });
  m.def("actions_tile", [](std::vector<int> widths, int context, int64_t rows, int processors, int shared_bytes) {
    const Network n = shape_of(widths);
    const int tile = actions_tile(n, context, rows, {processors, shared_bytes});
    return std::make_pair(tile, actions_shared_bytes(n, context, tile));
  });
  m.def("mlp_moments",
        [](Where where, std::vector<Tensor> weights, std::vector<Tensor> biases, std::vector<int> widths, int kind,
           double parameter, bool activate_last, Tensor mean, Tensor var, int stochastic, int64_t rows,
           Address out_mean, Address out_var) {
          mlp_moments(target(where), network(weights, biases, widths, kind, parameter, activate_last), in(mean),
                      in(var), stochastic, rows, floats(out_mean), floats(out_var));
        }, guard);
  m.def("mlp_actions",
        [](Where where, std::vector<Tensor> weights, std::vector<Tensor> biases, std::vector<int> widths, int kind,
           double parameter, Tensor context, Tensor latent_mean, Tensor latent_std, Tensor noise, uint64_t value,
           Address device_seed, Address row_numbers, int64_t half, int context_columns, int64_t samples, int64_t rows,
           Tensor action, Tensor std, int64_t std_stride, double offset, Address log_prob, Address means) {
          const Sampled sampled{in(context), in(latent_mean), in(latent_std), in(noise), seed(value, device_seed),
                                integers(row_numbers), half, context_columns, widths.at(0) - context_columns, samples,
                                rows};
          const Likelihood likelihood{in(action), in(std), std_stride, static_cast<float>(offset), floats(log_prob)};
          mlp_actions(target(where), network(weights, biases, widths, kind, parameter, false), sampled, likelihood,
                      floats(means));
        }, guard);
}

}  // namespace cuda
}  // namespace p3
