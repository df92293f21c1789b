//! Carries out a plan on a stream: kernels, workspace, launches.

use cudarc::driver::{CudaStream, result, sys::CUdeviceptr};

use super::args::Product;
use super::driver::{Driver, LaunchSize, driver};
use super::kernels::{Function, Instance, Kernels};
use super::plan::Plan;
use crate::error::{Error, Result};
use crate::gemm::batch_offsets;

/// Addresses of a problem's operands: the elements that its views begin with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bases {
    pub lhs: CUdeviceptr,
    pub rhs: CUdeviceptr,
    pub bias: CUdeviceptr,
    pub out: CUdeviceptr,
    /// Bytes of an element of the inputs and of the output.
    pub sizes: (usize, usize),
}

/// The kernels of a plan's steps, compiled and loaded where that is not done yet.
///
/// Errors: [`Error::CaptureNotPrepared`] if that would be needed while the stream records a graph.
pub(super) fn functions(
    op: &'static str,
    plan: &Plan,
    kernels: &Kernels,
    stream: &CudaStream,
) -> Result<Vec<Function>> {
    let steps = plan.steps.iter();
    steps
        .map(|step| function(op, &step.instance, step.shared, kernels, stream))
        .collect()
}

/// One kernel. Errors: as [`functions`].
pub(super) fn function(
    op: &'static str,
    instance: &Instance,
    shared: u32,
    kernels: &Kernels,
    stream: &CudaStream,
) -> Result<Function> {
    match kernels.loaded(instance) {
        Some(function) => Ok(function),
        None if Driver::is_capturing(stream)? => Err(Error::CaptureNotPrepared {
            op,
            what: format!(
                "the kernel `{instance}` is not loaded: call `prepare` for this problem before"
            ),
        }),
        None => kernels.load(instance, shared),
    }
}

/// Launches every step of a plan, for every entry that is repeated.
///
/// # Safety
///
/// As of [`Driver::launch`], for every operand of a validated problem that the plan was made for;
/// the stream's context is bound.
pub(super) unsafe fn run(
    op: &'static str,
    plan: &Plan,
    functions: &[Function],
    bases: Bases,
    stream: &CudaStream,
) -> Result<()> {
    if plan.steps.is_empty() {
        return Ok(());
    }
    let workspace = Workspace::new(op, plan.workspace, stream)?;
    let repeats: usize = plan.repeats.iter().map(|dim| dim.len).product();
    let (lhs, rhs) = match plan.turned {
        false => (bases.lhs, bases.rhs),
        true => (bases.rhs, bases.lhs),
    };
    for entry in 0..repeats {
        let (lhs_offset, rhs_offset, out_offset) = batch_offsets(&plan.repeats, entry);
        let (input, output) = bases.sizes;
        let bytes = |elements: usize, size: usize| (elements * size) as u64;
        for (step, &function) in plan.steps.iter().zip(functions) {
            let args = Product {
                lhs: lhs + bytes(lhs_offset, input) + step.args.lhs,
                rhs: rhs + bytes(rhs_offset, input) + step.args.rhs,
                bias: bases.bias + step.args.bias,
                out: bases.out + bytes(out_offset, output) + step.args.out,
                totals: workspace.address,
                ..step.args
            };
            let size = LaunchSize {
                grid: step.grid,
                block: step.block,
                shared: step.shared,
            };
            // SAFETY: the caller's promise, and a plan addresses what its problem does, as
            // `Gemm::validate` describes it.
            unsafe { Driver::launch(stream, function, size, args) }?;
        }
    }
    workspace.free()
}

/// Memory of the stream's pool, for the launches between its allocation and its release in the
/// stream's order. In a graph both are nodes of it, so every replay has its own turn.
pub(super) struct Workspace<'a> {
    pub address: CUdeviceptr,
    stream: &'a CudaStream,
}

impl<'a> Workspace<'a> {
    pub fn new(op: &'static str, bytes: u64, stream: &'a CudaStream) -> Result<Self> {
        let pooled = stream.context().has_async_alloc();
        if bytes > 0 && !pooled && Driver::is_capturing(stream)? {
            let what =
                format!("{bytes} bytes of workspace are needed: this device has no pool for them");
            return Err(Error::CaptureNotPrepared { op, what });
        }
        // SAFETY: the stream is live, and only the launches of one call use the memory.
        let allocated = unsafe {
            match (bytes, pooled) {
                (0, _) => Ok(0),
                (_, true) => result::malloc_async(stream.cu_stream(), bytes as usize),
                (_, false) => result::malloc_sync(bytes as usize),
            }
        };
        let address = allocated.map_err(driver("allocate workspace"))?;
        Ok(Workspace { address, stream })
    }

    /// Releases the memory once the launches before have run.
    pub fn free(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        let address = std::mem::take(&mut self.address);
        if address == 0 {
            return Ok(());
        }
        let stream = self.stream;
        // SAFETY: allocated on this stream, and released once, after the launches that use it: in
        // the stream's order, or when the stream has run them.
        let released = unsafe {
            match stream.context().has_async_alloc() {
                true => result::free_async(address, stream.cu_stream()),
                false => stream
                    .synchronize()
                    .and_then(|()| result::free_sync(address)),
            }
        };
        released.map_err(driver("release workspace"))
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        // After a failed launch; its error is the one to report.
        let _ = self.release();
    }
}
