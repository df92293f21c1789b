//! Which instances of `kernels/rows.cu` an operation launches, how large, and with which argument.

use cudarc::driver::sys::CUdeviceptr;

use super::super::driver::LaunchSize;
use super::super::kernels::{Instance, ROWS, dtype};
use super::RowOp;
use crate::contract::CHUNK;
use crate::{Dtype, Rows};

/// The argument of the kernel: what `kernels/rows.cu` declares, byte for byte. Strides are in
/// elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Args {
    pub x: CUdeviceptr,
    pub dy: CUdeviceptr,
    pub grad: CUdeviceptr,
    pub targets: CUdeviceptr,
    pub out: CUdeviceptr,
    pub rows: i64,
    pub cols: i64,
    pub input_stride: i64,
    pub output_stride: i64,
}

// `rows.cu` asserts the same.
const _: () = assert!(size_of::<Args>() == 72);

impl Args {
    pub fn of(rows: &Rows) -> Self {
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
pub(super) enum Step {
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
pub(super) struct Kernel {
    pub instance: Instance,
    block: u32,
    /// Rows of a block.
    rows: usize,
}

impl Kernel {
    pub fn new(step: Step, cols: usize, element: Dtype, out: Dtype) -> Self {
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
    pub fn size(&self, rows: usize) -> LaunchSize {
        let blocks = rows.div_ceil(self.rows).clamp(1, i32::MAX as usize);
        LaunchSize {
            grid: blocks as u32,
            block: self.block,
            shared: 0,
        }
    }
}

impl RowOp {
    /// The check of the targets, where there are any.
    pub(super) fn check(self) -> Option<Kernel> {
        match self {
            RowOp::LogSoftmax | RowOp::LogSoftmaxBackward | RowOp::Round { .. } => None,
            RowOp::CrossEntropy { targets, .. } | RowOp::CrossEntropyBackward { targets, .. } => {
                let kernel = Kernel::new(Step::CheckTargets, 0, Dtype::F32, Dtype::F32);
                Some(kernel.with("TARGET", targets.define()))
            }
        }
    }

    /// The kernels that compute it on elements of `element`, in the order of their launches.
    pub(super) fn kernels(self, cols: usize, element: Dtype) -> Vec<Kernel> {
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
