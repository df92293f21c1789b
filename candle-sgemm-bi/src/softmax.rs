//! log-softmax with fixed bits, as a differentiable operation.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::shape::Dim;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};
use sgemm_bi_core::Rows;

use crate::error::Error;
use crate::storage::{Dense, EngineStorage, output_len, require_supported};

const FORWARD: &str = "log_softmax";
const BACKWARD: &str = "log_softmax backward";

/// ln softmax of `xs` along `dim`: a replacement for `candle_nn::ops::log_softmax`.
///
/// `xs` is f32, bf16 or f16, of any rank but 0, with any strides and any start offset; any size
/// may be zero. The result has its shape and dtype, and is dense. A `dim` other than the last is
/// moved there and back, which copies.
///
/// # Bits
///
/// Those of `docs/contract.md` section 9, forward and backward: computed in f32 and f64, rounded
/// once to the dtype. They depend on nothing outside the row along `dim`, in any batch and any
/// layout. A row that holds a NaN or +∞, or nothing but −∞, becomes NaN.
///
/// # Gradient
///
/// Once: the gradient's own gradient is refused with Candle's `BackwardNotSupported`.
///
/// # Errors
///
/// Candle's for a `dim` that `xs` does not have; [`Error::Dtype`] and [`Error::Device`], as a
/// [`candle_core::Error`].
///
/// ```
/// use candle_core::{D, Device, Tensor};
///
/// # fn main() -> candle_core::Result<()> {
/// let xs = Tensor::new(&[[0f32, 0., f32::NEG_INFINITY], [7., 7., 7.]], &Device::Cpu)?;
/// let y = candle_sgemm_bi::log_softmax(&xs, D::Minus1)?;
/// assert_eq!(
///     y.to_vec2::<f32>()?,
///     [[-0.6931472, -0.6931472, f32::NEG_INFINITY], [-1.0986123; 3]]
/// );
/// # Ok(())
/// # }
/// ```
pub fn log_softmax<D: Dim>(xs: &Tensor, dim: D) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), FORWARD)?;
    require_supported(FORWARD, "xs", xs)?;
    let last = xs.rank() - 1;
    if dim == last {
        return xs.apply_op1(LogSoftmax);
    }
    let result = xs.transpose(dim, last)?.apply_op1(LogSoftmax)?;
    result.transpose(dim, last)?.contiguous()
}

/// The rows along the last dimension.
fn rows(op: &'static str, layout: &Layout) -> std::result::Result<Rows, Error> {
    let dims = layout.dims();
    output_len(op, dims)?;
    let (cols, leading) = dims.split_last().ok_or_else(|| Error::Rank {
        op,
        argument: "xs",
        expected: "at least 1",
        got: dims.to_vec(),
    })?;
    Ok(Rows::new(output_len(op, leading)?, *cols))
}

/// y = log_softmax(x) along the last dimension.
struct LogSoftmax;

impl LogSoftmax {
    fn run<S: EngineStorage>(x: &S, layout: &Layout) -> Result<(S, Shape)> {
        let rows = rows(FORWARD, layout)?;
        let x = Dense::new(FORWARD, "xs", x, layout)?;
        Ok((S::log_softmax(&rows, x.part())?, layout.shape().clone()))
    }
}

impl CustomOp1 for LogSoftmax {
    fn name(&self) -> &'static str {
        FORWARD
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Self::run(x, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Self::run(x, layout)
    }

    fn bwd(&self, _x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        y.apply_op2(dy, LogSoftmaxGradient).map(Some)
    }
}

/// dx from y and dy along the last dimension.
struct LogSoftmaxGradient;

impl LogSoftmaxGradient {
    fn run<S: EngineStorage>(y: (&S, &Layout), dy: (&S, &Layout)) -> Result<(S, Shape)> {
        let (rows, shape) = (rows(BACKWARD, y.1)?, y.1.shape().clone());
        let y = Dense::new(BACKWARD, "y", y.0, y.1)?;
        let dy = Dense::new(BACKWARD, "dy", dy.0, dy.1)?;
        Ok((S::log_softmax_backward(&rows, y.part(), dy.part())?, shape))
    }
}

impl CustomOp2 for LogSoftmaxGradient {
    fn name(&self) -> &'static str {
        BACKWARD
    }

    fn cpu_fwd(
        &self,
        y: &CpuStorage,
        y_layout: &Layout,
        dy: &CpuStorage,
        dy_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Self::run((y, y_layout), (dy, dy_layout))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        y: &CudaStorage,
        y_layout: &Layout,
        dy: &CudaStorage,
        dy_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Self::run((y, y_layout), (dy, dy_layout))
    }
}
