//! The tensor-core block function T (contract section 5), in integer arithmetic alone.
//!
//! This is the reference: slow, and close enough to the section to be read beside it. Every other
//! implementation of the tier must equal it.

use crate::Dtype;
use crate::contract::{BlockParameters, CANONICAL_NAN_F32};

/// Fraction bits of [`Number::Finite`]'s significand.
const OPERAND_FRACTION: u32 = 23;

/// Fraction bits of a product of two of them.
const PRODUCT_FRACTION: u32 = 2 * OPERAND_FRACTION;

/// The smallest exponent of a normal binary32.
const MIN_EXPONENT: i32 = -126;

/// How a binary floating-point format of at most 32 bits encodes its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    exponent_bits: u32,
    fraction_bits: u32,
    top: TopExponent,
}

/// What the largest exponent field encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TopExponent {
    /// Infinities and NaN.
    Ieee,
    /// Ordinary values, except for the two encodings whose fraction bits are all ones: NaN.
    OneNan,
}

impl Format {
    /// IEEE binary32.
    pub const BINARY32: Self = Self::ieee(8, 23);
    /// bfloat16.
    pub const BF16: Self = Self::ieee(8, 7);
    /// IEEE binary16.
    pub const F16: Self = Self::ieee(5, 10);
    /// 8 bits with 2 fraction bits, infinities and NaN.
    pub const E5M2: Self = Self::ieee(5, 2);
    /// 8 bits with 3 fraction bits, one NaN of each sign and no infinity.
    pub const E4M3: Self = Format {
        exponent_bits: 4,
        fraction_bits: 3,
        top: TopExponent::OneNan,
    };

    const fn ieee(exponent_bits: u32, fraction_bits: u32) -> Self {
        Format {
            exponent_bits,
            fraction_bits,
            top: TopExponent::Ieee,
        }
    }

    /// Bits of [`Number::Finite`]'s significand that are always zero.
    const fn spare_bits(self) -> u32 {
        OPERAND_FRACTION - self.fraction_bits
    }

    /// The value that the low bits of `bits` encode (contract section 5, step 2).
    #[inline]
    pub const fn split(self, bits: u32) -> Number {
        let fraction_mask = (1 << self.fraction_bits) - 1;
        let field_mask = (1 << self.exponent_bits) - 1;
        let fraction = bits & fraction_mask;
        let field = (bits >> self.fraction_bits) & field_mask;
        let negative = (bits >> (self.fraction_bits + self.exponent_bits)) & 1 == 1;
        if field == field_mask {
            match self.top {
                TopExponent::Ieee if fraction == 0 => return Number::Infinity { negative },
                TopExponent::Ieee => return Number::Nan,
                TopExponent::OneNan if fraction == fraction_mask => return Number::Nan,
                TopExponent::OneNan => {}
            }
        }
        // Field 0 holds zeros and subnormals: the exponent of field 1, and no leading one.
        let (leading_one, field) = if field == 0 { (0, 1) } else { (1, field) };
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let significand = leading_one << self.fraction_bits | fraction;
        Number::Finite {
            negative,
            exponent: field as i32 - bias,
            significand: significand << self.spare_bits(),
        }
    }
}

impl From<Dtype> for Format {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Format::BINARY32,
            Dtype::BF16 => Format::BF16,
            Dtype::F16 => Format::F16,
        }
    }
}

/// An operand of the block function, split into sign, exponent and significand by
/// [`Format::split`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// Not a number.
    Nan,
    /// An infinity.
    Infinity {
        /// True for −∞.
        negative: bool,
    },
    /// ±`significand` · 2^(`exponent` − 23).
    Finite {
        /// True for a value with its sign bit set.
        negative: bool,
        /// The exponent: the smallest normal one of the format for subnormals and zeros.
        exponent: i32,
        /// The significand times 2^23: at least 2^23 for a normal value, less for a subnormal
        /// one, 0 for a zero.
        significand: u32,
    },
}

impl Number {
    /// Zero, as the tail of a reduction is padded with.
    pub const ZERO: Self = Format::BINARY32.split(0);
}

/// One of the terms that a block adds: a product, or the value carried in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Term {
    Nan,
    Infinity { negative: bool },
    Finite(FiniteTerm),
}

/// ±`significand` · 2^(`exponent` − 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FiniteTerm {
    negative: bool,
    exponent: i32,
    significand: u64,
}

/// T: `c + Σ a[i]·b[i]` as one block of a tensor core computes it (contract section 5).
///
/// `a` and `b` are the block's operands, at most L of them; missing ones are zeros. The order of
/// the products does not matter. The result is NaN only as [`CANONICAL_NAN_F32`].
///
/// ```
/// use sgemm_bi_core::TensorCoreModel;
/// use sgemm_bi_core::tensor_core::{Format, block};
///
/// let bf16 = |value: f32| Format::BF16.split(value.to_bits() >> 16);
/// let ones = [bf16(1.0); 16];
/// let mut operands = ones;
/// operands[0] = bf16(1.0 + 1.0 / 128.0);
/// let parameters = TensorCoreModel::Hopper.half_precision();
/// assert_eq!(block(&operands, &ones, 0.5, parameters), 16.5 + 1.0 / 128.0);
/// ```
pub fn block(a: &[Number], b: &[Number], c: f32, parameters: BlockParameters) -> f32 {
    let BlockParameters {
        alignment_bits,
        result_bits,
        zero_exponent,
        ..
    } = parameters;
    let products = a.iter().zip(b).map(|(&a, &b)| multiply(a, b));
    let terms: Vec<Term> = products.chain([carried(c)]).collect();

    // Step 1: NaN, then infinities.
    let holds = |term| terms.contains(&term);
    let positive = holds(Term::Infinity { negative: false });
    let negative = holds(Term::Infinity { negative: true });
    if holds(Term::Nan) || (positive && negative) {
        return f32::from_bits(CANONICAL_NAN_F32);
    }
    if positive || negative {
        return infinity(negative);
    }

    // Step 3: the exponent of a zero term.
    let finite = terms.iter().filter_map(|term| match *term {
        Term::Finite(term) if term.significand == 0 => Some(FiniteTerm {
            exponent: zero_exponent,
            ..term
        }),
        Term::Finite(term) => Some(term),
        Term::Nan | Term::Infinity { .. } => None,
    });
    let finite: Vec<FiniteTerm> = finite.collect();

    // Step 4: the largest exponent; c is always among the terms.
    let largest = finite.iter().map(|term| term.exponent).max();
    let largest = largest.unwrap_or(zero_exponent);

    // Step 5: each term truncated to a multiple of 2^(E − F), in units of which it is added. A
    // term is below 2^(F + 2) units, so the sum of a few dozen is far from 2^63.
    let sum = finite.iter().map(|term| {
        let shift = PRODUCT_FRACTION as i32 - alignment_bits + largest - term.exponent;
        let magnitude = term.significand.checked_shr(shift as u32).unwrap_or(0) as i64;
        if term.negative { -magnitude } else { magnitude }
    });
    truncate(sum.sum(), largest - alignment_bits, result_bits)
}

/// Step 3: the exact product, not renormalised.
fn multiply(a: Number, b: Number) -> Term {
    let is_zero = |number| matches!(number, Number::Finite { significand: 0, .. });
    match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) => Term::Nan,
        (Number::Infinity { .. }, other) | (other, Number::Infinity { .. }) if is_zero(other) => {
            Term::Nan
        }
        (Number::Infinity { negative: a }, Number::Infinity { negative: b })
        | (Number::Infinity { negative: a }, Number::Finite { negative: b, .. })
        | (Number::Finite { negative: a, .. }, Number::Infinity { negative: b }) => {
            Term::Infinity { negative: a != b }
        }
        (
            Number::Finite {
                negative: a_negative,
                exponent: a_exponent,
                significand: a_significand,
            },
            Number::Finite {
                negative: b_negative,
                exponent: b_exponent,
                significand: b_significand,
            },
        ) => Term::Finite(FiniteTerm {
            negative: a_negative != b_negative,
            exponent: a_exponent + b_exponent,
            significand: u64::from(a_significand) * u64::from(b_significand),
        }),
    }
}

/// The value carried into a block, as a term.
fn carried(c: f32) -> Term {
    match Format::BINARY32.split(c.to_bits()) {
        Number::Nan => Term::Nan,
        Number::Infinity { negative } => Term::Infinity { negative },
        Number::Finite {
            negative,
            exponent,
            significand,
        } => Term::Finite(FiniteTerm {
            negative,
            exponent,
            significand: u64::from(significand) << (PRODUCT_FRACTION - OPERAND_FRACTION),
        }),
    }
}

/// Step 6: `sum` · 2^`unit` truncated toward zero to `result_bits` fraction bits, with gradual
/// underflow.
#[inline(always)]
fn truncate(sum: i64, unit: i32, result_bits: i32) -> f32 {
    if sum == 0 {
        return 0.0;
    }
    let magnitude = sum.unsigned_abs();
    let exponent = magnitude.ilog2() as i32 + unit;
    if exponent > 127 {
        return infinity(sum < 0);
    }
    // Below the smallest normal exponent the last bit kept stays where it is there.
    let exponent = exponent.max(MIN_EXPONENT);
    let shift = exponent - result_bits - unit;
    let significand = if shift >= 0 {
        magnitude.checked_shr(shift as u32).unwrap_or(0)
    } else {
        magnitude << -shift
    };
    let significand = (significand as u32) << (OPERAND_FRACTION as i32 - result_bits);
    // A normal significand's leading one adds 1 to the exponent field below it.
    let field = (exponent - MIN_EXPONENT) as u32;
    let sign = u32::from(sum < 0) << 31;
    f32::from_bits(sign | ((field << OPERAND_FRACTION) + significand))
}

fn infinity(negative: bool) -> f32 {
    if negative {
        f32::NEG_INFINITY
    } else {
        f32::INFINITY
    }
}

#[cfg(test)]
mod tests;
