// Prelude of the C++ that the CPU target generates: narrow number formats, rounding, elementary operations.
// No standard library container and no <immintrin.h>: each costs a quarter of a second of compilation per kernel.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TL_INLINE static inline __attribute__((always_inline))

TL_INLINE uint32_t tl_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
TL_INLINE float tl_float(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
template <typename To, typename From> TL_INLINE To tl_bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "reinterpret between types of different size");
  To to; memcpy(&to, &from, sizeof(To)); return to;
}

// A choice without a branch: the compiler turns some chains of ?: on one value into jumps, and then does not vectorise.
TL_INLINE uint32_t tl_blend(bool condition, uint32_t yes, uint32_t no) { return no ^ ((yes ^ no) & -(uint32_t)condition); }

// ---- narrow floats --------------------------------------------------------------------------------------------------------
// E exponent bits, M mantissa bits. FINITE: no infinities, one NaN (e4m3fn). SATURATE: finite overflow and infinities go to the
// largest finite value, as the CUDA conversions to fp8 do. Branch-free, so that the compiler vectorises every loop around them.
template <int E, int M, bool FINITE, bool SATURATE> struct tl_narrow {
  static constexpr int BIAS = (1 << (E - 1)) - 1;
  static constexpr int SHIFT = 23 - M;
  static constexpr uint32_t MAGNITUDE = (1u << (E + M)) - 1;
  static constexpr uint32_t EXPONENT = ((1u << E) - 1) << M;
  static constexpr uint32_t INFINITE = FINITE ? MAGNITUDE : EXPONENT;
  static constexpr uint32_t NOT_A_NUMBER = FINITE ? MAGNITUDE : EXPONENT | (1u << (M - 1));
  static constexpr uint32_t LARGEST = FINITE ? MAGNITUDE - 1 : EXPONENT - 1;
  static constexpr uint32_t OVERFLOWN = SATURATE ? LARGEST : INFINITE;

  TL_INLINE float decode(uint32_t b) {
    uint32_t a = b & MAGNITUDE;
    // Placing the fields gives the value times 2^(BIAS-127), exactly, subnormals included.
    uint32_t u = tl_bits(tl_float(a << SHIFT) * tl_float((uint32_t)(254 - BIAS) << 23));
    // Infinities and NaN keep their mantissa and get the exponent of all ones.
    u |= -(uint32_t)(a >= INFINITE) & (FINITE ? 0x7fc00000u : 0x7f800000u);
    return tl_float(u | (b >> (E + M)) << 31);
  }

  TL_INLINE uint32_t encode(float x) {
    const uint32_t u = tl_bits(x), whole = u & 0x7fffffffu;
    const bool nan = whole > 0x7f800000u;
    // From this value on it is infinite; rounding takes it there, and nothing else needs to.
    const uint32_t end = (uint32_t)(127 - BIAS + (1 << E) - !FINITE) << 23;
    const uint32_t a = whole < end ? whole : end;
    // One addition moves the exponent to its new bias and rounds; a carry into the exponent is the right carry.
    uint32_t normal = (a + (((1u << (SHIFT - 1)) - 1) - ((uint32_t)(127 - BIAS) << 23)) + ((a >> SHIFT) & 1)) >> SHIFT;
    // Adding a power of two whose last place is the smallest subnormal rounds to it, ties to even.
    const float magic = tl_float((uint32_t)(127 + 23 + 1 - BIAS - M) << 23);
    uint32_t subnormal = tl_bits(tl_float(a) + magic) - tl_bits(magic);
    uint32_t r = tl_blend(a < ((uint32_t)(128 - BIAS) << 23), subnormal, normal);
    if (SATURATE || FINITE) r = tl_blend(nan, NOT_A_NUMBER, r > LARGEST ? OVERFLOWN : r);
    else r |= -(uint32_t)nan & NOT_A_NUMBER;
    return r | (u >> 31) << (E + M);
  }
};
using tl_format_float16 = tl_narrow<5, 10, false, false>;
using tl_format_float8_e4m3fn = tl_narrow<4, 3, true, true>;
using tl_format_float8_e5m2 = tl_narrow<5, 2, false, true>;

TL_INLINE float tl_load_float16(uint16_t b) { return tl_format_float16::decode(b); }
TL_INLINE uint16_t tl_store_float16(float x) { return (uint16_t)tl_format_float16::encode(x); }
// Runs of float16, by the processor where it can: the vectoriser does not use these instructions.
TL_INLINE void tl_load_run_float16(float* to, const uint16_t* from, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__) && defined(__GNUC__)
  typedef short tl_bits8 __attribute__((vector_size(16)));
  typedef float tl_floats8 __attribute__((vector_size(32)));
  for (; i + 8 <= n; i += 8) {
    tl_bits8 bits;
    memcpy(&bits, from + i, 16);
    tl_floats8 values = __builtin_ia32_vcvtph2ps256(bits);
    memcpy(to + i, &values, 32);
  }
#endif
  for (; i < n; ++i) to[i] = tl_load_float16(from[i]);
}
TL_INLINE void tl_store_run_float16(uint16_t* to, const float* from, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__) && defined(__GNUC__)
  typedef short tl_bits8 __attribute__((vector_size(16)));
  typedef float tl_floats8 __attribute__((vector_size(32)));
  for (; i + 8 <= n; i += 8) {
    tl_floats8 values;
    memcpy(&values, from + i, 32);
    tl_bits8 bits = __builtin_ia32_vcvtps2ph256(values, 0);  // to nearest, ties to even
    memcpy(to + i, &bits, 16);
  }
#endif
  for (; i < n; ++i) to[i] = tl_store_float16(from[i]);
}
TL_INLINE float tl_load_float8_e4m3fn(uint8_t b) { return tl_format_float8_e4m3fn::decode(b); }
TL_INLINE uint8_t tl_store_float8_e4m3fn(float x) { return (uint8_t)tl_format_float8_e4m3fn::encode(x); }
TL_INLINE float tl_load_float8_e5m2(uint8_t b) { return tl_format_float8_e5m2::decode(b); }
TL_INLINE uint8_t tl_store_float8_e5m2(float x) { return (uint8_t)tl_format_float8_e5m2::encode(x); }

TL_INLINE float tl_load_bfloat16(uint16_t b) { return tl_float((uint32_t)b << 16); }
TL_INLINE uint16_t tl_store_bfloat16(float x) {
  uint32_t u = tl_bits(x);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  return (uint16_t)tl_blend((u & 0x7fffffffu) > 0x7f800000u, (u >> 16) | 0x40u, rounded);
}

// e8m0: an exponent alone, always positive, 255 is NaN.
TL_INLINE float tl_load_float8_e8m0fnu(uint8_t b) {
  uint32_t u = b == 0 ? 0x00400000u : (uint32_t)b << 23;
  return tl_float(b == 255 ? 0x7fc00000u : u);
}
TL_INLINE uint8_t tl_store_float8_e8m0fnu(float x) {
  uint32_t a = tl_bits(x) & 0x7fffffffu, e = a >> 23, m = a & 0x7fffffu;
  // Nearest power of two, ties to the even exponent; e = 0 stands for 2^-127, which is a subnormal float.
  uint32_t up = e == 0 ? m > 0x600000u : m > 0x400000u || (m == 0x400000u && (e & 1));
  uint32_t r = e + up;
  return (uint8_t)(a >= 0x7f800000u ? 255 : (r > 254 ? 254 : r));
}

#define TL_ROUND(T) TL_INLINE float tl_round_##T(float x) { return tl_load_##T(tl_store_##T(x)); }
TL_ROUND(float16) TL_ROUND(bfloat16) TL_ROUND(float8_e4m3fn) TL_ROUND(float8_e5m2) TL_ROUND(float8_e8m0fnu)

// float64 to float32, rounded to odd: a second rounding to a narrow format then gives what one rounding would have given.
TL_INLINE float tl_to_odd(double x) {
  float f = (float)x;
  uint32_t u = tl_bits(f);
  double back = (double)f;
  bool inexact = back != x && x == x && (u & 1) == 0 && (u & 0x7f800000u) != 0x7f800000u;
  bool away = fabs(back) > fabs(x);
  return tl_float(inexact ? (away ? u - 1 : u + 1) : u);
}

// ---- elementary operations ------------------------------------------------------------------------------------------------
// fmax and fmin of CUDA: a NaN operand is dropped. The _nan forms keep it.
template <typename T> TL_INLINE T tl_max(T a, T b) { T r = a > b ? a : b; return b != b ? a : r; }
template <typename T> TL_INLINE T tl_min(T a, T b) { T r = a < b ? a : b; return b != b ? a : r; }
template <typename T> TL_INLINE T tl_max_nan(T a, T b) { T r = a > b ? a : b; return a != a ? a : r; }
template <typename T> TL_INLINE T tl_min_nan(T a, T b) { T r = a < b ? a : b; return a != a ? a : r; }
template <typename T> TL_INLINE T tl_clamp(T x, T lo, T hi) {
  T r = x < lo ? lo : x;
  r = lo != lo ? lo : r;
  r = r > hi ? hi : r;
  r = hi != hi ? hi : r;
  return x != x ? x : r;
}
// A zero divisor would kill the process; CUDA returns all ones.
template <typename T> TL_INLINE T tl_div(T a, T b) { return b == 0 ? (T)-1 : (T)(a / b); }
template <typename T> TL_INLINE T tl_mod(T a, T b) { return b == 0 ? (T)-1 : (T)(a % b); }
template <typename T> TL_INLINE T tl_floor_div(T a, T b) { T q = tl_div(a, b), r = tl_mod(a, b); return q - (r != 0 && (r < 0) != (b < 0)); }
template <typename T> TL_INLINE T tl_floor_mod(T a, T b) { T r = tl_mod(a, b); return r + (r != 0 && (r < 0) != (b < 0) ? b : 0); }
template <typename T> TL_INLINE T tl_abs(T x) { return x < 0 ? -x : x; }
TL_INLINE float tl_abs(float x) { return __builtin_fabsf(x); }
TL_INLINE double tl_abs(double x) { return __builtin_fabs(x); }
template <typename T> TL_INLINE bool tl_isnan(T x) { return x != x; }
template <typename T> TL_INLINE bool tl_isinf(T x) { return tl_abs(x) == (T)INFINITY; }
template <typename T> TL_INLINE bool tl_isfinite(T x) { return tl_abs(x) < (T)INFINITY; }
template <typename T> TL_INLINE T tl_integer_pow(T x, int n) { T r = 1; for (int i = 0; i < n; ++i) r *= x; return r; }
template <typename T> TL_INLINE T tl_exchange_add(T *p, T v) { T old = *p; *p = (T)(old + v); return old; }
template <typename T> TL_INLINE T tl_exchange_max(T *p, T v) { T old = *p; *p = tl_max(old, v); return old; }
template <typename T> TL_INLINE T tl_exchange_min(T *p, T v) { T old = *p; *p = tl_min(old, v); return old; }
template <typename T> TL_INLINE T tl_exchange_or(T *p, T v) { T old = *p; *p = (T)(old | v); return old; }

// Conversions of floats to integers saturate and send NaN to zero, as CUDA's do; in C++ they would be undefined.
template <typename I, typename F> TL_INLINE I tl_to_integer(F x, F low, F high, I min, I max) {
  I inside = (I)(x >= low && x <= high ? x : (F)0);
  return x > high ? max : (x < low ? min : inside);
}

// An exchange on a narrow float in memory: combine in float, store rounded.
TL_INLINE float tl_combine_add(float a, float b) { return a + b; }
TL_INLINE float tl_combine_max(float a, float b) { return tl_max(a, b); }
TL_INLINE float tl_combine_min(float a, float b) { return tl_min(a, b); }
template <typename S, typename Load, typename Store, typename Combine>
TL_INLINE float tl_exchange_narrow(S *p, float v, Load load, Store store, Combine combine) {
  float old = load(*p);
  *p = store(combine(old, v));
  return old;
}

TL_INLINE int tl_popcount(uint32_t x) { return __builtin_popcount(x); }
TL_INLINE int tl_popcount(uint64_t x) { return __builtin_popcountll(x); }
TL_INLINE int tl_clz(uint32_t x) { return x ? __builtin_clz(x) : 32; }
TL_INLINE int tl_clz(uint64_t x) { return x ? __builtin_clzll(x) : 64; }

#ifdef _OPENMP
extern "C" int omp_get_thread_num(void);
TL_INLINE int tl_thread() { return omp_get_thread_num(); }
#else
TL_INLINE int tl_thread() { return 0; }
#endif

#include "support_gemm.h"
#include "support_math.h"
