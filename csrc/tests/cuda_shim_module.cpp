// The CUDA kernels as a Python module that runs them on CPU memory: what the Python tests drive in place of a GPU.
#include "../cuda/bindings.h"
#include "../cuda/kernels.cu"

PYBIND11_MODULE(p3_cuda_shim, m) {
  p3::cuda::define(m);
  m.def("launches", [] { return p3::cuda::shim::launches(); }, "Launches so far.");
}
