// Chooses the kernels of the best instruction set, once, at the first call.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace p3 {
namespace {

struct Isa {
  const char* name;
  const Kernels<float>* f32;
  const Kernels<double>* f64;
};

bool runs(const char* name) {
#if defined(P3_X86)
  __builtin_cpu_init();
  if (!std::strcmp(name, "avx512")) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  }
  if (!std::strcmp(name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return !std::strcmp(name, "plain");
}

Isa choose() {
  static const Isa all[] = {
#if defined(P3_X86)
      {"avx512", &avx512::kernels_float, &avx512::kernels_double},
      {"avx2", &avx2::kernels_float, &avx2::kernels_double},
#endif
      {"plain", &plain::kernels_float, &plain::kernels_double}};
  const char* wanted = std::getenv("P3_CPU_ISA");
  for (const Isa& isa : all) {
    if (wanted && *wanted ? !std::strcmp(wanted, isa.name) && runs(isa.name) : runs(isa.name)) return isa;
  }
  throw std::invalid_argument(std::string("P3_CPU_ISA=") + wanted + " is not one this CPU and build can run");
}

const Isa& chosen() {
  static const Isa isa = choose();
  return isa;
}

bool choose_products() {
  const char* wanted = std::getenv("P3_CPU_PRODUCTS");
  if (wanted && *wanted) {
    if (!std::strcmp(wanted, "p3") || !std::strcmp(wanted, "torch")) return !std::strcmp(wanted, "p3");
    throw std::invalid_argument(std::string("P3_CPU_PRODUCTS: expected p3 or torch, got ") + wanted);
  }
#if defined(P3_X86)
  __builtin_cpu_init();
  return !__builtin_cpu_is("intel") && !std::strcmp(chosen().name, "avx512");
#else
  return false;
#endif
}

}  // namespace

const char* isa_name() { return chosen().name; }
bool own_products() {
  static const bool own = choose_products();
  return own;
}
template <>
const Kernels<float>& kernels<float>() {
  return *chosen().f32;
}
template <>
const Kernels<double>& kernels<double>() {
  return *chosen().f64;
}

}  // namespace p3
