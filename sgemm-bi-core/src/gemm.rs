//! What to compute: the description of a product and of a bias gradient.

mod validate;

use crate::error::Error;
use crate::{Dtype, Tier};

pub(crate) use validate::check_bounds;
#[cfg(feature = "cuda")]
pub(crate) use validate::{BIAS_GRADIENT, Extents};

/// The sizes of a linear layer's products: `m` rows of the batch, `k` inputs, `n` outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of X and Y.
    pub m: usize,
    /// Columns of X: the layer's inputs.
    pub k: usize,
    /// Columns of Y: the layer's outputs.
    pub n: usize,
}

/// How a weight is stored. Both give the same bits, and neither costs a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightLayout {
    /// `[in, out]`: (K, N) row-major.
    InOut,
    /// `[out, in]`: (N, K) row-major, as PyTorch and Candle store it.
    OutIn,
}

/// The operation that a product belongs to (contract section 1); it names errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Y = X·W.
    Forward,
    /// dX = dY·Wᵀ.
    InputGradient,
    /// dW = Xᵀ·dY.
    WeightGradient,
    /// Any product.
    Matmul,
}

impl Op {
    /// The operation's name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Forward => "forward",
            Op::InputGradient => "input gradient",
            Op::WeightGradient => "weight gradient",
            Op::Matmul => "matmul",
        }
    }
}

/// Where a matrix lies in a slice: element (i, j) is at `offset + i·row_stride + j·col_stride`,
/// all in elements.
///
/// An input may have any strides, zero (broadcast) included. An output's elements must have
/// addresses of their own, and its strides must show it: from the smallest stride to the largest,
/// each dimension (batch included) steps over all that the ones before it span. Every slice and
/// every transpose of a dense array does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Index of element (0, 0).
    pub offset: usize,
    /// Distance from a row to the next.
    pub row_stride: usize,
    /// Distance from a column to the next.
    pub col_stride: usize,
}

impl View {
    /// A dense row-major matrix with `cols` columns.
    pub const fn row_major(cols: usize) -> Self {
        View {
            offset: 0,
            row_stride: cols,
            col_stride: 1,
        }
    }

    /// A dense column-major matrix with `rows` rows.
    pub const fn col_major(rows: usize) -> Self {
        View {
            offset: 0,
            row_stride: 1,
            col_stride: rows,
        }
    }

    /// The same elements seen with rows and columns exchanged.
    pub const fn transposed(self) -> Self {
        View {
            offset: self.offset,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    /// The same view starting at another element.
    pub const fn at(self, offset: usize) -> Self {
        View { offset, ..self }
    }
}

/// One batch dimension of a product, with each matrix's stride in elements along it; a stride of
/// zero broadcasts an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchDim {
    /// Number of entries.
    pub len: usize,
    /// Stride of the first operand.
    pub lhs_stride: usize,
    /// Stride of the second operand.
    pub rhs_stride: usize,
    /// Stride of the output.
    pub out_stride: usize,
}

/// A matrix product `out[rows, cols] = lhs[rows, R] · rhs[R, cols]`, with an optional bias for
/// each column, an optional accumulation, and any number of batch dimensions.
///
/// The constructors describe dense operands; [`with_views`](Gemm::with_views) and
/// [`with_batch`](Gemm::with_batch) describe any others. Nothing is checked before the problem
/// meets its operands ([`validate`](Gemm::validate), which every engine calls).
///
/// | constructor | lhs | rhs | out | R |
/// |---|---|---|---|---|
/// | [`forward`](Gemm::forward) | X `[m, k]` | W as `[k, n]` | Y `[m, n]` | k |
/// | [`input_gradient`](Gemm::input_gradient) | dY `[m, n]` | Wᵀ as `[n, k]` | dX `[m, k]` | n |
/// | [`weight_gradient`](Gemm::weight_gradient) | Xᵀ as `[k, m]` | dY `[m, n]` | dW as `[k, n]`, f32 | m |
/// | [`matmul`](Gemm::matmul) | A `[m, k]` | B `[k, n]` | C `[m, n]` | k |
///
/// "W as `[k, n]`" is a view: with [`WeightLayout::OutIn`] the slice holds `[n, k]` row-major.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    op: Op,
    tier: Tier,
    dtype: Dtype,
    out_dtype: Dtype,
    bias: Option<Dtype>,
    accumulate: bool,
    rows: usize,
    cols: usize,
    reduction: usize,
    lhs: View,
    rhs: View,
    out: View,
    batch: Vec<BatchDim>,
}

impl Gemm {
    /// Y`[m, n]` = X`[m, k]`·W (contract section 1), output in the operands' dtype.
    pub fn forward(shape: Shape, dtype: Dtype, layout: WeightLayout) -> Self {
        let Shape { m, k, n } = shape;
        let product = Self::matmul(shape, dtype);
        Gemm {
            op: Op::Forward,
            rhs: weight_view(layout, k, n),
            rows: m,
            ..product
        }
    }

    /// dX`[m, k]` = dY`[m, n]`·Wᵀ (contract section 1), output in the operands' dtype.
    pub fn input_gradient(shape: Shape, dtype: Dtype, layout: WeightLayout) -> Self {
        let Shape { m, k, n } = shape;
        let product = Self::matmul(Shape { m, k: n, n: k }, dtype);
        Gemm {
            op: Op::InputGradient,
            rhs: weight_view(layout, k, n).transposed(),
            ..product
        }
    }

    /// dW = Xᵀ·dY with X`[m, k]` and dY`[m, n]` (contract section 1); the output is f32 and in
    /// the weight's layout. Overwrites it; see [`accumulating`](Gemm::accumulating).
    pub fn weight_gradient(shape: Shape, dtype: Dtype, layout: WeightLayout) -> Self {
        let Shape { m, k, n } = shape;
        let product = Self::matmul(Shape { m: k, k: m, n }, dtype);
        Gemm {
            op: Op::WeightGradient,
            lhs: View::col_major(k),
            out: weight_view(layout, k, n),
            out_dtype: Dtype::F32,
            ..product
        }
    }

    /// C`[m, n]` = A`[m, k]`·B`[k, n]`, all dense and row-major, output in the operands' dtype.
    pub fn matmul(shape: Shape, dtype: Dtype) -> Self {
        let Shape { m, k, n } = shape;
        Gemm {
            op: Op::Matmul,
            tier: Tier::Scalar,
            dtype,
            out_dtype: dtype,
            bias: None,
            accumulate: false,
            rows: m,
            cols: n,
            reduction: k,
            lhs: View::row_major(k),
            rhs: View::row_major(n),
            out: View::row_major(n),
            batch: Vec::new(),
        }
    }

    /// Chooses the tier; the default is [`Tier::Scalar`].
    pub fn with_tier(self, tier: Tier) -> Self {
        Gemm { tier, ..self }
    }

    /// Adds a bias of this dtype (f32, or the operands') to every output row, with one rounding
    /// (contract section 7).
    pub fn with_bias(self, dtype: Dtype) -> Self {
        Gemm {
            bias: Some(dtype),
            ..self
        }
    }

    /// Rounds the output to another dtype.
    pub fn with_out_dtype(self, out_dtype: Dtype) -> Self {
        Gemm { out_dtype, ..self }
    }

    /// Adds to what the output holds (f32 only) instead of overwriting it; the held value is the
    /// first term of the sum over chunks (contract section 3).
    pub fn accumulating(self) -> Self {
        Gemm {
            accumulate: true,
            ..self
        }
    }

    /// Says where the operands and the output lie, in the orientation of the table above.
    pub fn with_views(self, lhs: View, rhs: View, out: View) -> Self {
        Gemm {
            lhs,
            rhs,
            out,
            ..self
        }
    }

    /// Adds a batch dimension, inside those added before.
    pub fn with_batch(mut self, dim: BatchDim) -> Self {
        self.batch.push(dim);
        self
    }

    /// The operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// The tier.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// The operands' dtype.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The output's dtype.
    pub fn out_dtype(&self) -> Dtype {
        self.out_dtype
    }

    /// The bias's dtype, if there is a bias.
    pub fn bias(&self) -> Option<Dtype> {
        self.bias
    }

    /// True when the product is added to what the output holds.
    pub fn accumulates(&self) -> bool {
        self.accumulate
    }

    /// Rows of the output.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the output.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// R, the length of the reduction.
    pub fn reduction(&self) -> usize {
        self.reduction
    }

    /// View of the first operand, `[rows, R]`.
    pub fn lhs(&self) -> View {
        self.lhs
    }

    /// View of the second operand, `[R, cols]`.
    pub fn rhs(&self) -> View {
        self.rhs
    }

    /// View of the output, `[rows, cols]`.
    pub fn out(&self) -> View {
        self.out
    }

    /// Batch dimensions, outermost first.
    pub fn batch(&self) -> &[BatchDim] {
        &self.batch
    }

    /// Number of products in the batch.
    ///
    /// Meaningful after [`validate`](Gemm::validate), which refuses batches whose size overflows.
    pub fn batch_len(&self) -> usize {
        self.batch
            .iter()
            .fold(1, |len, dim| len.saturating_mul(dim.len))
    }

    /// True when the output has no element: no row, no column or no batch entry.
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0 || self.batch.iter().any(|dim| dim.len == 0)
    }

    /// Offsets of (lhs, rhs, out) that batch entry `index` adds to the views, counting entries
    /// with the innermost dimension fastest.
    ///
    /// Meaningful after [`validate`](Gemm::validate), for an index below
    /// [`batch_len`](Gemm::batch_len); otherwise it wraps.
    pub fn batch_offsets(&self, index: usize) -> (usize, usize, usize) {
        batch_offsets(&self.batch, index)
    }

    /// The error for a tier that `engine`, or the contract, does not have.
    pub(crate) fn unsupported_tier(&self, engine: &'static str) -> Error {
        let (op, tier, dtype) = (self.op.name(), self.tier, self.dtype);
        Error::UnsupportedTier {
            op,
            engine,
            tier,
            dtype,
        }
    }
}

/// A bias gradient `db[n] += Σₘ dY[m, n]`, or `=` (contract sections 1 and 3).
///
/// The same in every tier: widened values added in ascending row order, chunk by chunk, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BiasGradient {
    /// Rows of dY, the reduction.
    pub rows: usize,
    /// Columns of dY, the length of db.
    pub cols: usize,
    /// Dtype of dY.
    pub dtype: Dtype,
    /// Where dY lies.
    pub view: View,
    /// Adds to what db holds instead of overwriting it.
    pub accumulate: bool,
}

impl BiasGradient {
    /// The bias gradient of a dense row-major dY`[rows, cols]`, overwriting db.
    pub const fn new(rows: usize, cols: usize, dtype: Dtype) -> Self {
        BiasGradient {
            rows,
            cols,
            dtype,
            view: View::row_major(cols),
            accumulate: false,
        }
    }

    /// Adds to what db holds instead of overwriting it.
    pub const fn accumulating(self) -> Self {
        BiasGradient {
            accumulate: true,
            ..self
        }
    }

    /// Says where dY lies.
    pub const fn with_view(self, view: View) -> Self {
        BiasGradient { view, ..self }
    }
}

/// Offsets of (lhs, rhs, out) of entry `index` in a batch of these dimensions, the last one
/// fastest.
pub(crate) fn batch_offsets(dims: &[BatchDim], mut index: usize) -> (usize, usize, usize) {
    let mut offsets = (0usize, 0usize, 0usize);
    for dim in dims.iter().rev() {
        let len = dim.len.max(1);
        let i = index % len;
        index /= len;
        offsets.0 = offsets.0.wrapping_add(i.wrapping_mul(dim.lhs_stride));
        offsets.1 = offsets.1.wrapping_add(i.wrapping_mul(dim.rhs_stride));
        offsets.2 = offsets.2.wrapping_add(i.wrapping_mul(dim.out_stride));
    }
    offsets
}

/// The logical [k, n] view of a dense weight.
const fn weight_view(layout: WeightLayout, k: usize, n: usize) -> View {
    match layout {
        WeightLayout::InOut => View::row_major(n),
        WeightLayout::OutIn => View::col_major(k),
    }
}
