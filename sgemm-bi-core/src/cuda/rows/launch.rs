//! Loads and launches the kernels of an operation on rows.

use super::super::driver::Driver;
use super::super::kernels::Function;
use super::super::{CudaEngine, DeviceSlice, DeviceSliceMut, DeviceTargets, launch};
use super::RowOp;
use super::kernels::{Args, Kernel};
use crate::error::Result;
use crate::{Dtype, Rows};

/// A kernel that is loaded.
pub(super) type Loaded = (Kernel, Function);

/// What a kernel reads.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub x: &'a DeviceSlice<'a>,
    pub dy: Option<&'a DeviceSlice<'a>>,
    pub grad: Option<&'a DeviceSlice<'a>>,
    pub targets: Option<&'a DeviceTargets<'a>>,
}

impl<'a> Inputs<'a> {
    /// The rows alone.
    pub fn of(x: &'a DeviceSlice<'a>) -> Self {
        Inputs {
            x,
            dy: None,
            grad: None,
            targets: None,
        }
    }
}

impl CudaEngine {
    /// Checks where operands lie.
    pub(super) fn check_rows<const N: usize>(
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

    /// Runs an operation of one kernel, once its targets are checked, where there are any.
    ///
    /// # Safety
    ///
    /// The operands are checked, and live until the launch has run; the context is bound.
    pub(super) unsafe fn run_rows(
        &self,
        op: RowOp,
        rows: &Rows,
        inputs: Inputs<'_>,
        out: &mut DeviceSliceMut<'_>,
    ) -> Result<()> {
        // Targets of rows without columns are out of range.
        if inputs.targets.is_none() && rows.is_empty() {
            return Ok(());
        }
        let kernels = self.load_rows(op, rows, inputs.x.dtype())?;
        if let Some(targets) = inputs.targets {
            self.check_targets(op, rows, targets)?;
        }
        if rows.is_empty() {
            return Ok(());
        }
        let out = out.pin(&self.stream);
        let args = Args {
            out: out.address,
            ..Args::of(rows)
        };
        // SAFETY: the caller's promise; what is pinned orders later work after the launch.
        unsafe { self.launch_on(&kernels[0], args, inputs) }
    }

    /// Launches a kernel on what it reads, in order with the stream's earlier and later work.
    ///
    /// # Safety
    ///
    /// As of [`launch_rows`](Self::launch_rows).
    pub(super) unsafe fn launch_on(
        &self,
        kernel: &Loaded,
        args: Args,
        inputs: Inputs<'_>,
    ) -> Result<()> {
        let stream = &*self.stream;
        let x = inputs.x.pin(stream);
        let dy = inputs.dy.map(|dy| dy.pin(stream));
        let grad = inputs.grad.map(|grad| grad.pin(stream));
        let targets = inputs.targets.map(|targets| targets.pin(stream));
        let args = Args {
            x: x.address,
            dy: dy.as_ref().map_or(0, |dy| dy.address),
            grad: grad.as_ref().map_or(0, |grad| grad.address),
            targets: targets.as_ref().map_or(0, |(address, _)| *address),
            ..args
        };
        // SAFETY: the caller's promise; what is pinned orders later work after the launch.
        unsafe { self.launch_rows(kernel, args) }
    }

    /// The kernels of an operation, in the order of their launches, and behind them the check of
    /// its targets.
    pub(super) fn load_rows(&self, op: RowOp, rows: &Rows, element: Dtype) -> Result<Vec<Loaded>> {
        let kernels = op.kernels(rows.cols, element).into_iter().chain(op.check());
        kernels
            .map(|kernel| self.load_kernel(op.name(), kernel))
            .collect()
    }

    pub(super) fn load_kernel(&self, op: &'static str, kernel: Kernel) -> Result<Loaded> {
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
    pub(super) unsafe fn launch_rows(&self, (kernel, function): &Loaded, args: Args) -> Result<()> {
        let size = kernel.size(args.rows as usize);
        // SAFETY: the caller's promise; `Args` is what every instance takes.
        unsafe { Driver::launch(&self.stream, *function, size, args) }
    }
}
