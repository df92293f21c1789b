//! The sum of a tensor's rows, which is a bias's gradient, and its adjoint.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use sgemm_bi_core::{BatchDim, BiasGradient, Dtype, Element, SliceRef, View};

use super::lower::merge;
use crate::engine::engine;
use crate::error::Error;
use crate::storage::{core_dtype, filled, gathered, output_len, slice_of};

/// `[.., n]` to `[n]`: all leading dimensions summed in the contract's order, in f32, then one
/// rounding to a dtype (contract sections 1 and 3).
pub(super) struct RowSum {
    dtype: DType,
}

impl RowSum {
    /// The sum, rounded to `dtype`.
    pub(super) fn into_dtype(dtype: DType) -> Self {
        RowSum { dtype }
    }
}

const SUM: &str = "bias gradient";

impl CustomOp1 for RowSum {
    fn name(&self) -> &'static str {
        SUM
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut slice = slice_of(SUM, "dy", storage)?;
        let Some((&cols, leading)) = layout.dims().split_last() else {
            let expected = "at least 1";
            return Err(rank_error(SUM, expected, layout).into());
        };
        let strides = layout.stride();
        let mut view = View {
            offset: layout.start_offset(),
            row_stride: 0,
            col_stride: strides[leading.len()],
        };
        let copy;
        let dims = leading.iter().zip(strides).map(|(&len, &stride)| BatchDim {
            len,
            lhs_stride: stride,
            rhs_stride: 0,
            out_stride: 0,
        });
        match merge(dims)[..] {
            [] => {}
            [rows] => view.row_stride = rows.lhs_stride,
            // The rows have no single stride.
            _ => {
                copy = gathered(slice, view.offset, layout.dims(), strides);
                slice = slice_of(SUM, "dy", &copy)?;
                view = View::row_major(cols);
            }
        }
        let rows = output_len(SUM, leading)?;
        let problem = BiasGradient::new(rows, cols, slice.dtype()).with_view(view);
        let mut sums = vec![0.0f32; cols];
        let core = |error: sgemm_bi_core::Error| Error::from(error);
        engine()?
            .bias_gradient(&problem, slice, &mut sums)
            .map_err(core)?;
        let dtype = core_dtype(SUM, "bias", self.dtype)?;
        let rounded = filled_from(dtype, cols, SliceRef::from(&sums), 0..cols)?;
        Ok((rounded, Shape::from(cols)))
    }

    fn bwd(&self, dy: &Tensor, _sum: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let repeat = RowRepeat {
            shape: dy.dims().to_vec(),
            dtype: dy.dtype(),
        };
        grad.apply_op1(repeat).map(Some)
    }
}

/// `[n]` to `[.., n]`: every row is the vector, rounded once to a dtype.
struct RowRepeat {
    shape: Vec<usize>,
    dtype: DType,
}

const REPEAT: &str = "bias gradient's gradient";

impl CustomOp1 for RowRepeat {
    fn name(&self) -> &'static str {
        REPEAT
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (&[cols], &[stride]) = (layout.dims(), layout.stride()) else {
            return Err(rank_error(REPEAT, "1", layout).into());
        };
        let slice = slice_of(REPEAT, "grad", storage)?;
        let len = output_len(REPEAT, &self.shape)?;
        let start = layout.start_offset();
        let dtype = core_dtype(REPEAT, "dy", self.dtype)?;
        let indices = (0..len).map(|i| start + (i % cols) * stride);
        let repeated = filled_from(dtype, len, slice, indices)?;
        Ok((repeated, Shape::from(self.shape.clone())))
    }

    fn bwd(&self, vector: &Tensor, _out: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let sum = RowSum::into_dtype(vector.dtype());
        grad.apply_op1(sum).map(Some)
    }
}

/// A new storage whose elements are those of `source` at `indices`, each rounded once.
fn filled_from(
    dtype: Dtype,
    len: usize,
    source: SliceRef<'_>,
    indices: impl Iterator<Item = usize>,
) -> std::result::Result<CpuStorage, Error> {
    use crate::storage::with_elements;

    fn write<T: Element>(
        out: &mut [T],
        source: SliceRef<'_>,
        indices: impl Iterator<Item = usize>,
    ) {
        with_elements!(source, from => {
            for (to, at) in out.iter_mut().zip(indices) {
                *to = T::round(from[at].widen());
            }
        });
    }
    filled(dtype, len, |out| {
        match out {
            sgemm_bi_core::SliceMut::F32(out) => write(out, source, indices),
            sgemm_bi_core::SliceMut::BF16(out) => write(out, source, indices),
            sgemm_bi_core::SliceMut::F16(out) => write(out, source, indices),
            _ => unreachable!("the core has no further dtype"),
        }
        Ok(())
    })
}

fn rank_error(op: &'static str, expected: &'static str, layout: &Layout) -> Error {
    Error::Rank {
        op,
        argument: "dy",
        expected,
        got: layout.dims().to_vec(),
    }
}
