//! The block function T on many output columns at once, in 32-bit integers, with the reference's
//! T for the lanes that hold infinities or NaN.

use super::panel::{LANES, Lhs, Rhs, Split, SplitLanes};
use crate::Dtype;
use crate::contract::{BlockParameters, CANONICAL_NAN_F32, TensorCoreModel};
use crate::cpu::Simd;
use crate::tensor_core::{self, Format};

const AMPERE: usize = TensorCoreModel::Ampere.half_precision().length;
const HOPPER: usize = TensorCoreModel::Hopper.half_precision().length;

/// How one product's blocks are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arithmetic {
    model: TensorCoreModel,
    parameters: BlockParameters,
    format: Format,
    simd: Simd,
}

impl Arithmetic {
    /// The arithmetic of a model for bf16 or f16 operands.
    pub(super) fn new(model: TensorCoreModel, dtype: Dtype, simd: Simd) -> Self {
        Arithmetic {
            model,
            parameters: model.half_precision(),
            format: Format::from(dtype),
            simd,
        }
    }

    /// L.
    pub(super) fn block_length(&self) -> usize {
        self.parameters.length
    }

    /// Carries the chains of a tile, `chain[row][group]`, through the panels.
    pub(super) fn advance(&self, lhs: &Lhs, rhs: &Rhs, chain: &mut [[f32; LANES]]) {
        match self.model {
            TensorCoreModel::Ampere => self.dispatch::<AMPERE>(lhs, rhs, chain),
            TensorCoreModel::Hopper => self.dispatch::<HOPPER>(lhs, rhs, chain),
        }
    }

    fn dispatch<const L: usize>(&self, lhs: &Lhs, rhs: &Rhs, chain: &mut [[f32; LANES]]) {
        match self.simd {
            // SAFETY: an engine holds only a level that its processor has.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => unsafe { self.with_avx512::<L>(lhs, rhs, chain) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => unsafe { self.with_avx2::<L>(lhs, rhs, chain) },
            _ => self.tile::<L>(lhs, rhs, chain),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn with_avx512<const L: usize>(&self, lhs: &Lhs, rhs: &Rhs, chain: &mut [[f32; LANES]]) {
        self.tile::<L>(lhs, rhs, chain);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn with_avx2<const L: usize>(&self, lhs: &Lhs, rhs: &Rhs, chain: &mut [[f32; LANES]]) {
        self.tile::<L>(lhs, rhs, chain);
    }

    #[inline(always)]
    fn tile<const L: usize>(&self, lhs: &Lhs, rhs: &Rhs, chain: &mut [[f32; LANES]]) {
        let groups = rhs.groups();
        for group in 0..groups {
            let columns = chain.iter_mut().skip(group).step_by(groups);
            for (row, chain) in columns.enumerate() {
                let blocks = lhs.blocks::<L>(row).zip(rhs.blocks::<L>(group));
                for ((a, a_special), (b, b_special)) in blocks {
                    let result = self.finite_lanes(a, b, chain);
                    let a_special = if a_special { u16::MAX } else { 0 };
                    let special = a_special | b_special | special_lanes(chain);
                    let carried = std::mem::replace(chain, result);
                    if special != 0 {
                        self.special_lanes(a, b, &carried, chain, special);
                    }
                }
            }
        }
    }

    /// Steps 2 to 6 for lanes whose operands and carried values are finite; others hold any value
    /// afterwards.
    #[inline(always)]
    fn finite_lanes<const L: usize>(
        &self,
        a: &[Split; L],
        b: &[SplitLanes; L],
        carried: &[f32; LANES],
    ) -> [f32; LANES] {
        let alignment_bits = self.parameters.alignment_bits as u32;
        let product_lift = alignment_bits - 2 * self.format.fraction_bits();
        let carried_lift = alignment_bits - Format::BINARY32.fraction_bits();

        let mut carried_exponent = [0i32; LANES];
        let mut carried_significand = [0i32; LANES];
        for lane in 0..LANES {
            let bits = carried[lane].to_bits();
            let field = (bits >> 23 & 0xff) as i32;
            let fraction = (bits & 0x7f_ffff) as i32;
            let significand = fraction | if field == 0 { 0 } else { 1 << 23 };
            carried_significand[lane] = significand;
            carried_exponent[lane] = if significand == 0 {
                self.parameters.zero_exponent
            } else {
                field.max(1) - 127
            };
        }

        let mut largest = carried_exponent;
        for (a, b) in a.iter().zip(b) {
            for (largest, &exponent) in largest.iter_mut().zip(&b.exponents) {
                *largest = (i32::from(a.exponent) + i32::from(exponent)).max(*largest);
            }
        }

        // A term is below 2^(F + 2) in magnitude and rather less than that: sixteen products of
        // significands of at most 2 − 2^-10 stay below 2^31 with F = 25. The carried value is
        // added in 64 bits. A shift by 31 leaves nothing of either.
        let mut sum = [0i32; LANES];
        for (a, b) in a.iter().zip(b) {
            for lane in 0..LANES {
                let exponent = i32::from(a.exponent) + i32::from(b.exponents[lane]);
                let shift = (largest[lane] - exponent).min(31);
                let product = i32::from(a.significand) * i32::from(b.significands[lane]);
                let magnitude = (product.abs() << product_lift) >> shift;
                sum[lane] += if product < 0 { -magnitude } else { magnitude };
            }
        }

        let mut result = [0.0; LANES];
        for lane in 0..LANES {
            let shift = (largest[lane] - carried_exponent[lane]).min(31);
            let magnitude = i64::from((carried_significand[lane] << carried_lift) >> shift);
            let negative = carried[lane].is_sign_negative();
            let term = if negative { -magnitude } else { magnitude };
            let unit = largest[lane] - self.parameters.alignment_bits;
            let sum = i64::from(sum[lane]) + term;
            result[lane] = tensor_core::truncate(sum, unit, self.parameters.result_bits);
        }
        result
    }

    /// The reference's T for the lanes whose bit is set in `lanes`.
    #[cold]
    #[inline(never)]
    fn special_lanes<const L: usize>(
        &self,
        a: &[Split; L],
        b: &[SplitLanes; L],
        carried: &[f32; LANES],
        result: &mut [f32; LANES],
        lanes: u16,
    ) {
        let a = a.map(|split| split.number(self.format));
        for lane in (0..LANES).filter(|lane| lanes >> lane & 1 == 1) {
            result[lane] = if carried[lane].is_nan() {
                f32::from_bits(CANONICAL_NAN_F32)
            } else {
                let b = b.each_ref().map(|b| b.lane(lane).number(self.format));
                tensor_core::block(&a, &b, carried[lane], self.parameters)
            };
        }
    }
}

/// A bit for each lane that is an infinity or NaN.
#[inline(always)]
fn special_lanes(values: &[f32; LANES]) -> u16 {
    let mut mask = 0;
    for (lane, value) in values.iter().enumerate() {
        mask |= u16::from(!value.is_finite()) << lane;
    }
    mask
}
