//! The fused multiply-add of binary32 on processors without the instruction: exact, and without a
//! branch, so that loops over it vectorise.

/// `a · b + c` with one rounding to nearest even, for every value: infinities, subnormals and
/// signed zeros as IEEE 754 has them. A NaN's payload is not promised.
///
/// Uses the processor's instruction where the target has one.
#[inline(always)]
pub(in crate::cpu) fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        emulated(a, b, c)
    }
}

/// [`mul_add`] by binary64 additions and multiplications.
///
/// The product of two binary32 values is exact in binary64, and TwoSum gives the sum and its exact
/// error. Where the sum is inexact its last bit is made odd, towards the exact value: rounded so,
/// with 53 bits for a result of 24, a second rounding gives what a single one would (Boldo and
/// Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
/// odd", 2008). Nothing overflows or is subnormal in binary64: products of binary32 values lie
/// between 2^−298 and 2^256.
#[inline(always)]
fn emulated(a: f32, b: f32, c: f32) -> f32 {
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    let c_part = sum - product;
    let error = (product - (sum - c_part)) + (c - c_part);
    // Not `error != 0`: after an infinity the error is NaN, and the sum must stay.
    let inexact = (error > 0.0) | (error < 0.0);
    let bits = sum.to_bits();
    let even = bits & 1 == 0;
    // One up in magnitude where the exact value lies beyond the sum, one down where it lies before:
    // 1 or −1 from the signs' difference.
    let outward = ((bits ^ error.to_bits()) as i64 >> 63) as u64 | 1;
    let odd = bits.wrapping_add(if inexact & even { outward } else { 0 });
    f64::from_bits(odd) as f32
}

#[cfg(test)]
mod tests {
    use super::emulated;

    fn check(a: f32, b: f32, c: f32) {
        let (got, expected) = (emulated(a, b, c), a.mul_add(b, c));
        let equal = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(
            equal,
            "{:08x} · {:08x} + {:08x}: got {:08x}, expected {:08x}",
            a.to_bits(),
            b.to_bits(),
            c.to_bits(),
            got.to_bits(),
            expected.to_bits()
        );
    }

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        }

        /// Any bit pattern.
        fn bits(&mut self) -> f32 {
            f32::from_bits(self.next() as u32)
        }

        /// Any sign and fraction, with this biased exponent.
        fn with_exponent(&mut self, exponent: u32) -> f32 {
            f32::from_bits(self.next() as u32 & 0x807F_FFFF | exponent.clamp(0, 254) << 23)
        }
    }

    #[test]
    fn equals_the_instruction_on_any_bits() {
        let mut random = Random(1);
        for _ in 0..2_000_000 {
            let [a, b, c] = std::array::from_fn(|_| random.bits());
            check(a, b, c);
        }
    }

    /// Exponents for which the terms overlap, cancel, or nearly do.
    #[test]
    fn equals_the_instruction_where_terms_meet() {
        let mut random = Random(2);
        for _ in 0..2_000_000 {
            let a = 64 + (random.next() % 128) as u32;
            let b = 64 + (random.next() % 128) as u32;
            let c = (a + b + (random.next() % 64) as u32).saturating_sub(127 + 32);
            let (a, b) = (random.with_exponent(a), random.with_exponent(b));
            check(a, b, random.with_exponent(c));
        }
    }

    /// Results that are subnormal or at the edge of the range.
    #[test]
    fn equals_the_instruction_at_both_ends_of_the_range() {
        let mut random = Random(3);
        for _ in 0..1_000_000 {
            let a = (random.next() % 64) as u32;
            let b = 64 + (random.next() % 64) as u32;
            let c = (random.next() % 32) as u32;
            let (tiny, small) = (random.with_exponent(a), random.with_exponent(b));
            check(tiny, small, random.with_exponent(c));
            let (huge, large) = (random.with_exponent(254 - a), random.with_exponent(b + 64));
            check(huge, large, random.with_exponent(254 - c));
        }
    }

    /// The product a hair off the midpoint of two neighbours of c, and c at powers of two, where
    /// the neighbours lie at unequal distances.
    #[test]
    fn equals_the_instruction_near_halves() {
        let mut random = Random(4);
        for round in 0..1_000_000u32 {
            let exponent = 60 + (random.next() % 130) as u32;
            let mut c = random.with_exponent(exponent);
            if round % 4 == 0 {
                c = f32::from_bits(c.to_bits() & 0xFF80_0000);
            }
            let scale = 0.5 + 0.5 * (random.next() % 3) as f32;
            let half = (f32::from_bits(c.to_bits() + 1) - c) * 0.5 * scale;
            let off = f32::from_bits(0x3F80_0000u32.wrapping_add((random.next() % 9) as u32) - 4);
            let sign = if random.next() & 1 == 0 { 1.0 } else { -1.0 };
            check(half, sign * off, c);
            check(half * 2.0f32.powi(-8), sign * off * 256.0, c);
        }
    }

    #[test]
    fn equals_the_instruction_on_special_values() {
        let positive = [
            0.0,
            f32::from_bits(1),
            f32::from_bits(2),
            f32::from_bits(0x007F_FFFF),
            f32::MIN_POSITIVE,
            f32::from_bits(0x0080_0001),
            f32::EPSILON,
            f32::EPSILON / 2.0,
            0.5,
            f32::from_bits(0x3F7F_FFFF),
            1.0,
            f32::from_bits(0x3F80_0001),
            1.5,
            2.0,
            3.0,
            16_777_215.0,
            16_777_216.0,
            2.0f32.powi(64),
            2.0f32.powi(-64),
            2.0f32.powi(-75),
            2.0f32.powi(127),
            f32::from_bits(0x7F7F_FFFE),
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
        ];
        let values: Vec<f32> = positive.iter().flat_map(|&v| [v, -v]).collect();
        for &a in &values {
            for &b in &values {
                for &c in &values {
                    check(a, b, c);
                }
            }
        }
    }
}
