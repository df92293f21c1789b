//! One matrix product without batch, as the paths of the engine see it: raw views and sizes.

use crate::operands::with_slice;
use crate::turn::{Form, Strides};
use crate::{BatchDim, Dtype, Gemm, Operands, SliceRef};

pub(super) use crate::turn::Axis;

/// An input matrix: element (i, j) is `i · row_stride + j · col_stride` elements of `dtype` after
/// `start`.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub start: *const (),
    pub dtype: Dtype,
    pub row_stride: usize,
    pub col_stride: usize,
}

/// The output matrix, laid out as [`Matrix`] says; every element has an address of its own.
#[derive(Clone, Copy)]
pub(super) struct Output {
    pub start: *mut (),
    pub dtype: Dtype,
    pub row_stride: usize,
    pub col_stride: usize,
}

/// A bias: one value for each index along `along`.
#[derive(Clone, Copy)]
pub(super) struct Bias<'a> {
    pub values: SliceRef<'a>,
    pub along: Axis,
}

/// What the sum over chunks starts from (contract section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// +0.0.
    Zero,
    /// What the output, f32, holds.
    Output,
}

/// `out[rows, cols] = lhs[rows, R] · rhs[R, cols]`, one entry of a batch.
///
/// Invariant, from [`Gemm::validate`]: every element that the three views address lies inside a
/// live borrow, the output's mutable and free of overlaps; a bias is as long as its axis.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub rows: usize,
    pub cols: usize,
    pub reduction: usize,
    pub lhs: Matrix,
    pub rhs: Matrix,
    pub out: Output,
    pub bias: Option<Bias<'a>>,
    pub start: Start,
}

// SAFETY: the pointers stand for borrows of slices of plain numbers, `Send` and `Sync` themselves;
// threads write disjoint elements of the output.
unsafe impl Send for Product<'_> {}
// SAFETY: as above.
unsafe impl Sync for Product<'_> {}

impl<'a> Product<'a> {
    /// The first entry of a validated problem's batch.
    pub fn new(gemm: &Gemm, operands: &'a mut Operands<'_>) -> Self {
        let input = |slice: SliceRef<'_>, view: crate::View| {
            let start =
                with_slice!(SliceRef, slice, s => s.as_ptr().wrapping_add(view.offset).cast());
            Matrix {
                start,
                dtype: slice.dtype(),
                row_stride: view.row_stride,
                col_stride: view.col_stride,
            }
        };
        let out = gemm.out();
        let dtype = operands.out.dtype();
        let start = with_slice!(SliceMut, &mut operands.out, s => {
            s.as_mut_ptr().wrapping_add(out.offset).cast()
        });
        Product {
            rows: gemm.rows(),
            cols: gemm.cols(),
            reduction: gemm.reduction(),
            lhs: input(operands.lhs, gemm.lhs()),
            rhs: input(operands.rhs, gemm.rhs()),
            out: Output {
                start,
                dtype,
                row_stride: out.row_stride,
                col_stride: out.col_stride,
            },
            bias: operands.bias.map(|values| Bias {
                values,
                along: Axis::Cols,
            }),
            start: match gemm.accumulates() {
                true => Start::Output,
                false => Start::Zero,
            },
        }
    }

    /// The entry whose matrices lie these numbers of elements (lhs, rhs, out) further on.
    pub fn at(self, (lhs, rhs, out): (usize, usize, usize)) -> Self {
        let forward = |matrix: Matrix, by: usize| Matrix {
            start: matrix
                .start
                .wrapping_byte_add(by * matrix.dtype.size_in_bytes()),
            ..matrix
        };
        let out_bytes = out * self.out.dtype.size_in_bytes();
        Product {
            lhs: forward(self.lhs, lhs),
            rhs: forward(self.rhs, rhs),
            out: Output {
                start: self.out.start.wrapping_byte_add(out_bytes),
                ..self.out
            },
            ..self
        }
    }

    /// The form of a batch of `dims` that begins with this product.
    pub fn form(&self, dims: &[BatchDim]) -> Form {
        let strides = |matrix: &Matrix| Strides {
            row: matrix.row_stride,
            col: matrix.col_stride,
        };
        Form {
            rows: self.rows,
            cols: self.cols,
            reduction: self.reduction,
            lhs: strides(&self.lhs),
            rhs: strides(&self.rhs),
            out: Strides {
                row: self.out.row_stride,
                col: self.out.col_stride,
            },
            bias: self.bias.map(|bias| bias.along),
            dims: dims.to_vec(),
            turned: false,
        }
    }

    /// The same data seen as a settled form of this product has it.
    pub fn with_form(self, form: &Form) -> Self {
        let (first, second) = match form.turned {
            false => (self.lhs, self.rhs),
            true => (self.rhs, self.lhs),
        };
        let matrix = |matrix: Matrix, strides: Strides| Matrix {
            row_stride: strides.row,
            col_stride: strides.col,
            ..matrix
        };
        Product {
            rows: form.rows,
            cols: form.cols,
            lhs: matrix(first, form.lhs),
            rhs: matrix(second, form.rhs),
            out: Output {
                row_stride: form.out.row,
                col_stride: form.out.col,
                ..self.out
            },
            bias: (self.bias.zip(form.bias)).map(|(bias, along)| Bias { along, ..bias }),
            ..self
        }
    }

    /// The same product with rows and columns exchanged: outᵀ = rhsᵀ · lhsᵀ. The bits stay, for a
    /// fused multiply-add does not care for the order of its factors.
    pub fn transposed(self) -> Self {
        let flip = |matrix: Matrix| Matrix {
            row_stride: matrix.col_stride,
            col_stride: matrix.row_stride,
            ..matrix
        };
        Product {
            rows: self.cols,
            cols: self.rows,
            lhs: flip(self.rhs),
            rhs: flip(self.lhs),
            out: Output {
                row_stride: self.out.col_stride,
                col_stride: self.out.row_stride,
                ..self.out
            },
            bias: self.bias.map(|bias| Bias {
                along: match bias.along {
                    Axis::Rows => Axis::Cols,
                    Axis::Cols => Axis::Rows,
                },
                ..bias
            }),
            ..self
        }
    }
}
