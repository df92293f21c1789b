//! log-softmax and its gradient, and copies that round (contract sections 7 and 9).

use super::super::{CudaEngine, DeviceSlice, DeviceSliceMut};
use super::RowOp;
use super::launch::Inputs;
use crate::Rows;
use crate::error::Result;
use crate::rows::{LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD, ROUND};

impl CudaEngine {
    /// Computes `y = log_softmax(x)` when the stream comes to it.
    ///
    /// Operands and bits are those of [`CpuEngine::log_softmax`](crate::CpuEngine::log_softmax).
    ///
    /// Errors: those of the CPU engine and of memory on another device, before anything is
    /// launched; [`NoNvrtc`](crate::Error::NoNvrtc) and [`Compile`](crate::Error::Compile);
    /// [`CaptureNotPrepared`](crate::Error::CaptureNotPrepared); [`Driver`](crate::Error::Driver).
    pub fn log_softmax<'a>(
        &self,
        rows: &Rows,
        x: impl Into<DeviceSlice<'a>>,
        y: impl Into<DeviceSliceMut<'a>>,
    ) -> Result<()> {
        let (x, mut y) = (x.into(), y.into());
        rows.check_log_softmax(x.extent(), y.extent())?;
        self.check_rows(LOG_SOFTMAX, [("x", &x)], ("y", &y))?;
        // SAFETY: the operands are checked, and borrowed or vouched for until the launch.
        unsafe { self.run_rows(RowOp::LogSoftmax, rows, Inputs::of(&x), &mut y) }
    }

    /// Computes the gradient of [`log_softmax`](Self::log_softmax) from its result y and the
    /// gradient dy of that result.
    ///
    /// Operands and bits are those of
    /// [`CpuEngine::log_softmax_backward`](crate::CpuEngine::log_softmax_backward).
    ///
    /// Errors: as [`log_softmax`](Self::log_softmax).
    pub fn log_softmax_backward<'a>(
        &self,
        rows: &Rows,
        y: impl Into<DeviceSlice<'a>>,
        dy: impl Into<DeviceSlice<'a>>,
        dx: impl Into<DeviceSliceMut<'a>>,
    ) -> Result<()> {
        let (y, dy, mut dx) = (y.into(), dy.into(), dx.into());
        rows.check_log_softmax_backward(y.extent(), dy.extent(), dx.extent())?;
        self.check_rows(LOG_SOFTMAX_BACKWARD, [("y", &y), ("dy", &dy)], ("dx", &dx))?;
        let inputs = Inputs {
            dy: Some(&dy),
            ..Inputs::of(&y)
        };
        // SAFETY: as in `log_softmax`.
        unsafe { self.run_rows(RowOp::LogSoftmaxBackward, rows, inputs, &mut dx) }
    }

    /// Copies rows, each element rounded once to the dtype of `y` (contract section 7): exact where
    /// that has every value of x, but for NaN, which becomes the canonical one.
    ///
    /// Errors: as [`log_softmax`](Self::log_softmax), but that the dtypes may differ.
    pub fn round<'a>(
        &self,
        rows: &Rows,
        x: impl Into<DeviceSlice<'a>>,
        y: impl Into<DeviceSliceMut<'a>>,
    ) -> Result<()> {
        let (x, mut y) = (x.into(), y.into());
        rows.check_round(x.extent(), y.extent())?;
        self.check_rows(ROUND, [("x", &x)], ("y", &y))?;
        let op = RowOp::Round { out: y.dtype() };
        // SAFETY: as in `log_softmax`.
        unsafe { self.run_rows(op, rows, Inputs::of(&x), &mut y) }
    }
}
