//! The contract's chain for single elements, to check what is timed.

use half::{bf16, f16};
use sgemm_bi_core::contract::CHUNK;
use sgemm_bi_core::{Dtype, Gemm};

/// Repeated random values: element i of an operand is element (i + its offset) mod the length.
pub struct Values {
    pub block: Vec<f32>,
}

impl Values {
    /// A prime number of values in ±1, so that no row of a power of two meets itself again.
    pub fn new() -> Self {
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let block = std::iter::repeat_with(next).take(4_194_301).collect();
        Values { block }
    }

    /// The value as an operand of this dtype holds it, widened.
    fn at(&self, dtype: Dtype, index: usize) -> f32 {
        rounded(dtype, self.block[index % self.block.len()])
    }

    /// Element (row, col) of the product of operands that begin at these offsets of the block,
    /// rounded to the output's dtype and widened again (contract sections 3, 4 and 7).
    pub fn product(&self, gemm: &Gemm, [lhs, rhs]: [usize; 2], row: usize, col: usize) -> f32 {
        let mut total = 0.0f32;
        for first in (0..gemm.reduction()).step_by(CHUNK) {
            let mut chain = 0.0f32;
            for r in first..gemm.reduction().min(first + CHUNK) {
                let (a, b) = (gemm.lhs(), gemm.rhs());
                let a = lhs + row * a.row_stride + r * a.col_stride;
                let b = rhs + r * b.row_stride + col * b.col_stride;
                chain = (self.at(gemm.dtype(), a)).mul_add(self.at(gemm.dtype(), b), chain);
            }
            total += chain;
        }
        rounded(gemm.out_dtype(), total)
    }
}

/// A value rounded to a dtype and widened again.
fn rounded(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::BF16 => bf16::from_f32(value).to_f32(),
        Dtype::F16 => f16::from_f32(value).to_f32(),
        _ => value,
    }
}
