//! The bias gradient: a product with one row of ones.
//!
//! `acc + dY[m, n]` (contract section 3) and `fma(1, dY[m, n], acc)` are one rounding of one exact
//! sum, so they have the same bits, and the path for few rows, which reads its second operand once,
//! computes both.

use half::{bf16, f16};

use super::product::{Matrix, Output, Product, Start};
use crate::operands::with_slice;
use crate::{BiasGradient, Dtype, SliceRef};

static ONE_F32: f32 = 1.0;
static ONE_BF16: bf16 = bf16::ONE;
static ONE_F16: f16 = f16::ONE;

/// The row of ones: one of them, with strides of zero.
fn ones(dtype: Dtype) -> Matrix {
    let start = match dtype {
        Dtype::F32 => (&raw const ONE_F32).cast(),
        Dtype::BF16 => (&raw const ONE_BF16).cast(),
        Dtype::F16 => (&raw const ONE_F16).cast(),
    };
    Matrix {
        start,
        dtype,
        row_stride: 0,
        col_stride: 0,
    }
}

/// The problem, validated, as a product.
pub(super) fn product<'a>(
    problem: &BiasGradient,
    dy: SliceRef<'a>,
    db: &'a mut [f32],
) -> Product<'a> {
    let view = problem.view;
    let start = with_slice!(SliceRef, dy, s => s.as_ptr().wrapping_add(view.offset).cast());
    Product {
        rows: 1,
        cols: problem.cols,
        reduction: problem.rows,
        lhs: ones(problem.dtype),
        rhs: Matrix {
            start,
            dtype: problem.dtype,
            row_stride: view.row_stride,
            col_stride: view.col_stride,
        },
        out: Output {
            start: db.as_mut_ptr().cast(),
            dtype: Dtype::F32,
            row_stride: problem.cols,
            col_stride: 1,
        },
        bias: None,
        start: match problem.accumulate {
            true => Start::Output,
            false => Start::Zero,
        },
    }
}
