// What a kernel's body sees of the machine: its thread, tensors of float32 or bfloat16, and how a body is launched.
//
// nvcc compiles the bodies for a GPU. Any other compiler takes the threads, barriers and shuffles of
// tests/cuda_shim.h instead, so that every body can be executed, and watched by sanitizers, where there is no GPU.
#pragma once

#include "../moments_math.h"
#include "kernels.h"

namespace p3 {
namespace cuda {

using namespace scalar;  // moments_math.h, built for float and double

// bfloat16 is the upper half of a float32.
P3_HD float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}
P3_HD uint16_t to_bf16(float value) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct Bf16 {
  uint16_t bits;
};
P3_HD float to_float(float value) { return value; }
P3_HD float to_float(Bf16 value) { return from_bf16(value.bits); }

// The flag is the same for all threads of a launch: the branch costs an instruction, a template would cost a kernel.
P3_HD float read(const Input& tensor, int64_t at) {
  return tensor.bf16 ? from_bf16(static_cast<const uint16_t*>(tensor.data)[at])
                     : static_cast<const float*>(tensor.data)[at];
}
P3_HD void write(const Output& tensor, int64_t at, float value) {
  if (tensor.bf16) {
    static_cast<uint16_t*>(tensor.data)[at] = to_bf16(value);
  } else {
    static_cast<float*>(tensor.data)[at] = value;
  }
}

constexpr int kWarp = 32;

}  // namespace cuda
}  // namespace p3

#if !defined(__CUDACC__)
#include "../tests/cuda_shim.h"
#else

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#define P3_DEVICE __device__ __forceinline__

namespace p3 {
namespace cuda {

extern __shared__ __align__(16) float block_memory[];

struct Thread {
  int index = threadIdx.x;
  int64_t block = blockIdx.x;
  float* shared = block_memory;

  P3_DEVICE void sync() const { __syncthreads(); }
  P3_DEVICE float shuffle_xor(float value, int mask) const { return __shfl_xor_sync(0xffffffffu, value, mask); }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocksPerSm)
    entry(const __grid_constant__ typename Kernel::Arguments arguments) {
  Kernel::run(Thread(), arguments);
}

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

template <class Kernel>
void launch(const Target& target, int64_t blocks, int64_t shared_bytes, const typename Kernel::Arguments& arguments) {
  if (blocks == 0) return;
  check(cudaSetDevice(target.device), "cudaSetDevice");
  if (shared_bytes > 48 * 1024) {  // more than that has to be asked for
    check(cudaFuncSetAttribute(entry<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "shared memory");
  }
  entry<Kernel><<<static_cast<unsigned>(blocks), Kernel::kThreads, static_cast<size_t>(shared_bytes),
                  static_cast<cudaStream_t>(target.stream)>>>(arguments);
  check(cudaGetLastError(), "launch");
}

inline Limits device_limits(int device) {
  Limits limits{};
  check(cudaDeviceGetAttribute(&limits.processors, cudaDevAttrMultiProcessorCount, device), "device attribute");
  check(cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "device attribute");
  return limits;
}

}  // namespace cuda
}  // namespace p3
#endif

namespace p3 {
namespace cuda {

// The sum over a warp, the same bits in every lane.
P3_DEVICE float warp_sum(const Thread& thread, float value) {
  P3_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value += thread.shuffle_xor(value, mask);
  return value;
}

inline int64_t blocks_for(int64_t work, int64_t per_block) { return (work + per_block - 1) / per_block; }

}  // namespace cuda
}  // namespace p3
