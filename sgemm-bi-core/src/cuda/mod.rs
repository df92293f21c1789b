//! The CUDA engine: the contract's bits on an NVIDIA GPU, on the caller's stream.
//!
//! Kernels are compiled when a problem first needs them, by NVRTC, the run-time compiler, for the
//! GPU at hand, and kept on disk (see [`CudaEngine`]). Nothing of CUDA is needed to build this
//! crate; the driver and NVRTC are opened at run time, and a missing one is an error that says
//! what to install.

mod args;
mod cache;
mod driver;
mod embed;
mod find;
mod kernels;
mod launch;
mod nvrtc;
mod operands;
mod plan;
mod rows;
#[cfg(test)]
mod scratch;
mod targets;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaStream, sys::CUdevice_attribute};

use crate::error::{Error, Result};
use crate::gemm::BIAS_GRADIENT;
use crate::turn::Form;
use crate::{BiasGradient, Dtype, Gemm, Tier};
use driver::{Driver, driver};
use kernels::Kernels;
use launch::Bases;
pub use operands::{CudaOperands, DeviceSlice, DeviceSliceMut};
use plan::{Addresses, Gpu, Kinds, Plan};
pub use rows::RowOp;
pub use targets::{DeviceTargets, TargetType};

/// An engine on a GPU.
///
/// It launches on the stream that it was made for and on no other; a call returns when its
/// launches are in the stream. A clone, and every other engine of the same context, shares the
/// loaded kernels; they stay loaded, and the context alive, as long as the process.
///
/// Bits: the contract's, those of [`CpuEngine`](crate::CpuEngine), on every GPU.
///
/// # What is needed at run time
///
/// The driver, and NVRTC 12 or 13, in this order:
///
/// 1. what `SGEMM_BI_NVRTC` names, a library or its folder, and nothing else then;
/// 2. a library that the process has loaded;
/// 3. a toolkit in `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda` or `/usr/local/cuda-*`;
/// 4. the loader's path;
/// 5. the PyPI wheels `nvidia-cuda-nvrtc` and `nvidia-cuda-nvrtc-cu12`, in `PYTHONPATH`,
///    `VIRTUAL_ENV`, `CONDA_PREFIX`, `~/.local`, `/usr/local` and `/usr`.
///
/// The first one is taken that compiles for the GPU and is no newer than the driver (its major
/// version).
///
/// Where kernels were embedded when this crate was built (with `SGEMM_BI_EMBED`, see the README), the
/// driver alone is enough for what they cover. They are used only if they were made from the same
/// sources.
///
/// Compiled kernels are kept in `SGEMM_BI_CACHE_DIR`, or in `sgemm-bi` in `XDG_CACHE_HOME` or
/// `~/.cache`; an empty `SGEMM_BI_CACHE_DIR` turns that off. Whatever is wrong with the folder or an
/// entry, the kernel is compiled again.
///
/// # Graphs
///
/// A call can be recorded in a CUDA graph if its kernels are loaded:
/// [`prepare`](CudaEngine::prepare) sees to that. Workspace is taken from the stream's memory pool,
/// by nodes of the graph. Recording neither compiles nor loads anything, and refuses to with
/// [`Error::CaptureNotPrepared`].
///
/// ```no_run
/// use sgemm_bi_core::cuda::{CudaEngine, CudaOperands};
/// use sgemm_bi_core::{Dtype, Gemm, Shape, WeightLayout};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = CudaEngine::new(0)?;
/// let stream = engine.stream();
/// let x = stream.clone_htod(&[1.0f32, 2.0, 3.0, 4.0])?; // [2, 2]
/// let w = stream.clone_htod(&[1.0f32, 0.0, 0.5, 1.0, 2.0, 4.0])?; // [out = 3, in = 2]
/// let bias = stream.clone_htod(&[0.0f32, 10.0, 100.0])?;
/// let mut y = stream.alloc_zeros::<f32>(6)?; // [2, 3]
///
/// let forward = Gemm::forward(Shape { m: 2, k: 2, n: 3 }, Dtype::F32, WeightLayout::OutIn)
///     .with_bias(Dtype::F32);
/// engine.gemm(&forward, CudaOperands::new(&x, &w, &mut y).with_bias(&bias))?;
/// assert_eq!(stream.clone_dtoh(&y)?, [1.0, 12.5, 110.0, 3.0, 15.5, 122.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CudaEngine {
    stream: Arc<CudaStream>,
    device: Arc<Device>,
}

/// What all engines of a context share.
struct Device {
    gpu: Gpu,
    kernels: Kernels,
}

/// What [`CudaEngine::prepare`] made sure of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// Kernels that a call launches, counting repetitions.
    pub launches: usize,
    /// Bytes of the stream's memory pool that a call takes while its launches run.
    pub workspace: u64,
}

impl std::fmt::Debug for CudaEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaEngine")
            .field("device", &self.stream.context().ordinal())
            .field("stream", &self.stream.cu_stream())
            .field("gpu", &self.device.gpu)
            .finish_non_exhaustive()
    }
}

impl CudaEngine {
    /// An engine on the default stream of the GPU with this ordinal, in its primary context.
    ///
    /// Errors: [`Error::NoDriver`], [`Error::NoDevice`], [`Error::Driver`].
    pub fn new(ordinal: usize) -> Result<Self> {
        Driver::require()?;
        let count = Driver::device_count()?;
        if ordinal >= count {
            return Err(Error::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(driver("create a context"))?;
        Self::on_stream(context.default_stream())
    }

    /// An engine on a stream, in the stream's context.
    ///
    /// Errors: [`Error::NoDriver`], [`Error::Driver`].
    pub fn on_stream(stream: Arc<CudaStream>) -> Result<Self> {
        Driver::require()?;
        let device = Device::of(stream.context())?;
        Ok(CudaEngine { stream, device })
    }

    /// The stream that it launches on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The context that it works in.
    pub fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// Computes `out = lhs · rhs (+ bias)`, or adds to `out`, when the stream comes to it.
    ///
    /// Errors: those of [`Gemm::validate`] and of memory that the GPU cannot use, before anything
    /// is launched; [`Error::UnsupportedTier`]; [`Error::NoNvrtc`] and [`Error::Compile`];
    /// [`Error::CaptureNotPrepared`]; [`Error::Driver`].
    pub fn gemm(&self, gemm: &Gemm, mut operands: CudaOperands<'_>) -> Result<()> {
        self.check(gemm, &operands)?;
        let CudaOperands {
            lhs,
            rhs,
            bias,
            out,
        } = &mut operands;
        let stream = &*self.stream;
        let (lhs, rhs, out) = (lhs.pin(stream), rhs.pin(stream), out.pin(stream));
        let bias = bias.as_ref().map(|bias| bias.pin(stream));
        let bases = gemm_bases(gemm, lhs.address, rhs.address, out.address);
        let bases = Bases {
            bias: bias.as_ref().map_or(0, |bias| bias.address),
            ..bases
        };
        let plan = self.plan_gemm(gemm, bases);
        // SAFETY: the operands are checked, and borrowed or vouched for until the launches; what
        // is pinned orders later work after them.
        unsafe { self.run(gemm.op().name(), &plan, bases) }
    }

    /// Computes `db = Σ rows of dy`, or adds to `db`, when the stream comes to it.
    ///
    /// Errors: those of [`BiasGradient::validate`], and the rest as of [`gemm`](Self::gemm).
    pub fn bias_gradient<'a>(
        &self,
        problem: &BiasGradient,
        dy: impl Into<DeviceSlice<'a>>,
        db: impl Into<DeviceSliceMut<'a>>,
    ) -> Result<()> {
        let (dy, mut db) = (dy.into(), db.into());
        self.check_bias_gradient(problem, &dy, &db)?;
        let (dy, db) = (dy.pin(&self.stream), db.pin(&self.stream));
        let bases = bias_gradient_bases(problem, dy.address, db.address);
        let plan = self.plan_bias_gradient(problem, bases);
        // SAFETY: as in `gemm`.
        unsafe { self.run(BIAS_GRADIENT, &plan, bases) }
    }

    /// Compiles and loads what [`gemm`](Self::gemm) needs, so that the same call can be recorded
    /// in a graph, and does nothing with the operands. Which kernels these are depends on the
    /// description and on whether the addresses of the inputs are multiples of 16 bytes.
    ///
    /// Errors: those of [`gemm`](Self::gemm).
    pub fn prepare(&self, gemm: &Gemm, operands: &CudaOperands<'_>) -> Result<Prepared> {
        self.check(gemm, operands)?;
        let plan = self.plan_for(gemm, operands);
        self.load(gemm.op().name(), &plan)
    }

    /// [`prepare`](Self::prepare), for [`bias_gradient`](Self::bias_gradient).
    ///
    /// Errors: those of [`bias_gradient`](Self::bias_gradient).
    pub fn prepare_bias_gradient(
        &self,
        problem: &BiasGradient,
        dy: &DeviceSlice<'_>,
        db: &DeviceSliceMut<'_>,
    ) -> Result<Prepared> {
        self.check_bias_gradient(problem, dy, db)?;
        let bases = bias_gradient_bases(problem, dy.address(), 0);
        self.load(BIAS_GRADIENT, &self.plan_bias_gradient(problem, bases))
    }

    /// What [`gemm`](Self::gemm) would do, in words for people: where kernels come from, each
    /// launch with its kernel's parameters, grid and shared memory, and the workspace.
    ///
    /// Errors: those of [`gemm`](Self::gemm) that come before anything is compiled.
    pub fn explain(&self, gemm: &Gemm, operands: &CudaOperands<'_>) -> Result<String> {
        self.check(gemm, operands)?;
        let plan = self.plan_for(gemm, operands);
        let mut text = format!("{}\n", self.device.kernels.describe());
        let _ = writeln!(text, "{plan}");
        Ok(text)
    }

    fn check(&self, gemm: &Gemm, operands: &CudaOperands<'_>) -> Result<()> {
        gemm.check(&operands.extents())?;
        match gemm.tier() {
            Tier::Scalar => {}
            Tier::TensorCore(_) => return Err(gemm.unsupported_tier("the CUDA engine")),
        }
        let op = gemm.op().name();
        plan::check_reduction(op, gemm.reduction())?;
        self.bind()?;
        operands.check(op, self.context())
    }

    fn check_bias_gradient(
        &self,
        problem: &BiasGradient,
        dy: &DeviceSlice<'_>,
        db: &DeviceSliceMut<'_>,
    ) -> Result<()> {
        problem.check(dy.extent(), db.extent())?;
        plan::check_reduction(BIAS_GRADIENT, problem.rows)?;
        self.bind()?;
        dy.check(BIAS_GRADIENT, "dy", self.context())?;
        db.check(BIAS_GRADIENT, "db", self.context())
    }

    fn bind(&self) -> Result<()> {
        self.context()
            .bind_to_thread()
            .map_err(driver("bind the context"))
    }

    fn plan_for(&self, gemm: &Gemm, operands: &CudaOperands<'_>) -> Plan {
        let (lhs, rhs) = (operands.lhs.address(), operands.rhs.address());
        self.plan_gemm(gemm, gemm_bases(gemm, lhs, rhs, 0))
    }

    fn plan_gemm(&self, gemm: &Gemm, bases: Bases) -> Plan {
        let kinds = Kinds {
            element: gemm.dtype(),
            out: gemm.out_dtype(),
            bias: gemm.bias(),
            accumulate: gemm.accumulates(),
            ones: false,
        };
        plan::plan(Form::of(gemm), kinds, addresses(bases), self.device.gpu)
    }

    fn plan_bias_gradient(&self, problem: &BiasGradient, bases: Bases) -> Plan {
        let kinds = Kinds {
            element: problem.dtype,
            out: Dtype::F32,
            bias: None,
            accumulate: problem.accumulate,
            ones: true,
        };
        let form = Form::of_bias_gradient(problem);
        plan::plan(form, kinds, addresses(bases), self.device.gpu)
    }

    /// Loads the kernels of a plan.
    fn load(&self, op: &'static str, plan: &Plan) -> Result<Prepared> {
        launch::functions(op, plan, &self.device.kernels, &self.stream)?;
        Ok(Prepared {
            launches: plan.launches(),
            workspace: plan.workspace,
        })
    }

    /// Carries out a plan.
    ///
    /// # Safety
    ///
    /// As of [`launch::run`].
    unsafe fn run(&self, op: &'static str, plan: &Plan, bases: Bases) -> Result<()> {
        let functions = launch::functions(op, plan, &self.device.kernels, &self.stream)?;
        // SAFETY: the caller's promise; the context was bound by the checks.
        unsafe { launch::run(op, plan, &functions, bases, &self.stream) }
    }
}

impl Device {
    /// The one of a context.
    fn of(context: &Arc<CudaContext>) -> Result<Arc<Self>> {
        // By context, which an ordinal may have several of. An entry keeps its context alive, so
        // that the handle stays its own.
        static DEVICES: Mutex<Option<HashMap<usize, Arc<Device>>>> = Mutex::new(None);
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = devices.get_or_insert_default();
        let key = context.cu_ctx() as usize;
        if let Some(device) = devices.get(&key) {
            return Ok(Arc::clone(device));
        }
        let ask = |attribute| {
            context
                .attribute(attribute)
                .map_err(driver("ask for the GPU"))
        };
        let (major, minor) = (context.compute_capability()).map_err(driver("ask for the GPU"))?;
        let multiprocessors = ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let arch = (10 * major + minor) as u32;
        let device = Arc::new(Device {
            gpu: Gpu {
                arch,
                multiprocessors: multiprocessors as u32,
            },
            kernels: Kernels::new(Arc::clone(context), arch),
        });
        devices.insert(key, Arc::clone(&device));
        Ok(device)
    }
}

fn addresses(bases: Bases) -> Addresses {
    Addresses {
        lhs: bases.lhs,
        rhs: bases.rhs,
    }
}

/// Where a product's views begin, without its bias.
fn gemm_bases(gemm: &Gemm, lhs: u64, rhs: u64, out: u64) -> Bases {
    let (input, output) = (
        gemm.dtype().size_in_bytes(),
        gemm.out_dtype().size_in_bytes(),
    );
    // The offset of a view that addresses nothing may be anything.
    let at = |address: u64, offset: usize, size| {
        address.wrapping_add((offset as u64).wrapping_mul(size as u64))
    };
    Bases {
        lhs: at(lhs, gemm.lhs().offset, input),
        rhs: at(rhs, gemm.rhs().offset, input),
        bias: 0,
        out: at(out, gemm.out().offset, output),
        sizes: (input, output),
    }
}

/// Where a bias gradient's operands begin; its ones are not read.
fn bias_gradient_bases(problem: &BiasGradient, dy: u64, db: u64) -> Bases {
    let size = problem.dtype.size_in_bytes();
    let offset = (problem.view.offset as u64).wrapping_mul(size as u64);
    Bases {
        lhs: 0,
        rhs: dy.wrapping_add(offset),
        bias: 0,
        out: db,
        sizes: (size, Dtype::F32.size_in_bytes()),
    }
}
