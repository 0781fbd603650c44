// sin and cos in float32, vectorisable, for every argument: error at most 1.6 units in the last place.
//
// The argument is reduced as Payne and Hanek do: x = m * 2^(e - 150); of 2/pi only the 96 bits that matter for this e are multiplied by m,
// since what lies above them is whole turns. No float is so large or so near a multiple of pi/2 that the 62 bits kept after the point would
// not do. Words are chosen by masks: a table would cost a gather per element.
#pragma once

// Word `k` + `from` of 0, 2/pi: all ones in the mask of the word that is wanted.
TL_INLINE uint32_t tl_two_over_pi(int32_t k, int from) {
  const uint32_t words[9] = {0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u};
  uint32_t word = 0;
  for (int i = 0; i < 5; ++i) word |= words[i + from] & (uint32_t)-(int32_t)(k == i);
  return word;
}
TL_INLINE uint32_t tl_funnel(uint32_t high, uint32_t low, int32_t shift) { return high << shift | low >> 1 >> (31 - shift); }

struct tl_reduced { float r; uint32_t quadrant; };
TL_INLINE tl_reduced tl_reduce(float x) {
  uint32_t u = tl_bits(x) & 0x7fffffffu;
  int32_t e = (int32_t)(u >> 23), first = e - 120, k = first >> 5, shift = first & 31;  // e >= 126 where the result is used
  uint32_t m = (u & 0x7fffffu) | 0x800000u;
  uint32_t a = tl_two_over_pi(k, 0), b = tl_two_over_pi(k, 1), c = tl_two_over_pi(k, 2), d = tl_two_over_pi(k, 3);
  // Times 2^62; the whole turns fall off the top.
  uint64_t quadrants =
      ((uint64_t)m * tl_funnel(a, b, shift) << 32) + (uint64_t)m * tl_funnel(b, c, shift) + ((uint64_t)m * tl_funnel(c, d, shift) >> 32);
  uint64_t nearest = (quadrants + (1ull << 61)) >> 62;
  double fraction = (double)(int64_t)(quadrants - (nearest << 62)) * 0x1.921fb54442d18p-62;
  tl_reduced reduced;
  bool is_small = u < 0x3f490fdbu;  // below pi/4 the argument itself is exact
  reduced.r = is_small ? tl_float(u) : (float)fraction;
  reduced.quadrant = is_small ? 0u : (uint32_t)nearest;
  return reduced;
}
TL_INLINE float tl_sin_polynomial(float r) {
  float s = r * r;
  return __builtin_fmaf(tl_horner(s, -0x1.555556p-3f, 0x1.111108p-7f, -0x1.a00f74p-13f, 0x1.6ccf5cp-19f) * s, r, r);
}
TL_INLINE float tl_cos_polynomial(float r) {
  float s = r * r;
  float q = tl_horner(s, 0x1.555556p-5f, -0x1.6c16b8p-10f, 0x1.a010d6p-16f, -0x1.241ca8p-22f);
  return __builtin_fmaf(q * s, s, __builtin_fmaf(s, -0.5f, 1.0f));
}
// sin(r + quadrant * pi/2)
TL_INLINE float tl_sin_quadrant(float r, uint32_t quadrant, float x) {
  float y = quadrant & 1 ? tl_cos_polynomial(r) : tl_sin_polynomial(r);
  y = tl_float(tl_bits(y) ^ (quadrant & 2) << 30);
  return tl_abs(x) < INFINITY ? y : NAN;
}
TL_INLINE float tl_sin(float x) {
  tl_reduced p = tl_reduce(x);
  return tl_float(tl_bits(tl_sin_quadrant(p.r, p.quadrant, x)) ^ (tl_bits(x) & 0x80000000u));
}
TL_INLINE float tl_cos(float x) {
  tl_reduced p = tl_reduce(x);
  return tl_sin_quadrant(p.r, p.quadrant + 1, x);
}
TL_INLINE double tl_sin(double x) { return sin(x); }
TL_INLINE double tl_cos(double x) { return cos(x); }
