//! The sum of a tensor's rows, which is a bias's gradient, and its adjoint.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use sgemm_bi_core::{BatchDim, BiasGradient, Rows, View};

use super::lower::merge;
use crate::error::Error;
use crate::storage::{Dense, EngineStorage, Name, Part, output_len};

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

    fn run<S: EngineStorage>(&self, dy: &S, layout: &Layout) -> Result<(S, Shape)> {
        let name = Name {
            op: SUM,
            argument: "dy",
        };
        let dtype = name.core_dtype(dy.dtype())?;
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
        let mut dy = Part {
            name,
            storage: dy,
            range: 0..dy.len(),
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
                copy = dy.storage.gathered(layout)?;
                dy = Part {
                    storage: &copy,
                    range: 0..layout.shape().elem_count(),
                    ..dy
                };
                view = View::row_major(cols);
            }
        }
        let rows = output_len(SUM, leading)?;
        let problem = BiasGradient::new(rows, cols, dtype).with_view(view);
        let sums = S::bias_gradient(&problem, dy)?;
        let name = Name {
            op: SUM,
            argument: "bias",
        };
        let sums = Part {
            name,
            storage: &sums,
            range: 0..cols,
        };
        let rounded = S::rounded(&Rows::new(1, cols), sums, name.core_dtype(self.dtype)?)?;
        Ok((rounded, Shape::from(cols)))
    }
}

const SUM: &str = "bias gradient";

impl CustomOp1 for RowSum {
    fn name(&self) -> &'static str {
        SUM
    }

    fn cpu_fwd(&self, dy: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.run(dy, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, dy: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        self.run(dy, layout)
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

impl RowRepeat {
    fn run<S: EngineStorage>(&self, vector: &S, layout: &Layout) -> Result<(S, Shape)> {
        let &[cols] = layout.dims() else {
            return Err(rank_error(REPEAT, "1", layout).into());
        };
        output_len(REPEAT, &self.shape)?;
        let leading = self
            .shape
            .split_last()
            .map_or(&[][..], |(_, leading)| leading);
        let rows = Rows::new(output_len(REPEAT, leading)?, cols).with_strides(0, cols);
        let name = Name {
            op: REPEAT,
            argument: "dy",
        };
        let vector = Dense::new(REPEAT, "grad", vector, layout)?;
        let repeated = S::rounded(&rows, vector.part(), name.core_dtype(self.dtype)?)?;
        Ok((repeated, Shape::from(self.shape.clone())))
    }
}

impl CustomOp1 for RowRepeat {
    fn name(&self) -> &'static str {
        REPEAT
    }

    fn cpu_fwd(&self, vector: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.run(vector, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, vector: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        self.run(vector, layout)
    }

    fn bwd(&self, vector: &Tensor, _out: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let sum = RowSum::into_dtype(vector.dtype());
        grad.apply_op1(sum).map(Some)
    }
}

fn rank_error(op: &'static str, expected: &'static str, layout: &Layout) -> Error {
    Error::Rank {
        op,
        argument: "dy",
        expected,
        got: layout.dims().to_vec(),
    }
}
