// The Python face of the native kernels. Tensors arrive as addresses; shapes and dtypes were checked in Python.
#include <pybind11/pybind11.h>

#include <string>

#include "cpu/height_maps.h"
#include "cpu/robot_state.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/threaded.h"
#if defined(P3_WITH_CUDA)
#include "cuda/bindings.h"
#endif

namespace py = pybind11;

namespace {

template <class S>
void define(py::module_& m, const std::string& suffix) {
  const auto guard = py::call_guard<py::gil_scoped_release>();
  m.def(("moments_forward_" + suffix).c_str(), &p3::threaded::moments_forward<S>, guard);
  m.def(("moments_backward_" + suffix).c_str(), &p3::threaded::moments_backward<S>, guard);
  m.def(("activation_forward_" + suffix).c_str(), &p3::threaded::activation_forward<S>, guard);
  m.def(("activation_backward_" + suffix).c_str(), &p3::threaded::activation_backward<S>, guard);
  m.def(("mixture_forward_" + suffix).c_str(), &p3::threaded::mixture_forward<S>, guard);
  m.def(("mixture_backward_" + suffix).c_str(), &p3::threaded::mixture_backward<S>, guard);
  m.def(("latent_backward_" + suffix).c_str(), &p3::threaded::latent_backward<S>, guard);
  m.def(("units_forward_" + suffix).c_str(), &p3::threaded::units_forward<S>, guard);
  m.def(("units_backward_" + suffix).c_str(), &p3::threaded::units_backward<S>, guard);
  m.def(("rows_backward_" + suffix).c_str(), &p3::threaded::rows_backward<S>, guard);
  m.def(("taps_forward_" + suffix).c_str(), &p3::threaded::taps_forward<S>, guard);
  m.def(("taps_weights_" + suffix).c_str(), &p3::threaded::taps_weights<S>, guard);
  m.def(("product_" + suffix).c_str(), &p3::threaded::product<S>, guard);
  m.def(("normal_" + suffix).c_str(), &p3::threaded::normal<S>, guard);
  m.def(("normal_of_rows_" + suffix).c_str(), &p3::threaded::normal_of_rows<S>, guard);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native kernels of p3kernels: addresses and sizes in, nothing of torch inside.";
  m.def("isa", &p3::isa_name, "The instruction set the CPU kernels run with.");
  m.def("own_products", &p3::own_products, "Whether matrix products are to be the extension's own, and not torch's.");
  m.def("thread_source", &p3::thread_source, "The thread pool the CPU kernels run on.");
  py::dict activations;
  activations["elu"] = static_cast<int>(p3::Activation::kElu);
  activations["leaky_relu"] = static_cast<int>(p3::Activation::kLeakyRelu);
  m.attr("activations") = activations;
  const auto guard = py::call_guard<py::gil_scoped_release>();
  m.def("heights_at_points_float32", &p3::height_maps::at_points, guard);
  m.def("height_scan_float32", &p3::height_maps::scan, guard);
  m.def("orientation_float32", &p3::robot_state::orientation, guard);
  m.def("feet_float32", &p3::robot_state::feet, guard);
  define<float>(m, "float32");
  define<double>(m, "float64");
#if defined(P3_WITH_CUDA)
  py::module_ cuda = m.def_submodule("cuda", "CUDA kernels; asks nothing of a GPU until the first launch.");
  p3::cuda::define(cuda);
#else
  m.attr("without_cuda") = P3_WITHOUT_CUDA;  // why, from CMake
#endif
}
