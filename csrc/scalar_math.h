// The functions that Gaussian moments are made of, shared by host and device: exponentials and erfcx.
//
// Everything here is branch-free (selects only) and written for a number type N: float or double on a device and in a
// plain build, a Pack of SIMD lanes (cpu/simd.h) in a vectorised one.
//
// The includer may define P3_ISA, a namespace of its own per instruction set, so that one program can hold several
// builds of these functions without the linker merging them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define P3_HD __host__ __device__ __forceinline__
#define P3_CONSTANT static constexpr __device__  // folded into the code: every index is known once the loops unroll
#define P3_UNROLL _Pragma("unroll")
#elif defined(P3_CALLS)  // for builds whose speed is the compiler's: see CMakeLists.txt
#define P3_HD inline
#define P3_CONSTANT static constexpr
#define P3_UNROLL
#else
#define P3_HD inline __attribute__((always_inline))
#define P3_CONSTANT static constexpr
#define P3_UNROLL _Pragma("GCC unroll 32")
#endif
#ifndef P3_ISA
#define P3_ISA scalar
#endif

namespace p3 {
namespace P3_ISA {

#include "erfcx_coefficients.h"

template <class T>
struct Real;

template <>
struct Real<float> {
  using Bits = uint32_t;
  static constexpr int kMantissaBits = 23;
  static constexpr Bits kExponentBias = 127;
  static constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x) in the low bits
  static constexpr float kLn2High = 0.693359375f;
  static constexpr float kLn2Low = -2.12194440e-4f;
  static constexpr float kExpLowest = -88.0f;  // below it the result is 0
  static constexpr float kSmallestStd = 1e-15f;  // keeps 1 / var and mean^2 / var finite
  static constexpr float kSmallestNormal = 1.2e-38f;
  static constexpr int kExpTerms = 6;
  static constexpr float kKappa = kErfcxKappa_float;
  // Functions, for a device cannot read a host's static reference.
  static P3_HD const float (&erfcx_value())[13] { return kErfcxValue_float; }
  static P3_HD const float (&erfcx_slope())[11] { return kErfcxSlope_float; }
};

template <>
struct Real<double> {
  using Bits = uint64_t;
  static constexpr int kMantissaBits = 52;
  static constexpr Bits kExponentBias = 1023;
  static constexpr double kRoundToInteger = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLn2High = 6.93147180369123816490e-01;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  static constexpr double kExpLowest = -709.0;
  static constexpr double kSmallestStd = 1e-140;
  static constexpr double kSmallestNormal = 2.3e-308;
  static constexpr int kExpTerms = 12;
  static constexpr double kKappa = kErfcxKappa_double;
  static P3_HD const double (&erfcx_value())[25] { return kErfcxValue_double; }
  static P3_HD const double (&erfcx_slope())[24] { return kErfcxSlope_double; }
};

template <class N>
struct NumberTraits;
template <>
struct NumberTraits<float> {
  using Scalar = float;
  using Mask = bool;
};
template <>
struct NumberTraits<double> {
  using Scalar = double;
  using Mask = bool;
};
template <class N>
using MaskOf = typename NumberTraits<N>::Mask;
template <class N>
using RealOf = Real<typename NumberTraits<N>::Scalar>;

// What Pack also provides, for scalars.
#define P3_SCALAR_FUNCTIONS(S, fma_, sqrt_)                                              \
  P3_HD S select(bool condition, S yes, S no) { return condition ? yes : no; }           \
  P3_HD S maximum(S a, S b) { return a > b ? a : b; }                                    \
  P3_HD S minimum(S a, S b) { return a < b ? a : b; }                                    \
  P3_HD S absolute(S a) { return a < S(0) ? -a : a; }                                    \
  P3_HD S square_root(S a) { return sqrt_(a); }                                          \
  P3_HD S reciprocal(S a) { return S(1) / a; }                                           \
  P3_HD S fused(S a, S b, S c) { return fma_(a, b, c); }                                 \
  P3_HD S power_of_two(S shifted) { /* of the integer left in the low bits by kRoundToInteger */ \
    Real<S>::Bits bits;                                                                  \
    memcpy(&bits, &shifted, sizeof(bits));                                               \
    bits = (bits + Real<S>::kExponentBias) << Real<S>::kMantissaBits;                    \
    memcpy(&shifted, &bits, sizeof(bits));                                               \
    return shifted;                                                                      \
  }
P3_SCALAR_FUNCTIONS(float, fmaf, sqrtf)
P3_SCALAR_FUNCTIONS(double, fma, sqrt)
#undef P3_SCALAR_FUNCTIONS

// e^x as scale * (1 + fraction), fraction = expm1 of the reduced argument: both e^x and e^x - 1 keep full precision.
template <class T>
struct ScaledExp {
  T scale, fraction;
  P3_HD T exp() const { return fused(scale, fraction, scale); }
  P3_HD T expm1() const { return fused(scale, fraction, scale - T(1)); }
};

// 1/2!, 1/3!, ... highest first.
P3_CONSTANT double kInverseFactorials[12] = {
    1.6059043836821613e-10, 2.08767569878681e-9,    2.505210838544172e-8,  2.755731922398589e-7,
    2.7557319223985893e-6,  2.48015873015873e-5,    1.984126984126984e-4,  1.3888888888888889e-3,
    8.333333333333333e-3,   4.1666666666666664e-2,  1.6666666666666666e-1, 0.5};

// e^(high + low), |low| well below |high|, high at most about 80; 0 below the normal range.
template <class T>
P3_HD ScaledExp<T> scaled_exp(T high, T low) {
  using R = RealOf<T>;
  const T x = maximum(high, T(R::kExpLowest));
  const T shifted = fused(x, T(1.4426950408889634), T(R::kRoundToInteger));
  const T n = shifted - T(R::kRoundToInteger);
  const T r = fused(n, T(-R::kLn2Low), fused(n, T(-R::kLn2High), x)) + low;
  T series = T(kInverseFactorials[12 - R::kExpTerms]);
  P3_UNROLL
  for (int k = 13 - R::kExpTerms; k < 12; ++k) series = fused(series, r, T(kInverseFactorials[k]));
  return {power_of_two(shifted), fused(r * r, series, r)};
}

// Values and divided differences of F(t) = erfcx(b) at three points: F(a), F[a,b], F[a,b,c] by nested synthetic division.
template <class T>
struct DividedDifferences {
  T value, first, second;
};

template <class T, class S, int kTerms>
P3_HD DividedDifferences<T> divided_differences(const S (&coefficients)[kTerms], T a, T b, T c) {
  T f = T(coefficients[0]), g = T(0), h = T(0);
  P3_UNROLL
  for (int k = 1; k < kTerms; ++k) {
    h = fused(h, c, g);
    g = fused(g, b, f);
    f = fused(f, a, T(coefficients[k]));
  }
  return {f, g, h};
}

template <class T, class S, int kTerms>
P3_HD T polynomial(const S (&coefficients)[kTerms], T x) {
  T y = T(coefficients[0]);
  P3_UNROLL
  for (int k = 1; k < kTerms; ++k) y = fused(y, x, T(coefficients[k]));
  return y;
}

// erfcx(b) and Y of -erfcx'(b) = t^2 Y(t), at t = kappa / (kappa + b).
template <class T>
P3_HD T erfcx_value(T t) {
  return polynomial(RealOf<T>::erfcx_value(), t - T(0.5));
}
template <class T>
P3_HD T erfcx_slope(T t) {
  return polynomial(RealOf<T>::erfcx_slope(), t - T(0.5));
}

template <class T>
P3_HD T erfcx_variable(T argument) {  // t = kappa / (kappa + b)
  return T(RealOf<T>::kKappa) * reciprocal(T(RealOf<T>::kKappa) + argument);
}

}  // namespace P3_ISA
}  // namespace p3
