// All CPU kernels for one instruction set. CMake compiles this file once per set, with P3_ISA and its flags.
#include "kernels.h"

#include "activation_moments.h"
#include "linearised_units.h"
#include "mixture_log_prob.h"
#include "philox_normal.h"
#include "product.h"
#include "taps.h"

namespace p3 {
namespace P3_ISA {

#define P3_TABLE(S)                                                                                          \
  extern const Kernels<S> kernels_##S;                                                                       \
  const Kernels<S> kernels_##S = {moments_forward<S>,     moments_backward<S>, activation_forward<S>,        \
                                  activation_backward<S>, mixture_constant<S>, mixture_forward<S>,           \
                                  mixture_backward<S>,    latent_backward<S>,  units_forward<S>,             \
                                  units_backward<S>,      rows_backward<S>,    taps_forward<S>,              \
                                  taps_weights<S>,        product<S>,          normal<S>};
P3_TABLE(float)
P3_TABLE(double)
#undef P3_TABLE

}  // namespace P3_ISA
}  // namespace p3
