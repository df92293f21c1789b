//! One form for many descriptions of a product: batch dimensions that are rows in disguise become
//! rows, and the output's contiguous direction becomes its columns'.

use crate::BatchDim;
#[cfg(feature = "cuda")]
use crate::{BiasGradient, Gemm, View};

/// A dimension of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Axis {
    Rows,
    Cols,
}

/// Strides of a matrix, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strides {
    pub row: usize,
    pub col: usize,
}

#[cfg(feature = "cuda")]
impl From<View> for Strides {
    fn from(view: View) -> Self {
        Strides {
            row: view.row_stride,
            col: view.col_stride,
        }
    }
}

impl Strides {
    fn transposed(self) -> Self {
        Strides {
            row: self.col,
            col: self.row,
        }
    }
}

/// The sizes and strides of a validated product, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub rows: usize,
    pub cols: usize,
    pub reduction: usize,
    pub lhs: Strides,
    pub rhs: Strides,
    pub out: Strides,
    /// The axis that a bias has one value for each index of.
    pub bias: Option<Axis>,
    /// Batch dimensions, outermost first.
    pub dims: Vec<BatchDim>,
    /// The operands changed places: `lhs` describes the problem's second operand.
    pub turned: bool,
}

impl Form {
    /// A product's form as it was described.
    #[cfg(feature = "cuda")]
    pub fn of(gemm: &Gemm) -> Self {
        Form {
            rows: gemm.rows(),
            cols: gemm.cols(),
            reduction: gemm.reduction(),
            lhs: gemm.lhs().into(),
            rhs: gemm.rhs().into(),
            out: gemm.out().into(),
            bias: gemm.bias().map(|_| Axis::Cols),
            dims: gemm.batch().to_vec(),
            turned: false,
        }
    }

    /// A bias gradient as the product of one row of ones with dY.
    ///
    /// `acc + dY[m, n]` (contract section 3) and `fma(1, dY[m, n], acc)` are one rounding of one
    /// exact sum, so they have the same bits.
    #[cfg(feature = "cuda")]
    pub fn of_bias_gradient(problem: &BiasGradient) -> Self {
        Form {
            rows: 1,
            cols: problem.cols,
            reduction: problem.rows,
            lhs: Strides { row: 0, col: 0 },
            rhs: problem.view.into(),
            out: Strides {
                row: problem.cols,
                col: 1,
            },
            bias: None,
            dims: Vec::new(),
            turned: false,
        }
    }

    /// The same product folded, and turned so that the output's contiguous direction, if any, is
    /// its columns'.
    pub fn settled(mut self) -> Self {
        self.dims.retain(|dim| dim.len != 1);
        if self.reduction == 0 {
            // Nothing is read, so the inputs' strides may be too large to compute with.
            (self.lhs, self.rhs) = (Strides { row: 0, col: 0 }, Strides { row: 0, col: 0 });
            for dim in &mut self.dims {
                (dim.lhs_stride, dim.rhs_stride) = (0, 0);
            }
        }
        while self.fold() {}
        if self.out.col != 1 && self.out.row == 1 && self.rows > 1 {
            self = self.transposed();
        }
        self
    }

    /// The same product with rows and columns exchanged: outᵀ = rhsᵀ · lhsᵀ. The bits stay, for a
    /// fused multiply-add does not care for the order of its factors.
    pub fn transposed(self) -> Self {
        let swap = |dim: BatchDim| BatchDim {
            lhs_stride: dim.rhs_stride,
            rhs_stride: dim.lhs_stride,
            ..dim
        };
        Form {
            rows: self.cols,
            cols: self.rows,
            reduction: self.reduction,
            lhs: self.rhs.transposed(),
            rhs: self.lhs.transposed(),
            out: self.out.transposed(),
            bias: self.bias.map(|along| match along {
                Axis::Rows => Axis::Cols,
                Axis::Cols => Axis::Rows,
            }),
            dims: self.dims.into_iter().map(swap).collect(),
            turned: !self.turned,
        }
    }

    /// Makes the innermost batch dimension part of the rows, if its entries' rows lie one after
    /// the other.
    fn fold(&mut self) -> bool {
        let Some(&dim) = self.dims.last() else {
            return false;
        };
        if self.bias == Some(Axis::Rows) || dim.rhs_stride != 0 {
            return false;
        }
        if self.rows == 1 {
            (self.lhs.row, self.out.row) = (dim.lhs_stride, dim.out_stride);
        } else if self.rows * self.lhs.row != dim.lhs_stride
            || self.rows * self.out.row != dim.out_stride
        {
            return false;
        }
        self.rows *= dim.len;
        self.dims.pop();
        true
    }
}
