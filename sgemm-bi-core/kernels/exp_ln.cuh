// exp and ln as the one sequence of binary64 operations that contract section 9.1 writes down;
// `src/math.rs` is the same on a CPU, and a test compares the constants.
#pragma once

__device__ __forceinline__ double from_bits(unsigned long long bits) {
    return __longlong_as_double(static_cast<long long>(bits));
}

constexpr unsigned long long ROUND_TO_INTEGER = 0x4338000000000000;  // 1.5·2^52
constexpr unsigned long long LOG2_E = 0x3FF71547652B82FE;
constexpr unsigned long long LN_2_HIGH = 0x3FE62E42FEFA3800;
constexpr unsigned long long LN_2_LOW = 0x3D2EF35793C76730;
constexpr unsigned long long SQRT_HALF = 0x3FE6A09E667F3BCD;

// The highest degree first.
__device__ constexpr unsigned long long EXP_SERIES[14] = {
    0x3DE6124613A86D09, 0x3E21EED8EFF8D898, 0x3E5AE64567F544E4, 0x3E927E4FB7789F5C,
    0x3EC71DE3A556C734, 0x3EFA01A01A01A01A, 0x3F2A01A01A01A01A, 0x3F56C16C16C16C17,
    0x3F81111111111111, 0x3FA5555555555555, 0x3FC5555555555555, 0x3FE0000000000000,
    0x3FF0000000000000, 0x3FF0000000000000,
};
__device__ constexpr unsigned long long LN_SERIES[9] = {
    0x3FBAF286BCA1AF28, 0x3FBE1E1E1E1E1E1E, 0x3FC1111111111111,
    0x3FC3B13B13B13B14, 0x3FC745D1745D1746, 0x3FCC71C71C71C71C,
    0x3FD2492492492492, 0x3FD999999999999A, 0x3FE5555555555555,
};

__device__ __forceinline__ double exp64(double x) {
    // Comparisons, not min and max: a NaN must pass.
    x = x > 200.0 ? 200.0 : x;
    x = x < -200.0 ? -200.0 : x;
    const double shifted = __dadd_rn(__dmul_rn(x, from_bits(LOG2_E)), from_bits(ROUND_TO_INTEGER));
    const double k = __dsub_rn(shifted, from_bits(ROUND_TO_INTEGER));
    const double r = __dsub_rn(__dsub_rn(x, __dmul_rn(k, from_bits(LN_2_HIGH))),
                               __dmul_rn(k, from_bits(LN_2_LOW)));
    double p = from_bits(EXP_SERIES[0]);
#pragma unroll
    for (int n = 1; n < 14; ++n) p = __dadd_rn(__dmul_rn(p, r), from_bits(EXP_SERIES[n]));
    const unsigned long long bits = static_cast<unsigned long long>(__double_as_longlong(shifted));
    return __dmul_rn(p, from_bits((bits << 52) + 0x3FF0000000000000));
}

__device__ __forceinline__ double ln64(double s) {
    if (s != s || s < 0.0) return from_bits(0x7FF8000000000000);
    if (s < from_bits(0x0010000000000000)) return from_bits(0xFFF0000000000000);
    const long long bits = __double_as_longlong(s);
    if (bits == 0x7FF0000000000000) return s;
    // s = 2^exponent·m with √½ ≤ m < √2.
    const int exponent = static_cast<int>((bits - static_cast<long long>(SQRT_HALF)) >> 52);
    const double m = __longlong_as_double(bits - exponent * (1ll << 52));
    const double k = exponent;
    const double f = __dsub_rn(m, 1.0);
    const double t = __ddiv_rn(f, __dadd_rn(2.0, f));
    const double w = __dmul_rn(t, t);
    double q = from_bits(LN_SERIES[0]);
#pragma unroll
    for (int n = 1; n < 9; ++n) q = __dadd_rn(__dmul_rn(q, w), from_bits(LN_SERIES[n]));
    const double l = __dadd_rn(__dadd_rn(t, t), __dmul_rn(t, __dmul_rn(w, q)));
    return __dadd_rn(__dmul_rn(k, from_bits(LN_2_HIGH)),
                     __dadd_rn(__dmul_rn(k, from_bits(LN_2_LOW)), l));
}
