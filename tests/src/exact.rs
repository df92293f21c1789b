//! The contract's arithmetic once more, in exact integers: the guard of the reference itself.
//!
//! A finite binary32 product and its addend are multiples of 2⁻²⁹⁸ below 2²⁵⁷, so their sum is
//! held exactly in 640 bits and rounded once. Nothing here uses floating-point arithmetic, and
//! nothing is shared with the crates under test.

use sgemm_bi_core::Dtype;

/// A binary floating-point format, by its field widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    exponent_bits: u32,
    fraction_bits: u32,
}

/// The exponent of the unit in which sums are held.
const UNIT: i32 = -298;
const LIMBS: usize = 10;

/// A multiple of 2^UNIT in two's complement, least significant limb first.
type Fixed = [u64; LIMBS];

/// A decoded value; finite ones are ±magnitude · 2^exponent.
#[derive(Clone, Copy)]
enum Value {
    Nan,
    Infinite {
        negative: bool,
    },
    Finite {
        negative: bool,
        magnitude: u64,
        exponent: i32,
    },
}

impl Format {
    /// IEEE binary32.
    pub const F32: Format = Format {
        exponent_bits: 8,
        fraction_bits: 23,
    };
    /// bfloat16.
    pub const BF16: Format = Format {
        exponent_bits: 8,
        fraction_bits: 7,
    };
    /// IEEE binary16.
    pub const F16: Format = Format {
        exponent_bits: 5,
        fraction_bits: 10,
    };

    /// The format of a dtype.
    pub fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Format::F32,
            Dtype::BF16 => Format::BF16,
            Dtype::F16 => Format::F16,
            other => panic!("a dtype the tests do not know: {other}"),
        }
    }

    /// The bits of positive infinity.
    pub fn infinity(self) -> u32 {
        ((1 << self.exponent_bits) - 1) << self.fraction_bits
    }

    /// The bits of negative zero: the sign alone.
    pub fn sign(self) -> u32 {
        1 << (self.exponent_bits + self.fraction_bits)
    }

    /// The canonical NaN of contract section 7: every bit but the sign.
    pub fn nan(self) -> u32 {
        self.sign() - 1
    }

    /// The exponent of the smallest subnormal.
    fn smallest_exponent(self) -> i32 {
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        1 - bias - self.fraction_bits as i32
    }

    fn decode(self, bits: u32) -> Value {
        let negative = bits & self.sign() != 0;
        let biased = (bits & !self.sign()) >> self.fraction_bits;
        let fraction = u64::from(bits & ((1 << self.fraction_bits) - 1));
        if biased == (1 << self.exponent_bits) - 1 {
            return if fraction == 0 {
                Value::Infinite { negative }
            } else {
                Value::Nan
            };
        }
        let hidden = if biased == 0 {
            0
        } else {
            1 << self.fraction_bits
        };
        let exponent = self.smallest_exponent() + biased.max(1) as i32 - 1;
        Value::Finite {
            negative,
            magnitude: hidden | fraction,
            exponent,
        }
    }

    /// Rounds to nearest, ties to even; overflow gives infinity, underflow is gradual.
    fn round(self, negative: bool, magnitude: &Fixed) -> u32 {
        let sign = if negative { self.sign() } else { 0 };
        let Some(top) = highest_bit(magnitude) else {
            return sign;
        };
        let kept = top as i32 + UNIT - self.fraction_bits as i32;
        let mut exponent = kept.max(self.smallest_exponent());
        // Every format's smallest exponent is above the unit, so at least one bit is cut off.
        let shift = (exponent - UNIT) as usize;
        let mut significand = bits_from(magnitude, shift);
        let half = bits_from(magnitude, shift - 1) & 1 == 1;
        let below = any_below(magnitude, shift - 1);
        let up = half && (below || significand & 1 == 1);
        significand += u64::from(up);
        if significand == 2 << self.fraction_bits {
            significand /= 2;
            exponent += 1;
        }
        if significand < 1 << self.fraction_bits {
            return sign | significand as u32;
        }
        let biased = (exponent - self.smallest_exponent() + 1) as u32;
        if biased >= (1 << self.exponent_bits) - 1 {
            return sign | self.infinity();
        }
        sign | (biased << self.fraction_bits)
            | (significand as u32 & ((1 << self.fraction_bits) - 1))
    }

    /// Converts binary32 bits to this format with one rounding; NaN becomes the canonical one.
    pub fn from_f32(self, bits: u32) -> u32 {
        match Format::F32.decode(bits) {
            Value::Nan => self.nan(),
            Value::Infinite { negative } => {
                self.infinity() | if negative { self.sign() } else { 0 }
            }
            Value::Finite {
                negative,
                magnitude,
                exponent,
            } => self.round(negative, &shifted(magnitude, exponent)),
        }
    }

    /// Converts this format's bits to binary32, exactly; NaN becomes the canonical one.
    pub fn to_f32(self, bits: u32) -> u32 {
        match self.decode(bits) {
            Value::Nan => Format::F32.nan(),
            Value::Infinite { negative } => {
                Format::F32.infinity() | if negative { Format::F32.sign() } else { 0 }
            }
            Value::Finite {
                negative,
                magnitude,
                exponent,
            } => Format::F32.round(negative, &shifted(magnitude, exponent)),
        }
    }
}

/// The fused multiply-add of IEEE 754 on binary32 bits; NaN is canonical.
pub fn fma(a: u32, b: u32, c: u32) -> u32 {
    let f = Format::F32;
    let signed_infinity = |negative| f.infinity() | if negative { f.sign() } else { 0 };
    let sign_of = |bits: u32| bits & f.sign() != 0;
    let product_negative = sign_of(a) != sign_of(b);
    match (f.decode(a), f.decode(b), f.decode(c)) {
        (Value::Nan, _, _) | (_, Value::Nan, _) | (_, _, Value::Nan) => f.nan(),
        (Value::Infinite { .. }, Value::Finite { magnitude: 0, .. }, _)
        | (Value::Finite { magnitude: 0, .. }, Value::Infinite { .. }, _) => f.nan(),
        (Value::Infinite { .. }, _, addend) | (_, Value::Infinite { .. }, addend) => match addend {
            Value::Infinite { negative } if negative != product_negative => f.nan(),
            _ => signed_infinity(product_negative),
        },
        (_, _, Value::Infinite { negative }) => signed_infinity(negative),
        (
            Value::Finite {
                magnitude: ma,
                exponent: ea,
                ..
            },
            Value::Finite {
                magnitude: mb,
                exponent: eb,
                ..
            },
            Value::Finite {
                negative,
                magnitude: mc,
                exponent: ec,
            },
        ) => {
            let product = signed(product_negative, &shifted(ma * mb, ea + eb));
            let sum = added(&product, &signed(negative, &shifted(mc, ec)));
            if sum == [0; LIMBS] {
                // Zeros of one sign keep it; any other exact zero is +0.0 in this rounding mode.
                return if product_negative && negative {
                    f.sign()
                } else {
                    0
                };
            }
            let negative = sum[LIMBS - 1] >> 63 == 1;
            f.round(negative, &signed(negative, &sum))
        }
    }
}

/// The addition of IEEE 754 on binary32 bits; NaN is canonical.
pub fn add(a: u32, b: u32) -> u32 {
    fma(a, 1.0f32.to_bits(), b)
}

/// Contract sections 3 and 4: one output element before its epilogue, from the binary32 bits of
/// its row and its column. The reduction is cut into `chunk` elements.
pub fn product(row: &[u32], column: &[u32], start: u32, chunk: usize) -> u32 {
    let chunks = row.chunks(chunk).zip(column.chunks(chunk));
    chunks.fold(add(start, 0), |total, (row, column)| {
        add(
            total,
            row.iter()
                .zip(column)
                .fold(0, |acc, (&a, &b)| fma(a, b, acc)),
        )
    })
}

/// Contract section 3, last paragraph: one element of a bias gradient.
pub fn column_sum(column: &[u32], start: u32, chunk: usize) -> u32 {
    column.chunks(chunk).fold(add(start, 0), |total, chunk| {
        add(total, chunk.iter().fold(0, |acc, &value| add(acc, value)))
    })
}

fn highest_bit(value: &Fixed) -> Option<usize> {
    let limb = value.iter().rposition(|&limb| limb != 0)?;
    Some(64 * limb + value[limb].ilog2() as usize)
}

/// The 64 bits from bit `index` on.
fn bits_from(value: &Fixed, index: usize) -> u64 {
    let limb = |i: usize| u128::from(value.get(i).copied().unwrap_or(0));
    let (i, bit) = (index / 64, index % 64);
    ((limb(i) | limb(i + 1) << 64) >> bit) as u64
}

/// Whether a bit below bit `index` is set.
fn any_below(value: &Fixed, index: usize) -> bool {
    let (i, bit) = (index / 64, index % 64);
    value[..i].iter().any(|&limb| limb != 0) || value[i] & ((1 << bit) - 1) != 0
}

/// magnitude · 2^exponent in units of 2^UNIT.
fn shifted(magnitude: u64, exponent: i32) -> Fixed {
    let mut fixed = [0; LIMBS];
    let shift = (exponent - UNIT) as usize;
    let wide = u128::from(magnitude) << (shift % 64);
    fixed[shift / 64] = wide as u64;
    fixed[shift / 64 + 1] = (wide >> 64) as u64;
    fixed
}

/// The value, or its negative.
fn signed(negative: bool, value: &Fixed) -> Fixed {
    if !negative {
        return *value;
    }
    let mut one = [0; LIMBS];
    one[0] = 1;
    added(&value.map(|limb| !limb), &one)
}

/// The sum; it fits by construction.
fn added(a: &Fixed, b: &Fixed) -> Fixed {
    let mut carry = 0;
    std::array::from_fn(|i| {
        let sum = u128::from(a[i]) + u128::from(b[i]) + carry;
        carry = sum >> 64;
        sum as u64
    })
}
