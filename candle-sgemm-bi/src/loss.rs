//! Losses with fixed bits, as differentiable operations.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor};
use sgemm_bi_core::{Element, Rows, SliceMut, Targets};

use crate::engine::engine;
use crate::error::Error;
use crate::storage::{Dense, filled, gather, output_len, require_supported, with_elements};

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
    if !targets.device().is_cpu() {
        return Err(Error::Device {
            op: FORWARD,
            argument: "targets",
            got: targets.device().location(),
        });
    }
    if !matches!(targets.dtype(), DType::U8 | DType::U32 | DType::I64) {
        return Err(targets_dtype(FORWARD, targets.dtype()));
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

fn targets_dtype(op: &'static str, got: DType) -> Error {
    Error::Dtype {
        op,
        argument: "targets",
        expected: "u32, i64 or u8".to_string(),
        got,
    }
}

/// Calls `compute` with the targets, copied in row order.
fn with_targets<R>(
    op: &'static str,
    storage: &CpuStorage,
    layout: &Layout,
    compute: impl FnOnce(Targets<'_>) -> std::result::Result<R, Error>,
) -> std::result::Result<R, Error> {
    match storage {
        CpuStorage::U8(s) => compute(Targets::from(&gather(s, layout))),
        CpuStorage::U32(s) => compute(Targets::from(&gather(s, layout))),
        CpuStorage::I64(s) => compute(Targets::from(&gather(s, layout))),
        other => Err(targets_dtype(
            op,
            candle_core::backend::BackendStorage::dtype(other),
        )),
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
        let rows = rows(FORWARD, logits_layout)?;
        let logits = Dense::new(FORWARD, "logits", logits, logits_layout)?;
        let logits = logits.slice(FORWARD, "logits")?;
        let loss = with_targets(FORWARD, targets, targets_layout, |targets| {
            Ok(engine()?.cross_entropy(&rows, logits, targets)?)
        })?;
        let loss = filled(logits.dtype(), 1, |out| {
            match out {
                SliceMut::F32(out) => out.fill(Element::round(loss)),
                SliceMut::BF16(out) => out.fill(Element::round(loss)),
                SliceMut::F16(out) => out.fill(Element::round(loss)),
                _ => unreachable!("the core has no further dtype"),
            }
            Ok(())
        })?;
        Ok((loss, Shape::from(())))
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
        let rows = rows(BACKWARD, logits_layout)?;
        let len = output_len(BACKWARD, logits_layout.dims())?;
        let logits = Dense::new(BACKWARD, "logits", logits, logits_layout)?;
        let logits = logits.slice(BACKWARD, "logits")?;
        let grad = Dense::new(BACKWARD, "grad", grad, grad_layout)?;
        let grad = with_elements!(grad.slice(BACKWARD, "grad")?, grad => grad[0].widen());
        let dlogits = filled(logits.dtype(), len, |dlogits| {
            with_targets(BACKWARD, targets, targets_layout, |targets| {
                Ok(engine()?.cross_entropy_backward(&rows, logits, targets, grad, dlogits)?)
            })
        })?;
        Ok((dlogits, logits_layout.shape().clone()))
    }
}
