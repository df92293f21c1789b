//! exp and ln against double-double arithmetic: an independent evaluation with about 95 bits.

use super::{exp, exp64, ln, ln64};

/// An unevaluated sum of two f64, the second at most half an ulp of the first.
#[derive(Clone, Copy, Debug)]
struct Double {
    high: f64,
    low: f64,
}

impl Double {
    const ONE: Double = Double {
        high: 1.0,
        low: 0.0,
    };

    fn sum(a: f64, b: f64) -> Self {
        let high = a + b;
        let from_b = high - a;
        let low = (a - (high - from_b)) + (b - from_b);
        Double { high, low }
    }

    fn product(a: f64, b: f64) -> Self {
        let high = a * b;
        let low = a.mul_add(b, -high);
        Double { high, low }
    }

    fn add(self, other: Self) -> Self {
        let high = Self::sum(self.high, other.high);
        let low = Self::sum(self.low, other.low);
        let middle = Self::sum(high.high, high.low + low.high);
        Self::sum(middle.high, middle.low + low.low)
    }

    fn times(self, other: Self) -> Self {
        let high = Self::product(self.high, other.high);
        let low = high.low + (self.high * other.low + self.low * other.high);
        Self::sum(high.high, low)
    }

    fn over(self, divisor: f64) -> Self {
        let high = self.high / divisor;
        let rest = (-high).mul_add(divisor, self.high) + self.low;
        Self::sum(high, rest / divisor)
    }

    /// (self − value) / value, for a self that is finite and not zero.
    fn relative_error_of(self, value: f64) -> f64 {
        (((self.high - value) + self.low) / self.high).abs()
    }

    /// The nearest f32, ties to even. Rounding `high` alone is wrong only where it is a tie.
    fn to_f32(self) -> f32 {
        // Round to odd: a set last bit stands for "a little more", so that one more rounding is
        // exact. 53 bits are enough above the 24 of f32, subnormals included.
        let mut bits = self.high.to_bits();
        if self.low != 0.0 {
            if (self.low < 0.0) == (self.high > 0.0) {
                bits -= 1;
            }
            bits |= 1;
        }
        f64::from_bits(bits) as f32
    }
}

/// ln 2 to 106 bits: two f64, each nearest to what is left.
const LN_2: Double = Double {
    high: f64::from_bits(0x3FE6_2E42_FEFA_39EF),
    low: f64::from_bits(0x3C7A_BC9E_3B39_803F),
};

/// e^x for |x| ≤ 700: x = k·ln 2 + 256·r, a Taylor series at r, eight squarings.
fn exp_double(x: f64) -> Double {
    let k = (x / std::f64::consts::LN_2).round();
    let multiple = Double { high: -k, low: 0.0 }.times(LN_2);
    let reduced = Double { high: x, low: 0.0 }.add(multiple);
    let r = Double {
        high: reduced.high / 256.0,
        low: reduced.low / 256.0,
    };
    let mut sum = Double::ONE;
    for n in (1..=12).rev() {
        sum = Double::ONE.add(sum.times(r).over(f64::from(n)));
    }
    for _ in 0..8 {
        sum = sum.times(sum);
    }
    let power = 2f64.powi(k as i32);
    Double {
        high: sum.high * power,
        low: sum.low * power,
    }
}

/// ln s by one Newton step from the platform's ln: y + ln(1 + d), d = s·e^−y − 1.
fn ln_double(s: f64) -> Double {
    let y = s.ln();
    let minus_one = Double {
        high: -1.0,
        low: 0.0,
    };
    let d = Double { high: s, low: 0.0 }
        .times(exp_double(-y))
        .add(minus_one);
    let second = -0.5 * d.high * d.high;
    Double { high: y, low: 0.0 }
        .add(d)
        .add(Double::sum(second, 0.0))
}

/// A fixed sequence of 64-bit words (splitmix64).
fn words(seed: u64) -> impl Iterator<Item = u64> {
    (1u64..).map(move |i| {
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / 2f64.powi(53)
}

fn assert_bits(argument: impl std::fmt::Debug, got: f32, want: f32) {
    assert_eq!(
        got.to_bits(),
        want.to_bits(),
        "at {argument:?}: got {:#010X}, want {:#010X}",
        got.to_bits(),
        want.to_bits()
    );
}

#[test]
fn constants_are_what_they_are_said_to_be() {
    let factorials = (1..=13).scan(1f64, |f, n| {
        *f *= f64::from(n);
        Some(*f)
    });
    for (n, factorial) in (1..).zip(factorials) {
        assert_eq!(super::EXP_SERIES[13 - n], 1.0 / factorial, "1/{n}!");
    }
    for n in 1..=9 {
        let want = 2.0 / (2 * n + 1) as f64;
        assert_eq!(super::LN_SERIES[9 - n], want, "2/{}", 2 * n + 1);
    }
    assert_eq!(super::EXP_LIMIT, 200.0);
    assert_eq!(super::ROUND_TO_INTEGER, 1.5 * 2f64.powi(52));
    assert_eq!(super::LOG2_E, std::f64::consts::LOG2_E);
    assert_eq!(
        super::SQRT_HALF_BITS,
        std::f64::consts::FRAC_1_SQRT_2.to_bits()
    );
    // The low part is the nearest f64 to ln 2 less the high part.
    let low = (LN_2.high - super::LN_2_HIGH) + LN_2.low;
    assert_eq!(super::LN_2_LOW, low);
    assert_eq!(super::LN_2_HIGH.to_bits() & 0x7FF, 0);
    // ln 2 itself, against an exponential that does not use it (k = 0): e^(ln 2 / 2)² = 2.
    let half = exp_double(LN_2.high / 4.0);
    let fourth = half.times(half).times(half.times(half));
    let tail = Double {
        high: 1.0,
        low: LN_2.low,
    };
    let two = fourth.times(tail);
    assert!(
        ((two.high - 2.0) + two.low).abs() < 1e-28,
        "e^ln 2 = 2 + {:e}",
        (two.high - 2.0) + two.low
    );
}

#[test]
fn exact_and_end_cases() {
    assert_eq!(exp64(0.0).to_bits(), 1f64.to_bits());
    assert_eq!(exp64(-0.0).to_bits(), 1f64.to_bits());
    assert_eq!(ln64(1.0).to_bits(), 0f64.to_bits());

    let largest = 88.722_83_f32;
    assert!(exp(largest).is_finite() && exp(largest.next_up()) == f32::INFINITY);
    let smallest = -103.972_08_f32;
    assert_bits(smallest, exp(smallest), f32::from_bits(1));
    assert_bits(smallest.next_down(), exp(smallest.next_down()), 0.0);
    for x in [1e3, f64::MAX, f64::INFINITY] {
        assert_bits(x, exp64(x) as f32, f32::INFINITY);
        assert_bits(-x, exp64(-x) as f32, 0.0);
    }
    for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7F80_0001)] {
        assert_eq!(exp(nan).to_bits(), 0x7FFF_FFFF);
        assert_eq!(ln(nan).to_bits(), 0x7FFF_FFFF);
    }
    for negative in [-1.0, f32::NEG_INFINITY, -f32::from_bits(1)] {
        assert_eq!(ln(negative).to_bits(), 0x7FFF_FFFF);
    }
    assert_bits(0.0, ln(0.0), f32::NEG_INFINITY);
    assert_bits(-0.0, ln(-0.0), f32::NEG_INFINITY);
    assert_bits("inf", ln(f32::INFINITY), f32::INFINITY);
    assert_eq!(ln64(f64::from_bits(1)), f64::NEG_INFINITY);
    let least = ln_double(f64::from(f32::from_bits(1)));
    assert_bits("2^-149", ln(f32::from_bits(1)), least.to_f32());
}

/// Bits that a second implementation, written from contract section 9 alone, gave.
#[test]
fn pinned_bits() {
    for (x, want) in [
        (1.0, 0x4005_BF0A_8B14_576A_u64),
        (-1.0, 0x3FD7_8B56_362C_EF38),
        (-0.3, 0x3FE7_B4C8_69C3_7C05),
        (-17.25, 0x3E61_4F49_DBC5_078C),
        (88.0, 0x47DF_1056_DC7B_F22D),
        (-103.5, 0x3699_A733_E385_2834),
        (250.0, 0x51F7_3F60_EA79_F5BA),
        (-250.0, 0x2DE6_0618_1205_4CFA),
    ] {
        let got = exp64(x).to_bits();
        assert_eq!(got, want, "exp64({x}) = {got:#018X}, want {want:#018X}");
    }
    for (s, want) in [
        (2.0, 0x3FE6_2E42_FEFA_39EF_u64),
        (10.0, 0x4002_6BB1_BBB5_5516),
        (0.7, 0xBFD6_D3C3_24E1_3F50),
        (1.0000001, 0x3E7A_D7F2_847B_6491),
        (50257.0, 0x4025_A659_F6BE_D8C8),
        (1e-40, 0xC057_069E_2AA2_AA5B),
    ] {
        let got = ln64(s).to_bits();
        assert_eq!(got, want, "ln64({s}) = {got:#018X}, want {want:#018X}");
    }
}

#[test]
fn exp64_is_within_3e_16() {
    let mut worst = (0f64, 0f64);
    let mut check = |x: f64| {
        let exact = exp_double(x);
        let error = exact.relative_error_of(exp64(x));
        if error > worst.0 {
            worst = (error, x);
        }
        assert_bits(x, exp64(x) as f32, exact.to_f32());
    };
    for word in words(1).take(400_000) {
        check(-105.0 + 195.0 * unit(word));
    }
    // Every exponent, both signs, and around the ends of the reduction.
    for exponent in -60..=7 {
        for word in words(exponent as u64).take(2_000) {
            let x = (1.0 + unit(word)) * 2f64.powi(exponent);
            check(x.min(200.0));
            check(-x.min(200.0));
        }
    }
    for k in -150..=128 {
        let edge = (f64::from(k) + 0.5) * std::f64::consts::LN_2;
        for step in -50..=50 {
            check(edge * (1.0 + f64::from(step) * f64::EPSILON));
        }
    }
    println!("exp64: worst relative error {:e} at {:e}", worst.0, worst.1);
    assert!(worst.0 < 3e-16, "{worst:?}");
}

#[test]
fn ln64_is_within_4e_16() {
    let mut worst = (0f64, 0f64);
    let mut check = |s: f64| {
        let exact = ln_double(s);
        if exact.high == 0.0 {
            assert_eq!(ln64(s).to_bits(), 0);
            return;
        }
        let error = exact.relative_error_of(ln64(s));
        if error > worst.0 {
            worst = (error, s);
        }
        assert_bits(s, ln64(s) as f32, exact.to_f32());
    };
    for exponent in -149..=127 {
        for word in words(exponent as u64).take(2_000) {
            check((1.0 + unit(word)) * 2f64.powi(exponent));
        }
    }
    // Near 1, where the result is small, and at the ends of the reduction.
    for exponent in 1..=52 {
        for word in words(exponent).take(2_000) {
            let step = (1.0 + unit(word)) * 2f64.powi(-(exponent as i32) - 1);
            check(1.0 + step);
            check(1.0 - step);
        }
    }
    for step in -1_000..=1_000 {
        check(std::f64::consts::SQRT_2 * (1.0 + f64::from(step) * f64::EPSILON));
        check(std::f64::consts::FRAC_1_SQRT_2 * (1.0 + f64::from(step) * f64::EPSILON));
    }
    println!("ln64: worst relative error {:e} at {:e}", worst.0, worst.1);
    assert!(worst.0 < 4e-16, "{worst:?}");
}

/// True when a binary64 result lies so near to a rounding boundary of f32 that an error of 64 of
/// its ulps could change the rounded value.
fn is_hard(value: f64) -> bool {
    // The boundary has the 29 bits below f32's last place at 1000…; subnormal results have more.
    let exponent = ((value.to_bits() >> 52) & 0x7FF) as i32 - 1023;
    let below = 29 + (-126 - exponent).clamp(0, 23);
    let rest = value.to_bits() & ((1 << below) - 1);
    rest.abs_diff(1 << (below - 1)) <= 64 || exponent < -149
}

/// The arguments at which ln is not correctly rounded: its error is at most 0.5000000009 ulp there.
const LN_WRONGLY_ROUNDED: [u32; 5] = [
    0x3C41_3D3A,
    0x4117_8FEB,
    0x4C5D_65A5,
    0x65D8_90D3,
    0x6F31_A8EC,
];

/// The f32 in a range of bits at which the rounded function differs from double-double arithmetic,
/// which is asked wherever the rounding could go wrong, and at every 4,099th of the others.
fn wrongly_rounded(
    bits: impl Iterator<Item = u32>,
    function: fn(f64) -> f64,
    exact: fn(f64) -> Double,
) -> Vec<u32> {
    let is_wrong = |&bits: &u32| {
        let x = f64::from(f32::from_bits(bits));
        let value = function(x);
        (is_hard(value) || bits % 4_099 == 0)
            && (value as f32).to_bits() != exact(x).to_f32().to_bits()
    };
    bits.filter(is_wrong).collect()
}

/// Every `step`th f32 whose exponential is neither 0 nor +∞ after rounding, and a little more.
fn exp_arguments(step: usize) -> impl Iterator<Item = u32> {
    let limit = 110f32.to_bits();
    let sign = 1 << 31;
    (0..=limit)
        .chain(sign..=sign + limit)
        .step_by(step)
        .filter(|&bits| f32::from_bits(bits) < 89.0)
}

/// Every `step`th positive finite f32 but 1.
fn ln_arguments(step: usize) -> impl Iterator<Item = u32> {
    let all = 1..f32::INFINITY.to_bits();
    all.step_by(step).filter(|&bits| bits != 1f32.to_bits())
}

#[test]
fn a_sample_of_every_f32() {
    assert_eq!(wrongly_rounded(exp_arguments(1_021), exp64, exp_double), []);
    assert_eq!(wrongly_rounded(ln_arguments(1_021), ln64, ln_double), []);
}

/// Two minutes when optimised: `cargo test --release -p sgemm-bi-core every_f32 -- --ignored`.
#[test]
#[ignore = "walks every f32; run it after a change of this module"]
fn all_of_every_f32() {
    assert_eq!(wrongly_rounded(exp_arguments(1), exp64, exp_double), []);
    let ln = wrongly_rounded(ln_arguments(1), ln64, ln_double);
    assert_eq!(ln, LN_WRONGLY_ROUNDED);
}

#[test]
fn ln_at_its_worst_is_half_an_ulp_and_a_billionth() {
    for bits in LN_WRONGLY_ROUNDED {
        let x = f32::from_bits(bits);
        let exact = ln_double(f64::from(x));
        let got = ln(x);
        let ulp = f64::from(got.abs().next_up()) - f64::from(got.abs());
        let error = ((exact.high - f64::from(got)) + exact.low).abs() / ulp;
        assert!(
            0.5 < error && error < 0.500_000_000_9,
            "ln({x:e}): {error} ulp"
        );
    }
}
