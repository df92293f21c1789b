//! exp and ln as one written-down sequence of binary64 operations (contract section 9), which any
//! device can replay bit for bit.
//!
//! Every step is an IEEE 754 binary64 addition, subtraction, multiplication or division rounded
//! to nearest even, a comparison, or an operation on the bits. Nothing is fused and no table is
//! read.
//!
//! | function | error, against the exact value |
//! |---|---|
//! | [`exp64`], for \|x\| ≤ 200 | below 3e-16 relative |
//! | [`ln64`], for every normal s | below 4e-16 relative |
//! | [`exp`] | none beyond the rounding: correctly rounded at every f32 |
//! | [`ln`] | at most 0.5000000009 ulp of f32: correctly rounded at every f32 but five |
//!
//! The tests of this module measure all of it against double-double arithmetic: the binary64
//! functions at samples of every exponent (worst seen: 1.9e-16 and 3.2e-16), the f32 functions at
//! every f32 (`all_of_every_f32`, two minutes).

use crate::contract::CANONICAL_NAN_F32;

/// Arguments of [`exp64`] are clamped to ± this.
const EXP_LIMIT: f64 = from_bits(0x4069_0000_0000_0000); // 200

/// 1.5·2^52: added to a number below 2^51, it leaves the nearest integer in the low bits.
const ROUND_TO_INTEGER: f64 = from_bits(0x4338_0000_0000_0000);

/// log2(e), rounded to nearest.
const LOG2_E: f64 = from_bits(0x3FF7_1547_652B_82FE);

/// ln 2 truncated to 42 significant bits: its product with an integer of 11 bits is exact.
const LN_2_HIGH: f64 = from_bits(0x3FE6_2E42_FEFA_3800);

/// ln 2 − [`LN_2_HIGH`], rounded to nearest.
const LN_2_LOW: f64 = from_bits(0x3D2E_F357_93C7_6730);

/// √½ rounded to nearest: the least mantissa of [`ln64`]'s reduction.
const SQRT_HALF_BITS: u64 = 0x3FE6_A09E_667F_3BCD;

/// The Taylor series of e^r, highest degree first: 1/13!, 1/12!, …, 1/1!, 1/0!, each rounded to
/// nearest. At |r| ≤ ½·ln 2 what it leaves out is 5.8e-18 of the value.
const EXP_SERIES: [f64; 14] = [
    from_bits(0x3DE6_1246_13A8_6D09), // 1/13!
    from_bits(0x3E21_EED8_EFF8_D898), // 1/12!
    from_bits(0x3E5A_E645_67F5_44E4), // 1/11!
    from_bits(0x3E92_7E4F_B778_9F5C), // 1/10!
    from_bits(0x3EC7_1DE3_A556_C734), // 1/9!
    from_bits(0x3EFA_01A0_1A01_A01A), // 1/8!
    from_bits(0x3F2A_01A0_1A01_A01A), // 1/7!
    from_bits(0x3F56_C16C_16C1_6C17), // 1/6!
    from_bits(0x3F81_1111_1111_1111), // 1/5!
    from_bits(0x3FA5_5555_5555_5555), // 1/4!
    from_bits(0x3FC5_5555_5555_5555), // 1/3!
    from_bits(0x3FE0_0000_0000_0000), // 1/2!
    from_bits(0x3FF0_0000_0000_0000), // 1/1!
    from_bits(0x3FF0_0000_0000_0000), // 1/0!
];

/// The series of 2·artanh(t) after its first term, highest degree first: 2/19, 2/17, …, 2/3, each
/// rounded to nearest. At |t| ≤ (√2 − 1)/(√2 + 1) what it leaves out is 2.4e-17 of the value.
const LN_SERIES: [f64; 9] = [
    from_bits(0x3FBA_F286_BCA1_AF28), // 2/19
    from_bits(0x3FBE_1E1E_1E1E_1E1E), // 2/17
    from_bits(0x3FC1_1111_1111_1111), // 2/15
    from_bits(0x3FC3_B13B_13B1_3B14), // 2/13
    from_bits(0x3FC7_45D1_745D_1746), // 2/11
    from_bits(0x3FCC_71C7_1C71_C71C), // 2/9
    from_bits(0x3FD2_4924_9249_2492), // 2/7
    from_bits(0x3FD9_9999_9999_999A), // 2/5
    from_bits(0x3FE5_5555_5555_5555), // 2/3
];

const fn from_bits(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// e^x, meant to be rounded to f32 (contract section 9.1).
///
/// Arguments above 200 are read as 200 and those below −200 as −200; both results, and so those
/// of ±∞, are finite and positive here and become +∞ and +0.0 when they are rounded to f32. A NaN
/// gives a NaN whose bits are not defined. e^±0 is exactly 1.
///
/// ```
/// use sgemm_bi_core::math::exp64;
///
/// assert_eq!(exp64(0.0).to_bits(), 1f64.to_bits());
/// assert_eq!(exp64(1.0) as f32, std::f32::consts::E);
/// assert_eq!(exp64(f64::NEG_INFINITY) as f32, 0.0);
/// ```
#[inline(always)]
pub fn exp64(x: f64) -> f64 {
    // Comparisons, not min and max: a NaN must pass.
    let x = if x > EXP_LIMIT { EXP_LIMIT } else { x };
    let x = if x < -EXP_LIMIT { -EXP_LIMIT } else { x };
    let shifted = x * LOG2_E + ROUND_TO_INTEGER;
    let k = shifted - ROUND_TO_INTEGER;
    let r = (x - k * LN_2_HIGH) - k * LN_2_LOW;
    let mut p = EXP_SERIES[0];
    for coefficient in &EXP_SERIES[1..] {
        p = p * r + coefficient;
    }
    // The low 12 bits of `shifted` are k modulo 2^12, so this is 2^k.
    let power = (shifted.to_bits() << 52).wrapping_add(0x3FF0_0000_0000_0000);
    p * from_bits(power)
}

/// ln s for a normal or zero s (contract section 9.1).
///
/// ±0 and the subnormal numbers of binary64 (no f32 widens to one) give −∞, a negative number or
/// a NaN gives the quiet NaN 0x7FF8000000000000, +∞ gives +∞. ln 1 is exactly +0.0.
///
/// ```
/// use sgemm_bi_core::math::ln64;
///
/// assert_eq!(ln64(1.0).to_bits(), 0f64.to_bits());
/// assert_eq!(ln64(2.0), std::f64::consts::LN_2);
/// assert_eq!(ln64(0.0), f64::NEG_INFINITY);
/// ```
#[inline]
pub fn ln64(s: f64) -> f64 {
    if s.is_nan() || s < 0.0 {
        return from_bits(0x7FF8_0000_0000_0000);
    }
    if s < f64::MIN_POSITIVE {
        return f64::NEG_INFINITY;
    }
    if s == f64::INFINITY {
        return s;
    }
    // s = 2^k·m with √½ ≤ m < √2.
    let k = (s.to_bits() as i64 - SQRT_HALF_BITS as i64) >> 52;
    let m = from_bits(s.to_bits().wrapping_sub((k as u64) << 52));
    let k = k as f64;
    let f = m - 1.0;
    let t = f / (2.0 + f);
    let w = t * t;
    let mut q = LN_SERIES[0];
    for coefficient in &LN_SERIES[1..] {
        q = q * w + coefficient;
    }
    let ln_m = (t + t) + t * (w * q);
    k * LN_2_HIGH + (k * LN_2_LOW + ln_m)
}

/// e^x rounded to f32: [`exp64`] of the widened argument, rounded once. NaN is canonical.
///
/// Above 88.7228 it is +∞, below −103.9721 it is +0.0, and subnormal results are kept.
///
/// ```
/// assert_eq!(sgemm_bi_core::math::exp(1.0), std::f32::consts::E);
/// ```
#[inline]
pub fn exp(x: f32) -> f32 {
    canonical(exp64(f64::from(x)) as f32)
}

/// ln x rounded to f32: [`ln64`] of the widened argument, rounded once. NaN is canonical.
///
/// ```
/// assert_eq!(sgemm_bi_core::math::ln(10.0), std::f32::consts::LN_10);
/// ```
#[inline]
pub fn ln(x: f32) -> f32 {
    canonical(ln64(f64::from(x)) as f32)
}

fn canonical(value: f32) -> f32 {
    if value.is_nan() {
        f32::from_bits(CANONICAL_NAN_F32)
    } else {
        value
    }
}

/// Every constant, in the order in which a kernel has them.
#[cfg(all(test, feature = "cuda"))]
pub(crate) fn constants() -> Vec<u64> {
    let single = [ROUND_TO_INTEGER, LOG2_E, LN_2_HIGH, LN_2_LOW];
    let mut all: Vec<u64> = single.iter().map(|c| c.to_bits()).collect();
    all.push(SQRT_HALF_BITS);
    all.extend(EXP_SERIES.iter().chain(&LN_SERIES).map(|c| c.to_bits()));
    all
}

#[cfg(test)]
mod tests;
