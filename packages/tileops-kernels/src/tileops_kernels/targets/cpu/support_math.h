// Elementary functions of the generated code, overloaded for float and double.
#pragma once

// From the C library: not vectorised.
#define TL_LIBM1(F) TL_INLINE float tl_##F(float x) { return F##f(x); } TL_INLINE double tl_##F(double x) { return F(x); }
#define TL_LIBM2(F) TL_INLINE float tl_##F(float x, float y) { return F##f(x, y); } TL_INLINE double tl_##F(double x, double y) { return F(x, y); }
TL_INLINE float tl_exp10(float x) { return powf(10.0f, x); }
TL_INLINE double tl_exp10(double x) { return pow(10.0, x); }
TL_LIBM1(log10)
TL_LIBM1(log1p)
TL_LIBM1(tan)
TL_LIBM1(sinh)
TL_LIBM1(cosh)
TL_LIBM1(asin)
TL_LIBM1(acos)
TL_LIBM1(atan)
TL_LIBM1(asinh)
TL_LIBM1(acosh)
TL_LIBM1(atanh)
TL_LIBM1(exp)
TL_LIBM1(exp2)
TL_LIBM1(log)
TL_LIBM1(log2)
TL_LIBM1(tanh)
TL_LIBM1(sin)
TL_LIBM1(cos)
TL_LIBM1(erf)
TL_LIBM2(pow)
TL_LIBM2(atan2)
TL_LIBM2(fmod)
TL_LIBM2(hypot)
TL_LIBM2(copysign)
TL_LIBM2(nextafter)

// One instruction each.
#define TL_BUILTIN1(NAME, F) TL_INLINE float tl_##NAME(float x) { return __builtin_##F##f(x); } TL_INLINE double tl_##NAME(double x) { return __builtin_##F(x); }
TL_BUILTIN1(sqrt, sqrt)
TL_BUILTIN1(floor, floor)
TL_BUILTIN1(ceil, ceil)
TL_BUILTIN1(trunc, trunc)
TL_BUILTIN1(round, nearbyint)      // ties to even, as TileLang's T.round on CUDA
TL_BUILTIN1(nearbyint, nearbyint)
TL_BUILTIN1(round_away, round)
TL_INLINE float tl_fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
TL_INLINE double tl_fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
template <typename T> TL_INLINE T tl_rsqrt(T x) { return (T)1 / tl_sqrt(x); }
template <typename T> TL_INLINE T tl_reciprocal(T x) { return (T)1 / x; }
template <typename T> TL_INLINE T tl_sigmoid(T x) { return (T)1 / ((T)1 + tl_exp(-x)); }
