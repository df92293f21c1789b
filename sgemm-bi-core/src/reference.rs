//! The naive reference: `docs/contract.md` line by line, slow and obvious. Every engine must equal
//! it, and golden hashes come from it alone.

mod softmax;

use std::ops::Range;

use crate::contract::{BlockParameters, CHUNK};
use crate::error::Result;
use crate::operands::with_slice;
use crate::tensor_core::{self, Format, Number};
use crate::{BiasGradient, Element, Gemm, Operands, SliceMut, SliceRef, Tier};

pub use softmax::{cross_entropy, cross_entropy_backward, log_softmax, log_softmax_backward};

/// Computes a product element by element (contract sections 1 to 7).
///
/// Bits: the contract's, by definition. Errors: those of [`Gemm::validate`], and
/// [`Error::UnsupportedTier`](crate::Error::UnsupportedTier).
pub fn gemm(gemm: &Gemm, mut operands: Operands<'_>) -> Result<()> {
    gemm.validate(&operands)?;
    if gemm.is_empty() {
        return Ok(()); // A batch of nothing may have any number of entries.
    }
    for entry in 0..gemm.batch_len() {
        let (lhs_offset, rhs_offset, out_offset) = gemm.batch_offsets(entry);
        for row in 0..gemm.rows() {
            for col in 0..gemm.cols() {
                let (lhs, rhs, out) = (gemm.lhs(), gemm.rhs(), gemm.out());
                let a_at = |r| lhs.offset + lhs_offset + row * lhs.row_stride + r * lhs.col_stride;
                let b_at = |r| rhs.offset + rhs_offset + r * rhs.row_stride + col * rhs.col_stride;
                let at = out.offset + out_offset + row * out.row_stride + col * out.col_stride;
                let start = if gemm.accumulates() {
                    widen(operands.out.as_ref(), at)
                } else {
                    0.0
                };
                let chain = |range: Range<usize>| match gemm.tier() {
                    Tier::Scalar => {
                        let a = |r| widen(operands.lhs, a_at(r));
                        let b = |r| widen(operands.rhs, b_at(r));
                        scalar_chain(range, a, b)
                    }
                    Tier::TensorCore(model) => {
                        let a = |r| number(operands.lhs, a_at(r));
                        let b = |r| number(operands.rhs, b_at(r));
                        tensor_core_chain(range, model.half_precision(), a, b)
                    }
                };
                let mut total = sum_of_chunks(start, gemm.reduction(), chain);
                if let Some(bias) = operands.bias {
                    total += widen(bias, col);
                }
                store(&mut operands.out, at, total);
            }
        }
    }
    Ok(())
}

/// Computes a bias gradient column by column (contract sections 1 and 3).
///
/// Errors: those of [`BiasGradient::validate`].
pub fn bias_gradient<'a>(
    problem: &BiasGradient,
    dy: impl Into<SliceRef<'a>>,
    db: impl Into<SliceMut<'a>>,
) -> Result<()> {
    let (dy, mut db) = (dy.into(), db.into());
    problem.validate(dy, &db)?;
    let view = problem.view;
    for col in 0..problem.cols {
        let start = if problem.accumulate {
            widen(db.as_ref(), col)
        } else {
            0.0
        };
        let total = sum_of_chunks(start, problem.rows, |rows| {
            rows.fold(0.0, |acc, row| {
                acc + widen(
                    dy,
                    view.offset + row * view.row_stride + col * view.col_stride,
                )
            })
        });
        store(&mut db, col, total);
    }
    Ok(())
}

/// Section 3: the chunks' results added in ascending order to the start, −0.0 read as +0.0.
fn sum_of_chunks(start: f32, reduction: usize, chain: impl Fn(Range<usize>) -> f32) -> f32 {
    let mut total = start + 0.0;
    for first in (0..reduction).step_by(CHUNK) {
        total += chain(first..reduction.min(first + CHUNK));
    }
    total
}

/// Section 4: one fused multiply-add per element of the reduction, from +0.0.
fn scalar_chain(range: Range<usize>, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    range.fold(0.0, |acc, r| a(r).mul_add(b(r), acc))
}

/// Section 5: blocks of L consecutive elements of the reduction, the last one padded with zeros,
/// from +0.0.
fn tensor_core_chain(
    range: Range<usize>,
    parameters: BlockParameters,
    a: impl Fn(usize) -> Number,
    b: impl Fn(usize) -> Number,
) -> f32 {
    let block_of = |first: usize, operand: &dyn Fn(usize) -> Number| {
        let padded = |r| {
            if r < range.end {
                operand(r)
            } else {
                Number::ZERO
            }
        };
        (first..first + parameters.length)
            .map(padded)
            .collect::<Vec<_>>()
    };
    let firsts = range.clone().step_by(parameters.length);
    firsts.fold(0.0, |acc, first| {
        tensor_core::block(&block_of(first, &a), &block_of(first, &b), acc, parameters)
    })
}

fn number(slice: SliceRef<'_>, at: usize) -> Number {
    Format::from(slice.dtype()).split(with_slice!(SliceRef, slice, s => s[at].bits()))
}

fn widen(slice: SliceRef<'_>, at: usize) -> f32 {
    with_slice!(SliceRef, slice, s => s[at].widen())
}

/// Section 7: one rounding to the output type, NaN canonical.
fn store(out: &mut SliceMut<'_>, at: usize, total: f32) {
    with_slice!(SliceMut, out, s => s[at] = Element::round(total));
}
