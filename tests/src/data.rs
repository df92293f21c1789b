//! Seeded operands: the generator and the kinds of data.

use sgemm_bi_core::Dtype;

use crate::{Buffer, Format};

/// The SplitMix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014), all arithmetic modulo 2⁶⁴:
///
/// ```text
/// state = state + 0x9E3779B97F4A7C15
/// z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9     (z from the new state)
/// z = (z ^ (z >> 27)) * 0x94D049BB133111EB
/// output z ^ (z >> 31)
/// ```
///
/// ```
/// let mut generator = sgemm_bi_tests::SplitMix64(1234567);
/// assert_eq!(generator.next(), 6457827717110365317);
/// assert_eq!(generator.next(), 3203168211198807973);
/// ```
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A value below `bound`, by remainder.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A kind of operand. Each element takes one or more words of [`SplitMix64`]; the binary32 value
/// they give is rounded to the dtype, nearest even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// Near a normal distribution of variance 1/3: four consecutive 24-bit fields (bits 63…40 and
    /// 39…16 of two words), summed, less 2²⁵, times 2⁻²⁴.
    Normal,
    /// Uniform in [−1, 1): bits 63…40 of a word, less 2²³, times 2⁻²³.
    Uniform,
    /// Uniform as above, times a power of two from 2⁻²⁴ to 2²³ (bits 5…0 modulo 48; f16: 2⁻¹² to
    /// 2¹¹, modulo 24).
    Wide,
    /// Uniform, times a power of two such that products of two values underflow: 2⁻⁸⁵ to 2⁻⁶² (f16,
    /// whose values are themselves subnormal then: 2⁻²⁴ to 2⁻¹³).
    Tiny,
    /// Wide, but one element in 16 (bits 9…6) is the entry bits 15…10 modulo 16 of a table of
    /// ±0, ±1, the smallest and largest subnormal, the smallest and largest normal, infinities
    /// and NaN.
    Special,
}

impl Data {
    /// Every kind.
    pub const ALL: [Data; 5] = [
        Data::Normal,
        Data::Uniform,
        Data::Wide,
        Data::Tiny,
        Data::Special,
    ];

    /// The name in golden files.
    pub fn name(self) -> &'static str {
        match self {
            Data::Normal => "normal",
            Data::Uniform => "uniform",
            Data::Wide => "wide",
            Data::Tiny => "tiny",
            Data::Special => "special",
        }
    }

    /// `len` elements of the dtype.
    pub fn fill(self, dtype: Dtype, len: usize, seed: u64) -> Buffer {
        let mut generator = SplitMix64(seed);
        Buffer::from_bits(dtype, len, |_| self.element(dtype, &mut generator))
    }

    fn element(self, dtype: Dtype, generator: &mut SplitMix64) -> u32 {
        let format = Format::of(dtype);
        let half = dtype == Dtype::F16;
        match self {
            Data::Normal => {
                let (a, b) = (generator.next(), generator.next());
                let fields = [
                    a >> 40,
                    (a >> 16) & 0xFF_FFFF,
                    b >> 40,
                    (b >> 16) & 0xFF_FFFF,
                ];
                let centred = fields.iter().sum::<u64>() as i32 - (1 << 25);
                format.from_f32((centred as f32 * power_of_two(-24)).to_bits())
            }
            Data::Uniform => format.from_f32(uniform(generator.next()).to_bits()),
            Data::Wide => format.from_f32(wide(generator.next(), half).to_bits()),
            Data::Tiny => {
                let word = generator.next();
                let exponent = if half {
                    (word % 64 % 12) as i32 - 24
                } else {
                    (word % 64 % 24) as i32 - 85
                };
                format.from_f32((uniform(word) * power_of_two(exponent)).to_bits())
            }
            Data::Special => {
                let word = generator.next();
                if (word >> 6).is_multiple_of(16) {
                    special_values(format)[((word >> 10) % 64 % 16) as usize]
                } else {
                    format.from_f32(wide(word, half).to_bits())
                }
            }
        }
    }
}

/// The table of [`Data::Special`]: sixteen values of the format.
pub fn special_values(format: Format) -> [u32; 16] {
    let (sign, infinity) = (format.sign(), format.infinity());
    let one = format.from_f32(1.0f32.to_bits());
    // The smallest normal has only the lowest exponent bit, which is infinity's lowest set bit.
    let normal = infinity & infinity.wrapping_neg();
    let positive = [
        0,
        one,
        1,
        normal - 1,
        normal,
        infinity - 1,
        infinity,
        infinity | 1,
    ];
    std::array::from_fn(|i| positive[i / 2] | if i % 2 == 1 { sign } else { 0 })
}

/// Bits 63…40, as a value in [−1, 1).
fn uniform(word: u64) -> f32 {
    ((word >> 40) as i32 - (1 << 23)) as f32 * power_of_two(-23)
}

fn wide(word: u64, half: bool) -> f32 {
    let exponent = if half {
        (word % 64 % 24) as i32 - 12
    } else {
        (word % 64 % 48) as i32 - 24
    };
    uniform(word) * power_of_two(exponent)
}

/// 2^exponent, normal.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_elements_and_another_gives_others() {
        for data in Data::ALL {
            for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
                let bits = data.fill(dtype, 64, 1).all_bits();
                assert_eq!(bits, data.fill(dtype, 64, 1).all_bits());
                assert_ne!(bits, data.fill(dtype, 64, 2).all_bits());
                // A longer buffer begins with the shorter one.
                assert_eq!(bits, data.fill(dtype, 65, 1).all_bits()[..64]);
            }
        }
    }

    #[test]
    fn special_data_holds_every_special_value() {
        for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
            let bits = Data::Special.fill(dtype, 4096, 3).all_bits();
            for value in special_values(Format::of(dtype)) {
                assert!(bits.contains(&value), "{dtype} {value:#x}");
            }
        }
    }

    #[test]
    fn tiny_products_are_subnormal_or_zero() {
        let Buffer::F32(values) = Data::Tiny.fill(Dtype::F32, 256, 4) else {
            unreachable!()
        };
        let products = values.chunks(2).map(|pair| (pair[0] * pair[1]).abs());
        assert!(products.clone().all(|p| p < f32::MIN_POSITIVE * 16.0));
        assert!(products.filter(|p| p.is_subnormal()).count() > 16);
    }
}
