//! Hand-computed cases of each step of contract section 5.

use super::*;
use crate::TensorCoreModel::{Ampere, Hopper};

const NAN: u32 = CANONICAL_NAN_F32;

fn bf16(bits: u16) -> Number {
    Format::BF16.split(u32::from(bits))
}

fn f16(bits: u16) -> Number {
    Format::F16.split(u32::from(bits))
}

/// 2^`exponent` in bf16.
fn bf16_power(exponent: i32) -> Number {
    bf16(((exponent + 127) as u16) << 7)
}

fn f32_power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[track_caller]
fn check(parameters: BlockParameters, a: &[Number], b: &[Number], c: f32, expected: u32) {
    let got = block(a, b, c, parameters).to_bits();
    assert!(
        got == expected,
        "got {got:08x}, expected {expected:08x} ({parameters:?})"
    );
}

#[track_caller]
fn check_both(a: &[Number], b: &[Number], c: f32, expected: u32) {
    for model in [Ampere, Hopper] {
        check(model.half_precision(), a, b, c, expected);
    }
}

fn finite(negative: bool, exponent: i32, significand: u32) -> Number {
    Number::Finite {
        negative,
        exponent,
        significand,
    }
}

// Step 1.

#[test]
fn nan_wins_over_everything() {
    let (one, inf, nan) = (bf16(0x3f80), bf16(0x7f80), bf16(0x7fc1));
    let negative_nan = bf16(0xff81);
    check_both(&[nan], &[one], 0.0, NAN);
    check_both(&[one], &[negative_nan], 0.0, NAN);
    check_both(&[nan], &[Number::ZERO], 0.0, NAN);
    check_both(&[one, inf], &[nan, one], 0.0, NAN);
    check_both(&[one], &[one], f32::from_bits(0xffc0_0001), NAN);
    check_both(&[inf], &[one], f32::NAN, NAN);
}

#[test]
fn infinity_times_zero_is_nan() {
    for infinity in [bf16(0x7f80), bf16(0xff80), f16(0x7c00), f16(0xfc00)] {
        for zero in [bf16(0), bf16(0x8000)] {
            check_both(&[infinity], &[zero], 1.0, NAN);
            check_both(&[zero], &[infinity], f32::INFINITY, NAN);
        }
        // A subnormal is not a zero.
        let expected = match infinity {
            Number::Infinity { negative: true } => f32::NEG_INFINITY,
            _ => f32::INFINITY,
        };
        check_both(&[infinity], &[bf16(1)], 1.0, expected.to_bits());
    }
}

#[test]
fn opposing_infinities_are_nan() {
    let (one, inf, minus_inf) = (bf16(0x3f80), bf16(0x7f80), bf16(0xff80));
    check_both(&[inf, one], &[one, minus_inf], 0.0, NAN);
    check_both(&[inf], &[one], f32::NEG_INFINITY, NAN);
    check_both(&[inf], &[minus_inf], f32::INFINITY, NAN);
}

#[test]
fn an_infinity_wins_over_finite_terms() {
    let (inf, minus_inf, largest) = (bf16(0x7f80), bf16(0xff80), bf16(0x7f7f));
    let minus_largest = bf16(0xff7f);
    check_both(&[inf, largest], &[largest, minus_largest], 0.0, 0x7f80_0000);
    check_both(&[minus_inf, largest], &[inf, largest], 0.0, 0xff80_0000);
    check_both(&[minus_inf], &[minus_inf], 1.0, 0x7f80_0000);
    check_both(&[largest], &[largest], f32::NEG_INFINITY, 0xff80_0000);
}

// Step 2.

#[test]
fn numbers_split_by_their_own_format() {
    assert_eq!(bf16(0x3fc0), finite(false, 0, 0xc0_0000));
    assert_eq!(bf16(0x8001), finite(true, -126, 1 << 16));
    assert_eq!(bf16(0x0080), finite(false, -126, 1 << 23));
    assert_eq!(f16(0xbe00), finite(true, 0, 0xc0_0000));
    assert_eq!(f16(0x0001), finite(false, -14, 1 << 13));
    assert_eq!(f16(0x03ff), finite(false, -14, 0x3ff << 13));
    assert_eq!(f16(0x7bff), finite(false, 15, 0x7ff << 13));
    assert_eq!(Format::BINARY32.split(1), finite(false, -126, 1));
    assert_eq!(Format::BINARY32.split(0x8000_0000), finite(true, -126, 0));
    assert_eq!(bf16(0x7f80), Number::Infinity { negative: false });
    assert_eq!(f16(0xfc00), Number::Infinity { negative: true });
    assert_eq!(f16(0x7c01), Number::Nan);
    let (e4m3, e5m2) = (Format::E4M3, Format::E5M2);
    assert_eq!(e4m3.split(0x01), finite(false, -6, 1 << 20));
    assert_eq!(e4m3.split(0x7e), finite(false, 8, 0b1110 << 20));
    assert_eq!(e4m3.split(0x78), finite(false, 8, 1 << 23));
    assert_eq!(e4m3.split(0xff), Number::Nan);
    assert_eq!(e5m2.split(0x81), finite(true, -14, 1 << 21));
    assert_eq!(e5m2.split(0x7b), finite(false, 15, 0b111 << 21));
    assert_eq!(e5m2.split(0xfc), Number::Infinity { negative: true });
    assert_eq!(e5m2.split(0x7d), Number::Nan);
}

#[test]
fn a_subnormal_keeps_its_formats_smallest_exponent() {
    // 2^-24 (the smallest f16) times 2^15 is 2^-9, held as 2^-10 · 2^1: E is 1, not -9, so on
    // Hopper the unit is 2^-24 and c = 2^-25 is lost; beside a normal 2^-9 it would be kept.
    let hopper = Hopper.half_precision();
    let c = f32_power(-25);
    check(hopper, &[f16(0x0001)], &[f16(0x7800)], c, 0x3b00_0000);
    let kept = f32_power(-9) + f32_power(-25);
    check(hopper, &[f16(0x1800)], &[f16(0x3c00)], c, kept.to_bits());
    // The same product where E is the same on Ampere, whose unit is one bit coarser.
    let ampere = Ampere.half_precision();
    let c = f32_power(-24);
    check(ampere, &[f16(0x0001)], &[f16(0x7800)], c, 0x3b00_0000);
    let kept = f32_power(-9) + f32_power(-24);
    check(hopper, &[f16(0x0001)], &[f16(0x7800)], c, kept.to_bits());
}

// Step 3.

#[test]
fn products_are_not_renormalised() {
    // 1.5 · 1.5 = 2.25 has exponent 0: on Hopper the unit is 2^-25, and c = 2^-25 survives the
    // subtraction of the rest (on Ampere the unit is 2^-24 and it does not).
    let (a, b) = ([bf16(0x3fc0), bf16(0x3fc0)], [bf16(0x3fc0), bf16(0xbfc0)]);
    let c = f32_power(-25);
    check(Hopper.half_precision(), &a, &b, c, c.to_bits());
    check(Ampere.half_precision(), &a, &b, c, 0);
}

#[test]
fn a_zero_term_takes_the_smallest_exponent_not_its_operands() {
    // 0 · 2^127 does not raise E: 2^-100 survives.
    let (zero, huge, small) = (bf16(0), bf16(0x7f00), bf16_power(-50));
    check_both(&[zero, small], &[huge, small], 0.0, (27) << 23);
    check_both(&[zero, small], &[huge, small], -0.0, (27) << 23);
}

#[test]
fn the_exponent_of_zero_bounds_the_unit_from_below() {
    // With c = 0 and smaller products, E = e₀: terms are whole units of 2^(e₀ − F), and in a
    // result a last place is 2^-149, many units. Per model: the unit's exponent, the number of
    // products, and each one's size in quarters of a unit.
    let cases = [
        // 7 · 18 = 126 units of the 128 that make a last place; 18.5 each would make it.
        (Ampere, -156, 7, 0x4a, 0),
        // 7 · 19 = 133; a coarser unit would leave 7 · 9 = 63 of 64.
        (Ampere, -156, 7, 0x4c, 1),
        // 15 · 34 = 510 units of 512; 34.75 each would make it.
        (Hopper, -158, 15, 0x8b, 0),
        // 15 · 35 = 525; a coarser unit would leave 15 · 17 = 255 of 256.
        (Hopper, -158, 15, 0x8c, 1),
    ];
    for (model, unit, count, quarters, expected) in cases {
        let value = f32_power(unit - 2 + 90) * quarters as f32;
        let a = vec![bf16((value.to_bits() >> 16) as u16); count];
        let b = vec![bf16_power(-90); count];
        check(model.half_precision(), &a, &b, 0.0, expected);
    }
}

// Steps 4 and 5.

#[test]
fn terms_are_truncated_toward_zero_one_by_one() {
    // c = 1, eight products of ±2^-k each.
    let power = |exponent| bf16_power(exponent);
    let minus_one = bf16(0xbf80);
    for (model, unit) in [(Ampere, -24), (Hopper, -25)] {
        let parameters = model.half_precision();
        // Half a unit each: all lost, from above and from below.
        let half = [power(unit - 1); 8];
        check(parameters, &half, &[power(0); 8], 1.0, 1f32.to_bits());
        check(parameters, &half, &[minus_one; 8], 1.0, 1f32.to_bits());
        // One and a half units: one is kept.
        let more = [bf16(((unit + 127) as u16) << 7 | 0x40); 8];
        let kept = 8.0 * f32_power(unit);
        let below_one = 1.0 - kept;
        check(
            parameters,
            &more,
            &[power(0); 8],
            1.0,
            (1.0 + kept).to_bits(),
        );
        check(parameters, &more, &[minus_one; 8], 1.0, below_one.to_bits());
    }
}

#[test]
fn c_is_truncated_like_any_term() {
    // c's exponent is 25 below E: on Ampere it lies under the unit, on Hopper 1.99 becomes 1.
    let c = f32::from_bits((127 - 25) << 23 | 0x7f_ffff);
    let (a, b) = ([bf16(0x3f80); 2], [bf16(0x3f80), bf16(0xbf80)]);
    check(Ampere.half_precision(), &a, &b, c, 0);
    check(Hopper.half_precision(), &a, &b, c, f32_power(-25).to_bits());
}

#[test]
fn the_order_of_products_does_not_matter() {
    let a: Vec<Number> = (0..8).map(|i| bf16(0x3f81 + 37 * i)).collect();
    let b: Vec<Number> = (0..8).map(|i| bf16(0xbf13 ^ (i << 11))).collect();
    for model in [Ampere, Hopper] {
        let parameters = model.half_precision();
        let forward = block(&a, &b, 0.75, parameters);
        for turn in 1..8 {
            let (mut a, mut b) = (a.clone(), b.clone());
            a.rotate_left(turn);
            b.rotate_left(turn);
            check(parameters, &a, &b, 0.75, forward.to_bits());
        }
    }
}

// Step 6.

#[test]
fn a_zero_sum_is_positive() {
    check_both(&[], &[], -0.0, 0);
    check_both(&[bf16(0x8000)], &[bf16(0x3f80)], -0.0, 0);
    check_both(&[bf16(0x3f80)], &[bf16(0x3f80)], -1.0, 0);
}

#[test]
fn the_sum_is_truncated_toward_zero() {
    // Four products of 2^-24 beside c = 2: the sum ends in 2^-22. One alone is lost, and one
    // taken away lowers the last place.
    let (tiny, one, minus_one) = (bf16_power(-24), bf16(0x3f80), bf16(0xbf80));
    let hopper = Hopper.half_precision();
    check(hopper, &[tiny; 3], &[one; 3], 2.0, 0x4000_0000);
    check(hopper, &[tiny; 4], &[one; 4], 2.0, 0x4000_0001);
    check(hopper, &[tiny; 3], &[minus_one; 3], -2.0, 0xc000_0000);
    check(hopper, &[tiny], &[minus_one], 2.0, 0x3fff_ffff);
    check(hopper, &[tiny], &[one], -2.0, 0xbfff_ffff);
}

#[test]
fn fewer_result_bits_are_kept_with_eight_bit_operands() {
    let (one, two) = (Format::E4M3.split(0x38), Format::E4M3.split(0x40));
    for model in [Ampere, Hopper] {
        let parameters = model.eight_bit();
        // 4 + 2^-11 needs 13 fraction bits; 8 + 2^-11 is truncated.
        check(parameters, &[two], &[two], f32_power(-11), 0x4080_0400);
        check(
            parameters,
            &[two; 2],
            &[two; 2],
            f32_power(-11),
            0x4100_0000,
        );
        check(parameters, &[one], &[one], f32_power(-14), 0x3f80_0000);
    }
}

#[test]
fn underflow_is_gradual_and_truncated() {
    let unit = |exponent| [bf16_power(-100), bf16_power(exponent + 100)];
    for (exponent, expected) in [
        (-126, 0x0080_0000),
        (-127, 0x0040_0000),
        (-149, 1),
        (-150, 0),
    ] {
        let [a, b] = unit(exponent);
        check_both(&[a], &[b], 0.0, expected);
    }
    // 2^-149 + 2^-150 is truncated to 2^-149, and its negative toward zero too.
    let ([a, b], [c, d]) = (unit(-149), unit(-150));
    check_both(&[a, c], &[b, d], 0.0, 1);
    let minus = bf16(0x8000 | (127 - 100) << 7);
    check_both(&[minus, minus], &[b, d], 0.0, 0x8000_0001);
    // A nonzero sum that underflows entirely keeps its sign.
    check_both(&[minus], &[d], 0.0, 0x8000_0000);
    // Subnormal c passes through.
    check_both(&[], &[], f32::from_bits(0x8000_0001), 0x8000_0001);
}

#[test]
fn overflow_is_an_infinity() {
    let (large, one, minus_one) = (bf16(0x7f00), bf16(0x3f80), bf16(0xbf80));
    check_both(&[large], &[one], f32_power(127), 0x7f80_0000);
    check_both(&[large], &[one], f32::MAX, 0x7f80_0000);
    check_both(&[large], &[minus_one], -f32_power(127), 0xff80_0000);
    check_both(&[large], &[large], 0.0, 0x7f80_0000);
    // The largest finite value is reached by truncation, never passed by it.
    let tiny = bf16_power(102);
    check_both(&[tiny], &[one], f32::MAX, 0x7f7f_ffff);
    // Terms beyond the range cancel exactly.
    check_both(&[large, large], &[large, bf16(0xff00)], 0.0, 0);
}
