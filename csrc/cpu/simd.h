// The number type of the CPU kernels: `Pack`, a few SIMD registers that behave like one scalar in scalar_math.h.
//
// One build of the kernels includes this with P3_AVX512, P3_AVX2 or neither defined (then Pack is the scalar itself).
// A pack of several registers gives the CPU independent chains to overlap: the moments are one long dependent chain,
// which a single register would leave waiting on latency.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(P3_AVX512) || defined(P3_AVX2)
#include <immintrin.h>
#endif

#if defined(P3_CALLS)
#define P3_INLINE inline
#else
#define P3_INLINE inline __attribute__((always_inline))
#endif

namespace p3 {
namespace P3_ISA {

#if defined(P3_AVX512) || defined(P3_AVX2)

template <class S>
struct Register;

template <class V>
P3_INLINE V reciprocal_of(V a) {
  return 1 / a;
}

// One register of S: what both instruction sets call alike. `prefix` is _mm512 or _mm256, `suffix` ps or pd, `integers`
// epi32 or epi64; `bias` and `shift` are those of an exponent. P3_MASKS adds what they call differently.
#define P3_REGISTER(S, suffix, Vector, MaskType, lanes, prefix, bits, integers, bias, shift)          \
  template <>                                                                                         \
  struct Register<S> {                                                                                \
    using Type = Vector;                                                                              \
    using Mask = MaskType;                                                                            \
    static constexpr int kLanes = lanes;                                                              \
    static constexpr int kPerPack = bits / 256;                                                       \
    static P3_INLINE Type load(const S* p) { return prefix##_loadu_##suffix(p); }                     \
    static P3_INLINE void store(S* p, Type a) { prefix##_storeu_##suffix(p, a); }                     \
    static P3_INLINE Type broadcast(S a) { return prefix##_set1_##suffix(a); }                        \
    static P3_INLINE Type fma(Type a, Type b, Type c) { return prefix##_fmadd_##suffix(a, b, c); }    \
    static P3_INLINE Type sqrt(Type a) { return prefix##_sqrt_##suffix(a); }                          \
    static P3_INLINE Type reciprocal(Type a) { return reciprocal_of(a); }                             \
    static P3_INLINE Type max(Type a, Type b) { return prefix##_max_##suffix(a, b); }                 \
    static P3_INLINE Type min(Type a, Type b) { return prefix##_min_##suffix(a, b); }                 \
    static P3_INLINE Mask less(Type a, Type b) { return compare<_CMP_LT_OQ>(a, b); }                  \
    static P3_INLINE Mask less_equal(Type a, Type b) { return compare<_CMP_LE_OQ>(a, b); }            \
    static P3_INLINE Mask equal(Type a, Type b) { return compare<_CMP_EQ_OQ>(a, b); }                 \
    static P3_INLINE Type power_of_two(Type shifted) {                                                \
      const auto exponent = prefix##_add_##integers(prefix##_cast##suffix##_si##bits(shifted), bias); \
      return prefix##_castsi##bits##_##suffix(prefix##_slli_##integers(exponent, shift));             \
    }                                                                                                 \
    P3_MASKS(S, suffix)                                                                               \
  };

#if defined(P3_AVX512)

// To one unit in the last place; the five divisions of the moments would keep the divider busy for a tenth of the time.
// Infinity for 0 would become NaN in the correction: callers stay above the smallest normal number.
P3_INLINE __m512 reciprocal_of(__m512 a) {
  const __m512 estimate = _mm512_rcp14_ps(a);
  return _mm512_fmadd_ps(estimate, _mm512_fnmadd_ps(a, estimate, _mm512_set1_ps(1.0f)), estimate);
}

#define P3_MASKS(S, suffix)                                                                            \
  template <int Kind>                                                                                  \
  static P3_INLINE Mask compare(Type a, Type b) { return _mm512_cmp_##suffix##_mask(a, b, Kind); }     \
  static P3_INLINE Type abs(Type a) { return _mm512_abs_##suffix(a); }                                 \
  static P3_INLINE Type select(Mask m, Type a, Type b) { return _mm512_mask_blend_##suffix(m, b, a); } \
  static P3_INLINE Mask both(Mask a, Mask b) { return a & b; }                                         \
  static P3_INLINE Mask either(Mask a, Mask b) { return a | b; }                                       \
  static P3_INLINE Mask negate(Mask a) { return static_cast<Mask>(~a); }

P3_REGISTER(float, ps, __m512, __mmask16, 16, _mm512, 512, epi32, _mm512_set1_epi32(127), 23)
P3_REGISTER(double, pd, __m512d, __mmask8, 8, _mm512, 512, epi64, _mm512_set1_epi64(1023), 52)

#else  // AVX2 + FMA: a mask is a register of all-ones lanes

#define P3_MASKS(S, suffix)                                                                              \
  template <int Kind>                                                                                    \
  static P3_INLINE Mask compare(Type a, Type b) { return _mm256_cmp_##suffix(a, b, Kind); }              \
  static P3_INLINE Type abs(Type a) { return _mm256_andnot_##suffix(_mm256_set1_##suffix(S(-0.0)), a); } \
  static P3_INLINE Type select(Mask m, Type a, Type b) { return _mm256_blendv_##suffix(b, a, m); }       \
  static P3_INLINE Mask both(Mask a, Mask b) { return _mm256_and_##suffix(a, b); }                       \
  static P3_INLINE Mask either(Mask a, Mask b) { return _mm256_or_##suffix(a, b); }                      \
  static P3_INLINE Mask negate(Mask a) {                                                                 \
    return _mm256_xor_##suffix(a, _mm256_castsi256_##suffix(_mm256_set1_epi32(-1)));                     \
  }

P3_REGISTER(float, ps, __m256, __m256, 8, _mm256, 256, epi32, _mm256_set1_epi32(127), 23)
P3_REGISTER(double, pd, __m256d, __m256d, 4, _mm256, 256, epi64, _mm256_set1_epi64x(1023), 52)

#endif
#undef P3_MASKS
#undef P3_REGISTER

#define P3_EACH for (int k = 0; k < R::kPerPack; ++k)

template <class S>
struct PackMask {
  using R = Register<S>;
  typename R::Mask m[R::kPerPack];
};

template <class S>
struct Pack {
  using R = Register<S>;
  static constexpr int kLanes = R::kLanes * R::kPerPack;
  typename R::Type r[R::kPerPack];

  Pack() = default;
  P3_INLINE explicit Pack(double value) { P3_EACH r[k] = R::broadcast(static_cast<S>(value)); }
  static P3_INLINE Pack load(const S* p) {
    Pack a;
    P3_EACH a.r[k] = R::load(p + k * R::kLanes);
    return a;
  }
  P3_INLINE void store(S* p) const { P3_EACH R::store(p + k * R::kLanes, r[k]); }
};

#define P3_BINARY(op)                                          \
  template <class S>                                           \
  P3_INLINE Pack<S> operator op(Pack<S> a, Pack<S> b) {        \
    using R = Register<S>;                                     \
    P3_EACH a.r[k] = a.r[k] op b.r[k];                         \
    return a;                                                  \
  }
P3_BINARY(+)
P3_BINARY(-)
P3_BINARY(*)
P3_BINARY(/)
#undef P3_BINARY

template <class S>
P3_INLINE Pack<S> operator-(Pack<S> a) {
  return Pack<S>(-0.0) - a;
}

#define P3_COMPARE(op, call)                                    \
  template <class S>                                            \
  P3_INLINE PackMask<S> operator op(Pack<S> a, Pack<S> b) {     \
    using R = Register<S>;                                      \
    PackMask<S> out;                                            \
    P3_EACH out.m[k] = call;                                    \
    return out;                                                 \
  }
P3_COMPARE(<, R::less(a.r[k], b.r[k]))
P3_COMPARE(<=, R::less_equal(a.r[k], b.r[k]))
P3_COMPARE(>, R::less(b.r[k], a.r[k]))
P3_COMPARE(>=, R::less_equal(b.r[k], a.r[k]))
P3_COMPARE(==, R::equal(a.r[k], b.r[k]))
#undef P3_COMPARE

#define P3_LOGIC(op, name)                                            \
  template <class S>                                                  \
  P3_INLINE PackMask<S> operator op(PackMask<S> a, PackMask<S> b) {   \
    using R = Register<S>;                                            \
    P3_EACH a.m[k] = R::name(a.m[k], b.m[k]);                         \
    return a;                                                         \
  }
P3_LOGIC(&, both)
P3_LOGIC(|, either)
#undef P3_LOGIC
template <class S>
P3_INLINE PackMask<S> operator!(PackMask<S> a) {
  using R = Register<S>;
  P3_EACH a.m[k] = R::negate(a.m[k]);
  return a;
}

#define P3_FUNCTION2(name, call)                       \
  template <class S>                                   \
  P3_INLINE Pack<S> name(Pack<S> a, Pack<S> b) {       \
    using R = Register<S>;                             \
    P3_EACH a.r[k] = R::call(a.r[k], b.r[k]);          \
    return a;                                          \
  }
P3_FUNCTION2(maximum, max)
P3_FUNCTION2(minimum, min)
#undef P3_FUNCTION2
#define P3_FUNCTION1(name, call)             \
  template <class S>                         \
  P3_INLINE Pack<S> name(Pack<S> a) {        \
    using R = Register<S>;                   \
    P3_EACH a.r[k] = R::call(a.r[k]);        \
    return a;                                \
  }
P3_FUNCTION1(absolute, abs)
P3_FUNCTION1(square_root, sqrt)
P3_FUNCTION1(reciprocal, reciprocal)
P3_FUNCTION1(power_of_two, power_of_two)
#undef P3_FUNCTION1

template <class S>
P3_INLINE Pack<S> fused(Pack<S> a, Pack<S> b, Pack<S> c) {
  using R = Register<S>;
  P3_EACH a.r[k] = R::fma(a.r[k], b.r[k], c.r[k]);
  return a;
}
template <class S>
P3_INLINE Pack<S> select(PackMask<S> condition, Pack<S> yes, Pack<S> no) {
  using R = Register<S>;
  P3_EACH yes.r[k] = R::select(condition.m[k], yes.r[k], no.r[k]);
  return yes;
}
#undef P3_EACH

template <class N>
struct NumberTraits;  // scalar_math.h specialises it for scalars
template <class S>
struct NumberTraits<Pack<S>> {
  using Scalar = S;
  using Mask = PackMask<S>;
};

template <class S>
P3_INLINE Pack<S> load_lanes(const S* p, Pack<S>*) {
  return Pack<S>::load(p);
}
template <class S>
P3_INLINE void store_lanes(S* p, Pack<S> a) {
  a.store(p);
}
template <class S>
struct Lanes {
  using Number = Pack<S>;
  static constexpr int kCount = Pack<S>::kLanes;
};

#else  // plain: one number at a time

template <class S>
P3_INLINE S load_lanes(const S* p, S*) {
  return *p;
}
template <class S>
P3_INLINE void store_lanes(S* p, S a) {
  *p = a;
}
template <class S>
struct Lanes {
  using Number = S;
  static constexpr int kCount = 1;
};

#endif

template <class S>
P3_INLINE typename Lanes<S>::Number load(const S* p) {
  return load_lanes(p, static_cast<typename Lanes<S>::Number*>(nullptr));
}

}  // namespace P3_ISA
}  // namespace p3
