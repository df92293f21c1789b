//! Losses with fixed bits, as differentiable operations.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor};
use sgemm_bi_core::Rows;

use crate::error::Error;
use crate::storage::{Dense, EngineStorage, Name, output_len, require_device, require_supported};

const FORWARD: &str = "cross_entropy";
const BACKWARD: &str = "cross_entropy backward";

/// The mean over the rows of −ln softmax(logits) at the targets: a replacement for
/// `candle_nn::loss::cross_entropy`.
///
/// | argument | shape | dtype |
/// |---|---|---|
/// | `logits` | `[n, classes]` | f32, bf16 or f16 |
/// | `targets` | `[n]` | u32, i64 or u8, from 0 to `classes` (exclusive) |
/// | result | `[]` | that of `logits` |
///
/// Both may have any strides and any start offset. The mean of no row (`n = 0`) is NaN, as
/// Candle's and PyTorch's is.
///
/// # Bits
///
/// Those of `docs/contract.md` section 9, forward and backward: log-probabilities, the sum over
/// the rows and the mean are f32 whatever the dtype, and the result is rounded once. The gradient
/// of `logits` has their dtype and is rounded once too.
///
/// # Gradient
///
/// Of `logits`, once: the gradient's own gradient is refused with Candle's `BackwardNotSupported`.
/// `targets` have none.
///
/// # Errors
///
/// [`Error::Rank`], [`Error::Shape`], [`Error::Dtype`], [`Error::Device`], and
/// [`sgemm_bi_core::Error::TargetOutOfRange`]; all as a [`candle_core::Error`].
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_sgemm_bi::loss;
///
/// # fn main() -> candle_core::Result<()> {
/// let logits = Var::new(&[[0f32, 0.], [5., 5.]], &Device::Cpu)?;
/// let targets = Tensor::new(&[0u32, 1], &Device::Cpu)?;
/// let loss = loss::cross_entropy(&logits, &targets)?;
/// assert_eq!(loss.to_scalar::<f32>()?, std::f32::consts::LN_2);
///
/// let grads = loss.backward()?;
/// let dlogits = grads.get(&logits).expect("logits are a variable");
/// assert_eq!(dlogits.to_vec2::<f32>()?, [[-0.25, 0.25], [0.25, -0.25]]);
///
/// let wrong = Tensor::new(&[0i64, 2], &Device::Cpu)?;
/// let refused = loss::cross_entropy(&logits, &wrong).unwrap_err();
/// assert!(refused.to_string().contains("target 2 of row 1 is out of range: expected 0 to 2"));
/// # Ok(())
/// # }
/// ```
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    check(logits, targets)?;
    // A target made from a float variable would otherwise wait for a gradient that it has not.
    logits.apply_op2(&targets.detach(), CrossEntropy)
}

fn check(logits: &Tensor, targets: &Tensor) -> std::result::Result<(), Error> {
    require_supported(FORWARD, "logits", logits)?;
    require_device(FORWARD, "targets", targets)?;
    if !matches!(targets.dtype(), DType::U8 | DType::U32 | DType::I64) {
        let (op, argument) = (FORWARD, "targets");
        return Err(Name { op, argument }.no_integers(targets.dtype()));
    }
    let &[n, _] = logits.dims() else {
        return Err(Error::Rank {
            op: FORWARD,
            argument: "logits",
            expected: "2",
            got: logits.dims().to_vec(),
        });
    };
    match targets.dims() {
        &[targets] if targets == n => Ok(()),
        [_] => Err(Error::Shape {
            op: FORWARD,
            argument: "targets",
            expected: format!("[{n}], one for each row of logits {:?}", logits.dims()),
            got: targets.dims().to_vec(),
        }),
        got => Err(Error::Rank {
            op: FORWARD,
            argument: "targets",
            expected: "1",
            got: got.to_vec(),
        }),
    }
}

/// The rows of logits, whose rank is known.
fn rows(op: &'static str, logits: &Layout) -> std::result::Result<Rows, Error> {
    match *logits.dims() {
        [n, classes] => Ok(Rows::new(n, classes)),
        ref dims => Err(Error::Rank {
            op,
            argument: "logits",
            expected: "2",
            got: dims.to_vec(),
        }),
    }
}

/// loss from logits and targets.
struct CrossEntropy;

impl CrossEntropy {
    fn run<S: EngineStorage>(logits: (&S, &Layout), targets: (&S, &Layout)) -> Result<(S, Shape)> {
        let rows = rows(FORWARD, logits.1)?;
        let logits = Dense::new(FORWARD, "logits", logits.0, logits.1)?;
        let targets = Dense::new(FORWARD, "targets", targets.0, targets.1)?;
        let loss = S::cross_entropy(&rows, logits.part(), targets.part())?;
        Ok((loss, Shape::from(())))
    }
}

impl CustomOp2 for CrossEntropy {
    fn name(&self) -> &'static str {
        FORWARD
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Self::run((logits, logits_layout), (targets, targets_layout))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        logits: &CudaStorage,
        logits_layout: &Layout,
        targets: &CudaStorage,
        targets_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Self::run((logits, logits_layout), (targets, targets_layout))
    }

    fn bwd(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        _loss: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dlogits = logits.apply_op3(targets, grad, CrossEntropyGradient)?;
        Ok((Some(dlogits), None))
    }
}

/// dlogits from logits, targets and the gradient of the loss.
struct CrossEntropyGradient;

impl CrossEntropyGradient {
    fn run<S: EngineStorage>(
        logits: (&S, &Layout),
        targets: (&S, &Layout),
        grad: (&S, &Layout),
    ) -> Result<(S, Shape)> {
        let (rows, shape) = (rows(BACKWARD, logits.1)?, logits.1.shape().clone());
        output_len(BACKWARD, shape.dims())?;
        let logits = Dense::new(BACKWARD, "logits", logits.0, logits.1)?;
        let targets = Dense::new(BACKWARD, "targets", targets.0, targets.1)?;
        let grad = Dense::new(BACKWARD, "grad", grad.0, grad.1)?;
        let (logits, targets, grad) = (logits.part(), targets.part(), grad.part());
        Ok((
            S::cross_entropy_backward(&rows, logits, targets, grad)?,
            shape,
        ))
    }
}

impl CustomOp3 for CrossEntropyGradient {
    fn name(&self) -> &'static str {
        BACKWARD
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_layout: &Layout,
        targets: &CpuStorage,
        targets_layout: &Layout,
        grad: &CpuStorage,
        grad_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Self::run(
            (logits, logits_layout),
            (targets, targets_layout),
            (grad, grad_layout),
        )
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        logits: &CudaStorage,
        logits_layout: &Layout,
        targets: &CudaStorage,
        targets_layout: &Layout,
        grad: &CudaStorage,
        grad_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Self::run(
            (logits, logits_layout),
            (targets, targets_layout),
            (grad, grad_layout),
        )
    }
}
