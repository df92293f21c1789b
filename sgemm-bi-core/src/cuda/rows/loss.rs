//! Cross-entropy and its gradient (contract section 9).

use super::super::launch::Workspace;
use super::super::{CudaEngine, DeviceSlice, DeviceSliceMut, DeviceTargets};
use super::RowOp;
use super::kernels::Args;
use super::launch::Inputs;
use crate::Rows;
use crate::error::{Error, Result};
use crate::rows::{CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD};

impl CudaEngine {
    /// Computes the mean over the rows of −log_softmax(logits)`[i, targets[i]]`, into the one
    /// element of `loss`, which is f32, bf16 or f16 and rounded once.
    ///
    /// Otherwise, operands and bits are those of
    /// [`CpuEngine::cross_entropy`](crate::CpuEngine::cross_entropy).
    ///
    /// # Targets
    ///
    /// They are checked before anything is computed, which waits for the stream. While the stream
    /// records a graph nothing can wait: a target that is out of range then makes the loss NaN.
    ///
    /// Errors: those of the CPU engine, of memory on another device, and
    /// [`Error::LengthMismatch`] for `loss`, before anything is launched; the rest as of
    /// [`log_softmax`](Self::log_softmax).
    pub fn cross_entropy<'a>(
        &self,
        rows: &Rows,
        logits: impl Into<DeviceSlice<'a>>,
        targets: impl Into<DeviceTargets<'a>>,
        loss: impl Into<DeviceSliceMut<'a>>,
    ) -> Result<()> {
        let (logits, targets, mut loss) = (logits.into(), targets.into(), loss.into());
        let name = CROSS_ENTROPY;
        rows.check_cross_entropy(logits.extent(), targets.len())?;
        one_element(name, "loss", loss.len())?;
        self.check_rows(name, [("logits", &logits)], ("loss", &loss))?;
        targets.check(name, self.context())?;
        let op = RowOp::CrossEntropy {
            targets: targets.target_type(),
            loss: loss.dtype(),
        };
        let kernels = self.load_rows(op, rows, logits.dtype())?;
        self.check_targets(op, rows, &targets)?;

        let losses = Workspace::new(name, 4 * rows.rows as u64, &self.stream)?;
        let loss = loss.pin(&self.stream);
        if rows.rows > 0 {
            let args = Args {
                out: losses.address,
                output_stride: 1,
                ..Args::of(rows)
            };
            let inputs = Inputs {
                targets: Some(&targets),
                ..Inputs::of(&logits)
            };
            // SAFETY: the operands are checked, and borrowed or vouched for until the launch; the
            // workspace has an element for each row.
            unsafe { self.launch_on(&kernels[0], args, inputs) }?;
        }
        let args = Args {
            x: losses.address,
            out: loss.address,
            ..Args::of(&Rows::new(1, rows.rows))
        };
        // SAFETY: as above; the loss has one element, and what is pinned orders later work after
        // the launch.
        unsafe { self.launch_rows(&kernels[1], args) }?;
        losses.free()
    }

    /// Computes the gradient of [`cross_entropy`](Self::cross_entropy) from the gradient of its
    /// result: the one element of `grad`, which is f32, bf16 or f16 and read when the stream comes
    /// to it.
    ///
    /// Otherwise, operands and bits are those of
    /// [`CpuEngine::cross_entropy_backward`](crate::CpuEngine::cross_entropy_backward).
    ///
    /// The targets are checked as by [`cross_entropy`](Self::cross_entropy); while the stream
    /// records a graph, one that is out of range makes its row of `dlogits` NaN.
    ///
    /// Errors: as [`cross_entropy`](Self::cross_entropy).
    pub fn cross_entropy_backward<'a>(
        &self,
        rows: &Rows,
        logits: impl Into<DeviceSlice<'a>>,
        targets: impl Into<DeviceTargets<'a>>,
        grad: impl Into<DeviceSlice<'a>>,
        dlogits: impl Into<DeviceSliceMut<'a>>,
    ) -> Result<()> {
        let (logits, targets) = (logits.into(), targets.into());
        let (grad, mut dlogits) = (grad.into(), dlogits.into());
        let name = CROSS_ENTROPY_BACKWARD;
        rows.check_cross_entropy_backward(logits.extent(), targets.len(), dlogits.extent())?;
        one_element(name, "grad", grad.len())?;
        self.check_rows(
            name,
            [("logits", &logits), ("grad", &grad)],
            ("dlogits", &dlogits),
        )?;
        targets.check(name, self.context())?;
        let op = RowOp::CrossEntropyBackward {
            targets: targets.target_type(),
            grad: grad.dtype(),
        };
        let inputs = Inputs {
            grad: Some(&grad),
            targets: Some(&targets),
            ..Inputs::of(&logits)
        };
        // SAFETY: the operands are checked, and borrowed or vouched for until the launch.
        unsafe { self.run_rows(op, rows, inputs, &mut dlogits) }
    }
}

fn one_element(op: &'static str, argument: &'static str, got: usize) -> Result<()> {
    match got {
        1 => Ok(()),
        got => Err(Error::LengthMismatch {
            op,
            argument,
            expected: 1,
            got,
        }),
    }
}
