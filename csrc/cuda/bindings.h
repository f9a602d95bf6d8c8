// The Python face of the CUDA kernels: a tensor is a pair of address and "is bfloat16", a target a pair of device and
// stream. Shapes and dtypes were checked in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace p3 {
namespace cuda {

void define(pybind11::module_& m);

}  // namespace cuda
}  // namespace p3
