// Elementary functions of the generated code, overloaded for float and double.
//
// The float versions of exp, exp2, log, log2, log10, log1p, tanh, erf (here), sin and cos (support_trig.h) are straight-line code without branches
// or calls, so that the compiler vectorises a loop around them. Their error is at most 2 units in the last place over all floats,
// subnormals included; infinities, NaN and signed zeros come out as the C library's do. Polynomials: least squares at 400 Chebyshev
// nodes in 40 digits, reweighted until the largest relative error stops falling (Lawson). Everything else is the C library's.
#pragma once

#define TL_LIBM1(F) TL_INLINE float tl_##F(float x) { return F##f(x); } TL_INLINE double tl_##F(double x) { return F(x); }
#define TL_LIBM2(F) TL_INLINE float tl_##F(float x, float y) { return F##f(x, y); } TL_INLINE double tl_##F(double x, double y) { return F(x, y); }
#define TL_DOUBLE1(F) TL_INLINE double tl_##F(double x) { return F(x); }
TL_LIBM1(tan) TL_LIBM1(sinh) TL_LIBM1(cosh)
TL_LIBM1(asin) TL_LIBM1(acos) TL_LIBM1(atan) TL_LIBM1(asinh) TL_LIBM1(acosh) TL_LIBM1(atanh)
TL_LIBM2(pow) TL_LIBM2(atan2) TL_LIBM2(fmod) TL_LIBM2(hypot) TL_LIBM2(copysign) TL_LIBM2(nextafter)
TL_DOUBLE1(exp) TL_DOUBLE1(exp2) TL_DOUBLE1(log) TL_DOUBLE1(log2) TL_DOUBLE1(log10) TL_DOUBLE1(log1p) TL_DOUBLE1(tanh) TL_DOUBLE1(erf)
TL_INLINE float tl_exp10(float x) { return powf(10.0f, x); }
TL_INLINE double tl_exp10(double x) { return pow(10.0, x); }

// One instruction each.
#define TL_BUILTIN1(NAME, F) TL_INLINE float tl_##NAME(float x) { return __builtin_##F##f(x); } TL_INLINE double tl_##NAME(double x) { return __builtin_##F(x); }
TL_BUILTIN1(sqrt, sqrt)
TL_BUILTIN1(floor, floor)
TL_BUILTIN1(ceil, ceil)
TL_BUILTIN1(trunc, trunc)
TL_BUILTIN1(round, nearbyint)  // ties to even, as T.round on CUDA
TL_BUILTIN1(nearbyint, nearbyint)
TL_BUILTIN1(round_away, round)
TL_INLINE float tl_fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
TL_INLINE double tl_fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
template <typename T> TL_INLINE T tl_rsqrt(T x) { return (T)1 / tl_sqrt(x); }
template <typename T> TL_INLINE T tl_reciprocal(T x) { return (T)1 / x; }

// Evaluates c0 + x * (c1 + x * (...)).
TL_INLINE float tl_horner(float, float c) { return c; }
template <typename... C> TL_INLINE float tl_horner(float x, float c, C... rest) { return __builtin_fmaf(tl_horner(x, rest...), x, c); }
TL_INLINE float tl_with_sign(float magnitude, float of) { return tl_float(tl_bits(magnitude) | (tl_bits(of) & 0x80000000u)); }

// x rounded to an integer, |x| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits of the sum.
#define TL_ROUNDER 0x1.8p23f
TL_INLINE int32_t tl_rounded_bits(float shifted) { return (int32_t)(tl_bits(shifted) - tl_bits(TL_ROUNDER)); }

// p * 2^n for n in [-252, 252]: in two factors, so that a subnormal result is rounded once and 2^128 overflows only where it should.
TL_INLINE float tl_scale(float p, int32_t n) {
  int32_t half = n >> 1;
  return p * tl_float((uint32_t)(half + 127) << 23) * tl_float((uint32_t)(n - half + 127) << 23);
}

TL_INLINE float tl_exp(float x) {
  float c = x > 89.0f ? 89.0f : (x < -104.0f ? -104.0f : x);  // beyond: infinity and zero already
  float shifted = __builtin_fmaf(c, 0x1.715476p+0f, TL_ROUNDER), n = shifted - TL_ROUNDER;
  float r = __builtin_fmaf(n, -0x1.62e430p-1f, c);
  r = __builtin_fmaf(n, 0x1.05c610p-29f, r);
  float q = tl_horner(r, 0x1.0p-1f, 0x1.555554p-3f, 0x1.55548ep-5f, 0x1.111272p-7f, 0x1.6d8db2p-10f, 0x1.9f0816p-13f);
  return tl_scale(1.0f + __builtin_fmaf(q, r * r, r), tl_rounded_bits(shifted));
}

TL_INLINE float tl_exp2(float x) {
  float c = x > 129.0f ? 129.0f : (x < -151.0f ? -151.0f : x);
  float shifted = c + TL_ROUNDER, r = c - (shifted - TL_ROUNDER);
  float q = tl_horner(r, 0x1.62e430p-1f, 0x1.ebfbe0p-3f, 0x1.c6b08ap-5f, 0x1.3b29f4p-7f, 0x1.5d8a86p-10f, 0x1.445c84p-13f, 0x1.fde5fap-17f);
  return tl_scale(__builtin_fmaf(q, r, 1.0f), tl_rounded_bits(shifted));
}

// Logarithms: x = 2^e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); log(1 + f) = f + tail.
struct tl_log_parts { float e, f, tail; };
TL_INLINE tl_log_parts tl_log_split(float x) {
  bool subnormal = x < 0x1p-126f;
  uint32_t shifted = tl_bits(subnormal ? x * 0x1p23f : x) - 0x3f3504f3u;
  tl_log_parts p;
  p.e = (float)((int32_t)shifted >> 23) - (subnormal ? 23.0f : 0.0f);
  p.f = tl_float((shifted & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float q = tl_horner(p.f, 0x1.555548p-2f, -0x1.000006p-2f, 0x1.99a4b6p-3f, -0x1.555c4ep-3f, 0x1.233766p-3f, -0x1.fc2210p-4f, 0x1.e6f094p-4f,
                      -0x1.de3bf2p-4f, 0x1.145724p-4f);
  p.tail = p.f * p.f * __builtin_fmaf(q, p.f, -0.5f);
  return p;
}
TL_INLINE float tl_log_special(float x, float y) {
  y = x == INFINITY ? x : y;
  y = x == 0.0f ? -INFINITY : y;
  return x < 0.0f ? NAN : (x != x ? x : y);
}
TL_INLINE float tl_log(float x) {
  tl_log_parts p = tl_log_split(x);
  // e * 0x1.62e4p-1 is exact.
  return tl_log_special(x, __builtin_fmaf(p.e, 0x1.62e4p-1f, p.f + __builtin_fmaf(p.e, 0x1.7f7d1cp-20f, p.tail)));
}
TL_INLINE float tl_log2(float x) {
  tl_log_parts p = tl_log_split(x);
  float low = __builtin_fmaf(p.f, 0x1.4ae0c0p-26f, p.tail * 0x1.715476p+0f);
  return tl_log_special(x, p.e + __builtin_fmaf(p.f, 0x1.715476p+0f, low));
}
TL_INLINE float tl_log10(float x) {
  tl_log_parts p = tl_log_split(x);
  float low = __builtin_fmaf(p.f, -0x1.5b235ep-27f, __builtin_fmaf(p.tail, 0x1.bcb7b2p-2f, p.e * 0x1.3509f8p-18f));
  return tl_log_special(x, __builtin_fmaf(p.e, 0x1.344p-2f, __builtin_fmaf(p.f, 0x1.bcb7b2p-2f, low)));
}
// The rounding error of 1 + x, which is exact, times the slope of the logarithm there.
TL_INLINE float tl_log1p(float x) {
  float u = 1.0f + x, lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x), y = tl_log(u);
  y = u == 0.0f || u == INFINITY ? y : y + lost / u;
  return u == 1.0f ? x : y;
}

TL_INLINE float tl_tanh(float x) {
  float a = tl_abs(x), s = x * x;
  float q = tl_horner(s, -0x1.555524p-2f, 0x1.1103f2p-3f, -0x1.b7cff0p-5f, 0x1.4f5eeep-6f, -0x1.6970f0p-8f);
  float small = __builtin_fmaf(q * s, a, a);
  float large = 1.0f - 2.0f / (tl_exp(2.0f * a) + 1.0f);
  return tl_with_sign(a < 0.625f ? small : large, x);
}

TL_INLINE float tl_erf(float x) {
  float a = tl_abs(x), s = x * x, t = a > 4.0f ? 4.0f : a;  // erf(4) rounds to 1
  float q = tl_horner(s, 0x1.06eba8p-3f, -0x1.812742p-2f, 0x1.ce2e0ap-4f, -0x1.b80e90p-6f, 0x1.54c7f4p-8f, -0x1.aa3f2cp-11f, 0x1.5cd4aap-14f);
  float small = __builtin_fmaf(q, x, x);
  float l = tl_horner(t, 0x1.6e578ap-13f, -0x1.2127e4p+0f, -0x1.44460cp-1f, -0x1.bb83eap-4f, 0x1.9b8e8ep-6f, -0x1.115ae2p-8f, 0x1.c79162p-12f,
                      -0x1.61eadcp-16f);
  float large = tl_with_sign(1.0f - tl_exp(l), x);
  return a < 0.921875f ? small : large;
}

template <typename T> TL_INLINE T tl_sigmoid(T x) { return (T)1 / ((T)1 + tl_exp(-x)); }
