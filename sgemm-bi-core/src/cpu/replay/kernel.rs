//! The block function T on many output columns at once (contract section 5), and the reference's T
//! for the lanes that this cannot take.
//!
//! Why it is exact. Let E be a lane's largest exponent, within −101 … 120, and all its operands
//! finite. A product of two 16-bit operands has at most 22 significant bits: in f32 it is exact, or
//! below 2^−126 and then less than a unit of 2^(E − F) either way. Times the power 2^(F − E), which
//! is normal, it is exact again, or below 1; so truncating it to an integer is step 5. Sixteen
//! products of significands of at most 2 − 2^−10 stay below 2^31 with F = 25, and the value carried
//! in is below 2^26; lanes whose sum would come near 2^31 are left out. The sum rounded toward zero
//! to f32 is step 6's truncation to 23 fraction bits, and times 2^(E − F), normal too, it neither
//! underflows nor overflows.
//!
//! Where all products are zero T is the identity, whatever the value carried in: it has no bits
//! below 2^(E − F).

use half::f16;

use super::panel::{Lhs, Rhs};
use super::terms::Terms;
use crate::Dtype;
use crate::contract::{BlockParameters, CANONICAL_NAN_F32};
use crate::tensor_core::{self, Format, Number};

/// Exponents of lanes that are computed here.
const EXPONENTS: std::ops::RangeInclusive<i32> = -101..=120;

/// Largest magnitude of the products' sum: the carried value can be added without coming closer
/// to 2^31 than rounding to f32 allows.
const LARGEST_SUM: i32 = 0x77ff_ffff;

/// Below this all products are zero.
const NO_PRODUCT: i32 = -500;

/// How one product's blocks are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arithmetic {
    pub(super) parameters: BlockParameters,
    pub(super) dtype: Dtype,
}

impl Arithmetic {
    /// Carries the chains of a tile, `chain[row][column]`, through the panels.
    #[inline(always)]
    pub(super) fn advance<W: Terms>(&self, w: W, lhs: &Lhs, rhs: &Rhs, chain: &mut [f32]) {
        match self.parameters.length {
            8 => self.tile::<W, 8>(w, lhs, rhs, chain),
            _ => self.tile::<W, 16>(w, lhs, rhs, chain),
        }
    }

    #[inline(always)]
    fn tile<W: Terms, const L: usize>(&self, w: W, lhs: &Lhs, rhs: &Rhs, chain: &mut [f32]) {
        assert_eq!(self.parameters.length, L);
        assert_eq!((rhs.group, rhs.blocks), (2 * W::LANES, lhs.blocks));
        if lhs.blocks == 0 {
            return;
        }
        let rows = lhs.values.len() / lhs.width();
        let groups = rhs.values.len() / (rhs.height() * rhs.group);
        assert_eq!(chain.len(), rows * groups * rhs.group);
        for group in 0..groups {
            let mut row = 0;
            while row < rows {
                row += match rows - row {
                    4.. => self.rows::<W, L, 4>(w, lhs, row, rhs, group, chain),
                    2.. => self.rows::<W, L, 2>(w, lhs, row, rhs, group, chain),
                    _ => self.rows::<W, L, 1>(w, lhs, row, rhs, group, chain),
                };
            }
        }
    }

    /// All blocks of ROWS rows and a group; gives ROWS.
    #[inline(always)]
    fn rows<W: Terms, const L: usize, const ROWS: usize>(
        &self,
        w: W,
        lhs: &Lhs,
        row: usize,
        rhs: &Rhs,
        group: usize,
        chain: &mut [f32],
    ) -> usize {
        let (width, height, columns) = (lhs.width(), rhs.height(), rhs.group);
        let stride = chain.len() / (lhs.values.len() / width);
        let a_values = &lhs.values[row * width..][..ROWS * width];
        let a_exponents = &lhs.exponents[row * width..][..ROWS * width];
        let b_values = &rhs.values[group * height * columns..][..height * columns];
        let b_exponents = &rhs.exponents[group * height * columns..][..height * columns];
        let carried = &mut chain[row * stride + group * columns..];
        assert!(carried.len() >= (ROWS - 1) * stride + columns && width == height);
        let shift = w.int(self.parameters.alignment_bits);
        for block in 0..lhs.blocks {
            let first = block * L;
            let a_at = |i: usize, k: usize| i * width + first + k;
            let b_at = |k: usize| (first + k) * columns;
            // SAFETY: a row has `width` values, of which first + k is one.
            let a_value = |i, k| unsafe { *a_values.get_unchecked(a_at(i, k)) };
            // SAFETY: as above.
            let a_exponent = |i, k| unsafe { *a_exponents.get_unchecked(a_at(i, k)) };
            let b_value = |k, half| {
                // SAFETY: a group has `height` lines of two vectors, of which first + k is one.
                unsafe { w.load(b_values.as_ptr().add(b_at(k) + half * W::LANES)) }
            };
            // SAFETY: as above.
            let b_exponent = |k| unsafe { w.load_exponents(b_exponents.as_ptr().add(b_at(k))) };

            let mut largest = [w.exponents(0); ROWS];
            for k in 0..L {
                let b = b_exponent(k);
                for (i, largest) in largest.iter_mut().enumerate() {
                    let sum = w.exponents_add(b, w.exponents(a_exponent(i, k)));
                    *largest = if k == 0 {
                        sum
                    } else {
                        w.exponents_max(*largest, sum)
                    };
                }
            }

            let c = |carried: &[f32], i: usize, half: usize| {
                // SAFETY: ROWS lines of two vectors were measured above.
                unsafe { w.load(carried.as_ptr().add(i * stride + half * W::LANES)) }
            };
            let products = largest.map(|largest| w.halves(largest));
            let mut exponents = products;
            for (i, exponents) in exponents.iter_mut().enumerate() {
                for (half, exponent) in exponents.iter_mut().enumerate() {
                    *exponent = w.int_max(*exponent, w.exponent(c(carried, i, half)));
                }
            }
            let scales = exponents.map(|e| e.map(|e| w.power(w.int_sub(shift, e))));
            let mut sums = [[w.int(0); 2]; ROWS];
            for k in 0..L {
                let b = [b_value(k, 0), b_value(k, 1)];
                for (i, (sums, scales)) in sums.iter_mut().zip(&scales).enumerate() {
                    let a = w.splat(a_value(i, k));
                    for half in 0..2 {
                        let product = w.multiply(w.multiply(a, b[half]), scales[half]);
                        sums[half] = w.int_add(sums[half], w.truncate(product));
                    }
                }
            }

            for i in 0..ROWS {
                let mut left = 0;
                let mut before = [w.zero(); 2];
                for half in 0..2 {
                    let (sum, exponent) = (sums[i][half], exponents[i][half]);
                    let c = c(carried, i, half);
                    before[half] = c;
                    let term = w.truncate(w.multiply(c, scales[i][half]));
                    let unit = w.power(w.int_sub(exponent, shift));
                    let result = w.multiply(w.toward_zero(w.int_add(sum, term)), unit);
                    let none = w.greater(w.int(NO_PRODUCT), products[i][half]);
                    let result = w.select(none, c, result);
                    // SAFETY: as for `c`.
                    unsafe {
                        let to = carried.as_mut_ptr().add(i * stride + half * W::LANES);
                        w.store(to, result);
                    }
                    let outside = w.lanes(w.greater(w.int(*EXPONENTS.start()), exponent))
                        | w.lanes(w.greater(exponent, w.int(*EXPONENTS.end())))
                        | w.lanes(w.greater(w.int_abs(sum), w.int(LARGEST_SUM)));
                    left |= (outside & !w.lanes(none)) << (half * W::LANES);
                }
                if lhs.special[(row + i) * lhs.blocks + block] {
                    left = u32::MAX;
                }
                left |= rhs.special[group * rhs.blocks + block];
                if left != 0 {
                    let mut c = [0.0; 2 * MOST_LANES];
                    // SAFETY: two vectors fit.
                    unsafe {
                        w.store(c.as_mut_ptr(), before[0]);
                        w.store(c.as_mut_ptr().add(W::LANES), before[1]);
                    }
                    let a = &a_values[i * width + first..][..L];
                    let b = &b_values[first * columns..][..L * columns];
                    let to = &mut carried[i * stride..][..columns];
                    self.one_by_one(a, b, &c[..columns], to, left);
                }
            }
        }
        ROWS
    }

    /// The reference's T for the lanes whose bit is set in `lanes`.
    #[cold]
    #[inline(never)]
    fn one_by_one(&self, a: &[f32], b: &[f32], carried: &[f32], to: &mut [f32], lanes: u32) {
        let columns = to.len();
        let a: Vec<Number> = a.iter().map(|&value| self.number(value)).collect();
        for lane in (0..columns).filter(|lane| lanes >> lane & 1 == 1) {
            let c = carried[lane];
            to[lane] = if c.is_nan() {
                f32::from_bits(CANONICAL_NAN_F32)
            } else {
                let b = b.iter().skip(lane).step_by(columns);
                let b: Vec<Number> = b.map(|&value| self.number(value)).collect();
                tensor_core::block(&a, &b, c, self.parameters)
            };
        }
    }

    /// A widened operand in its own format.
    fn number(&self, value: f32) -> Number {
        let bits = match self.dtype {
            Dtype::F16 => u32::from(f16::from_f32(value).to_bits()),
            _ => value.to_bits() >> 16,
        };
        Format::from(self.dtype).split(bits)
    }
}

/// Lanes of the widest vector.
const MOST_LANES: usize = 16;
