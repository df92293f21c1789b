//! log-softmax and cross-entropy on a GPU (contract section 9).

use std::slice::from_mut;

use cudarc::driver::{DevicePtr, result, sys::CUdeviceptr};

use super::driver::{Driver, LaunchSize, driver};
use super::kernels::{Function, Instance, ROWS, dtype};
use super::launch::{self, Workspace};
use super::targets::{DeviceTargets, TargetType, with_targets};
use super::{CudaEngine, DeviceSlice, DeviceSliceMut};
use crate::contract::CHUNK;
use crate::error::{Error, Result};
use crate::rows::{
    CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD, ROUND,
};
use crate::{Dtype, Rows};

/// An operation on rows, with the types of what is not a row: what
/// [`CudaEngine::prepare_rows`] prepares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowOp {
    /// [`CudaEngine::log_softmax`].
    LogSoftmax,
    /// [`CudaEngine::log_softmax_backward`].
    LogSoftmaxBackward,
    /// [`CudaEngine::cross_entropy`].
    CrossEntropy {
        /// The type of the targets.
        targets: TargetType,
        /// The dtype of the loss.
        loss: Dtype,
    },
    /// [`CudaEngine::cross_entropy_backward`].
    CrossEntropyBackward {
        /// The type of the targets.
        targets: TargetType,
        /// The dtype of the loss's gradient.
        grad: Dtype,
    },
    /// [`CudaEngine::round`].
    Round {
        /// The dtype of the result.
        out: Dtype,
    },
}

/// The argument of the kernel: what `kernels/rows.cu` declares, byte for byte. Strides are in
/// elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Args {
    x: CUdeviceptr,
    dy: CUdeviceptr,
    grad: CUdeviceptr,
    targets: CUdeviceptr,
    out: CUdeviceptr,
    rows: i64,
    cols: i64,
    input_stride: i64,
    output_stride: i64,
}

// `rows.cu` asserts the same.
const _: () = assert!(size_of::<Args>() == 72);

impl Args {
    fn of(rows: &Rows) -> Self {
        Args {
            rows: rows.rows as i64,
            cols: rows.cols as i64,
            // Where there is one row, they are not used.
            input_stride: rows.input_stride as i64,
            output_stride: rows.output_stride as i64,
            ..Args::default()
        }
    }
}

/// What an instance of the kernel computes: its `OPERATION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    LogSoftmax = 0,
    LogSoftmaxBackward = 1,
    CrossEntropy = 2,
    CrossEntropyBackward = 3,
    Mean = 4,
    CheckTargets = 5,
    Round = 6,
}

/// An instance, with its launch but for the number of blocks.
#[derive(Clone, Debug)]
struct Kernel {
    instance: Instance,
    block: u32,
    /// Rows of a block.
    rows: usize,
}

impl Kernel {
    fn new(step: Step, cols: usize, element: Dtype, out: Dtype) -> Self {
        // (threads that share a chain, warps that share a row): a chain for each chunk, and short
        // rows side by side in a warp.
        let (lanes, warps) = match step {
            Step::CheckTargets => (32, 1),
            Step::Mean => (32, 32),
            _ if cols <= 16 => (8, 1),
            _ if cols <= CHUNK => (32, 1),
            _ => (32, 8),
        };
        let group = lanes * warps;
        let block = group.max(256);
        let rows = match step {
            Step::CheckTargets => block,
            _ => block / group,
        };
        let instance = Instance::new(
            &ROWS,
            vec![
                ("OPERATION", step as u32),
                ("ELEMENT", dtype(element)),
                ("OUT", dtype(out)),
                ("SCALAR", 0),
                ("TARGET", 0),
                ("LANES", lanes),
                ("WARPS", warps),
            ],
        );
        Kernel {
            instance,
            block,
            rows: rows as usize,
        }
    }

    fn with(mut self, name: &'static str, value: u32) -> Self {
        let defines = self.instance.defines.iter_mut();
        for (_, define) in defines.filter(|(define, _)| *define == name) {
            *define = value;
        }
        self
    }

    /// The launch over this many rows. A block goes on to further rows where a grid has no more.
    fn size(&self, rows: usize) -> LaunchSize {
        let blocks = rows.div_ceil(self.rows).clamp(1, i32::MAX as usize);
        LaunchSize {
            grid: blocks as u32,
            block: self.block,
            shared: 0,
        }
    }
}

impl RowOp {
    fn name(self) -> &'static str {
        match self {
            RowOp::LogSoftmax => LOG_SOFTMAX,
            RowOp::LogSoftmaxBackward => LOG_SOFTMAX_BACKWARD,
            RowOp::CrossEntropy { .. } => CROSS_ENTROPY,
            RowOp::CrossEntropyBackward { .. } => CROSS_ENTROPY_BACKWARD,
            RowOp::Round { .. } => ROUND,
        }
    }

    /// The check of the targets, where there are any.
    fn check(self) -> Option<Kernel> {
        match self {
            RowOp::LogSoftmax | RowOp::LogSoftmaxBackward | RowOp::Round { .. } => None,
            RowOp::CrossEntropy { targets, .. } | RowOp::CrossEntropyBackward { targets, .. } => {
                let kernel = Kernel::new(Step::CheckTargets, 0, Dtype::F32, Dtype::F32);
                Some(kernel.with("TARGET", targets.define()))
            }
        }
    }

    /// The kernels that compute it on elements of `element`, in the order of their launches.
    fn kernels(self, cols: usize, element: Dtype) -> Vec<Kernel> {
        let kernel = |step, out| Kernel::new(step, cols, element, out);
        match self {
            RowOp::LogSoftmax => vec![kernel(Step::LogSoftmax, element)],
            RowOp::LogSoftmaxBackward => vec![kernel(Step::LogSoftmaxBackward, element)],
            RowOp::Round { out } => vec![kernel(Step::Round, out)],
            RowOp::CrossEntropy { targets, loss } => vec![
                kernel(Step::CrossEntropy, Dtype::F32).with("TARGET", targets.define()),
                Kernel::new(Step::Mean, 0, Dtype::F32, loss),
            ],
            RowOp::CrossEntropyBackward { targets, grad } => {
                let kernel = kernel(Step::CrossEntropyBackward, element);
                let kernel = kernel.with("TARGET", targets.define());
                vec![kernel.with("SCALAR", dtype(grad))]
            }
        }
    }
}

/// A kernel that is loaded.
type Loaded = (Kernel, Function);

impl CudaEngine {
    /// Computes `y = log_softmax(x)` when the stream comes to it.
    ///
    /// Operands and bits are those of [`CpuEngine::log_softmax`](crate::CpuEngine::log_softmax).
    ///
    /// Errors: those of the CPU engine and of memory on another device, before anything is
    /// launched; [`Error::NoNvrtc`] and [`Error::Compile`]; [`Error::CaptureNotPrepared`];
    /// [`Error::Driver`].
    pub fn log_softmax<'a>(
        &self,
        rows: &Rows,
        x: impl Into<DeviceSlice<'a>>,
        y: impl Into<DeviceSliceMut<'a>>,
    ) -> Result<()> {
        let (x, mut y) = (x.into(), y.into());
        rows.check_log_softmax(x.extent(), y.extent())?;
        self.check_rows(LOG_SOFTMAX, [("x", &x)], ("y", &y))?;
        if rows.is_empty() {
            return Ok(());
        }
        let kernels = self.load_rows(RowOp::LogSoftmax, rows, x.dtype())?;
        let (x, y) = (x.pin(&self.stream), y.pin(&self.stream));
        let args = Args {
            x: x.address,
            out: y.address,
            ..Args::of(rows)
        };
        // SAFETY: the operands are checked, and borrowed or vouched for until the launch; what is
        // pinned orders later work after it.
        unsafe { self.launch_rows(&kernels[0], args) }
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
        if rows.is_empty() {
            return Ok(());
        }
        let kernels = self.load_rows(RowOp::LogSoftmaxBackward, rows, y.dtype())?;
        let (y, dy) = (y.pin(&self.stream), dy.pin(&self.stream));
        let dx = dx.pin(&self.stream);
        let args = Args {
            x: y.address,
            dy: dy.address,
            out: dx.address,
            ..Args::of(rows)
        };
        // SAFETY: as in `log_softmax`.
        unsafe { self.launch_rows(&kernels[0], args) }
    }

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
        let (logits, loss) = (logits.pin(&self.stream), loss.pin(&self.stream));
        with_targets!(&targets, view => {
            let (targets, _guard) = view.device_ptr(&self.stream);
            let args = Args {
                x: logits.address,
                targets,
                out: losses.address,
                output_stride: 1,
                ..Args::of(rows)
            };
            if rows.rows > 0 {
                // SAFETY: as in `log_softmax`; the workspace has an element for each row.
                unsafe { self.launch_rows(&kernels[0], args) }?;
            }
        });
        let args = Args {
            x: losses.address,
            out: loss.address,
            ..Args::of(&Rows::new(1, rows.rows))
        };
        // SAFETY: as above; the loss has one element.
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
        let kernels = self.load_rows(op, rows, logits.dtype())?;
        self.check_targets(op, rows, &targets)?;
        if rows.is_empty() {
            return Ok(());
        }
        let (logits, grad) = (logits.pin(&self.stream), grad.pin(&self.stream));
        let dlogits = dlogits.pin(&self.stream);
        with_targets!(&targets, view => {
            let (targets, _guard) = view.device_ptr(&self.stream);
            let args = Args {
                x: logits.address,
                grad: grad.address,
                targets,
                out: dlogits.address,
                ..Args::of(rows)
            };
            // SAFETY: as in `log_softmax`.
            unsafe { self.launch_rows(&kernels[0], args) }
        })
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
        if rows.is_empty() {
            return Ok(());
        }
        let kernels = self.load_rows(RowOp::Round { out: y.dtype() }, rows, x.dtype())?;
        let (x, y) = (x.pin(&self.stream), y.pin(&self.stream));
        let args = Args {
            x: x.address,
            out: y.address,
            ..Args::of(rows)
        };
        // SAFETY: as in `log_softmax`.
        unsafe { self.launch_rows(&kernels[0], args) }
    }

    /// Compiles and loads what an operation on rows of `dtype` needs, so that it can be recorded in
    /// a graph. Of `rows`, only the number of columns matters.
    ///
    /// Errors: [`Error::NoNvrtc`], [`Error::Compile`], [`Error::Driver`].
    pub fn prepare_rows(&self, op: RowOp, rows: &Rows, dtype: Dtype) -> Result<()> {
        self.bind()?;
        self.load_rows(op, rows, dtype).map(drop)
    }

    /// Checks where operands lie.
    fn check_rows<const N: usize>(
        &self,
        op: &'static str,
        inputs: [(&'static str, &DeviceSlice<'_>); N],
        (argument, output): (&'static str, &DeviceSliceMut<'_>),
    ) -> Result<()> {
        self.bind()?;
        for (argument, input) in inputs {
            input.check(op, argument, self.context())?;
        }
        output.check(op, argument, self.context())
    }

    /// The kernels of an operation, in the order of their launches, and behind them the check of
    /// its targets.
    fn load_rows(&self, op: RowOp, rows: &Rows, element: Dtype) -> Result<Vec<Loaded>> {
        let kernels = op.kernels(rows.cols, element).into_iter().chain(op.check());
        kernels
            .map(|kernel| self.load_kernel(op.name(), kernel))
            .collect()
    }

    fn load_kernel(&self, op: &'static str, kernel: Kernel) -> Result<Loaded> {
        let kernels = &self.device.kernels;
        let function = launch::function(op, &kernel.instance, 0, kernels, &self.stream)?;
        Ok((kernel, function))
    }

    /// Launches a kernel over `args.rows` rows.
    ///
    /// # Safety
    ///
    /// Every element that the arguments address for the kernel's operation is live until the launch
    /// has run; the context is bound.
    unsafe fn launch_rows(&self, (kernel, function): &Loaded, args: Args) -> Result<()> {
        let size = kernel.size(args.rows as usize);
        // SAFETY: the caller's promise; `Args` is what every instance takes.
        unsafe { Driver::launch(&self.stream, *function, size, args) }
    }

    /// Waits for the stream, and refuses a target that is no column's index. Does nothing while the
    /// stream records a graph.
    fn check_targets(&self, op: RowOp, rows: &Rows, targets: &DeviceTargets<'_>) -> Result<()> {
        let Some(kernel) = op.check() else {
            return Ok(());
        };
        if rows.rows == 0 || Driver::is_capturing(&self.stream)? {
            return Ok(());
        }
        let loaded = self.load_kernel(op.name(), kernel)?;
        let first = Workspace::new(op.name(), size_of::<u64>() as u64, &self.stream)?;
        let stream = self.stream.cu_stream();
        let mut row = u64::MAX;
        // SAFETY: the workspace is one u64.
        unsafe { result::memset_d8_async(first.address, 0xFF, size_of::<u64>(), stream) }
            .map_err(driver("set memory"))?;
        with_targets!(targets, view => {
            let (targets, _guard) = view.device_ptr(&self.stream);
            let args = Args {
                targets,
                out: first.address,
                ..Args::of(rows)
            };
            // SAFETY: there is a target for each row, and the result is one u64.
            unsafe { self.launch_rows(&loaded, args) }?;
        });
        // SAFETY: the workspace is one u64, and `row` outlives the copy, which is waited for.
        unsafe { result::memcpy_dtoh_async(from_mut(&mut row), first.address, stream) }
            .map_err(driver("read memory"))?;
        self.stream
            .synchronize()
            .map_err(driver("wait for a stream"))?;
        first.free()?;
        if row == u64::MAX {
            return Ok(());
        }
        let row = row as usize;
        let got = with_targets!(targets, view => {
            let mut got = [Default::default()];
            self.stream
                .memcpy_dtoh(&view.slice(row..row + 1), &mut got)
                .and_then(|()| self.stream.synchronize())
                .map_err(driver("read memory"))?;
            widened(got[0])
        });
        Err(rows.target_out_of_range(op.name(), row, got))
    }
}

fn widened(target: impl Into<i64>) -> i64 {
    target.into()
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

#[cfg(test)]
mod tests;
