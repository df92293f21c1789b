//! The CUDA engine under test: operands go to the GPU and the output comes back.

use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DeviceRepr};
use half::{bf16, f16};
use sgemm_bi_core::cuda::{CudaEngine, CudaOperands, DeviceSlice, DeviceSliceMut};
use sgemm_bi_core::{BiasGradient, Error, Gemm, Operands, Result, SliceMut, SliceRef};

use crate::Engine;

/// If set, a missing GPU is a failure.
pub const REQUIRE: &str = "SGEMM_BI_REQUIRE_GPU";

/// The CUDA engine with operands in host memory, `shift` elements into their allocations: 0 is
/// aligned to anything, 1 to nothing.
#[derive(Clone, Debug)]
pub struct Cuda {
    /// The engine.
    pub engine: CudaEngine,
    /// Elements before each operand.
    pub shift: usize,
}

/// An engine on the first GPU. Without one, says that what asked is skipped and gives `None`; but
/// where [`REQUIRE`] is set, panics.
pub fn engine() -> Option<CudaEngine> {
    match CudaEngine::new(0) {
        Ok(engine) => Some(engine),
        Err(error) => {
            let required = std::env::var_os(REQUIRE).is_some_and(|value| !value.is_empty());
            assert!(!required, "{REQUIRE} is set: {error}");
            println!("skipped: {error}");
            None
        }
    }
}

impl Cuda {
    /// The engine on the first GPU, if there is one, as [`engine`] says.
    pub fn new() -> Option<Self> {
        engine().map(|engine| Cuda { engine, shift: 0 })
    }

    /// The same engine with its operands elsewhere in their allocations.
    pub fn shifted(&self, shift: usize) -> Self {
        Cuda {
            engine: self.engine.clone(),
            shift,
        }
    }

    /// A copy of a slice on the GPU.
    pub fn upload(&self, slice: SliceRef<'_>) -> Result<Device> {
        Ok(match slice {
            SliceRef::F32(s) => Device::F32(self.copy(s)?),
            SliceRef::BF16(s) => Device::BF16(self.copy(s)?),
            SliceRef::F16(s) => Device::F16(self.copy(s)?),
            other => panic!("a dtype the tests do not know: {}", other.dtype()),
        })
    }

    /// Allocations are never empty: the driver has none of that size.
    fn copy<T: DeviceRepr + Default + Clone>(&self, slice: &[T]) -> Result<Copied<T>> {
        let padded = [
            vec![T::default(); self.shift],
            slice.to_vec(),
            vec![T::default()],
        ]
        .concat();
        let memory = self.engine.stream().clone_htod(&padded);
        Ok(Copied {
            memory: memory.map_err(driver("copy to the GPU"))?,
            shift: self.shift,
            len: slice.len(),
        })
    }

    /// Copies what a device holds back.
    pub fn download(&self, from: &Device, to: SliceMut<'_>) -> Result<()> {
        match (from, to) {
            (Device::F32(from), SliceMut::F32(to)) => self.copy_back(from, to),
            (Device::BF16(from), SliceMut::BF16(to)) => self.copy_back(from, to),
            (Device::F16(from), SliceMut::F16(to)) => self.copy_back(from, to),
            (from, to) => panic!("{from:?} into {}", to.dtype()),
        }
    }

    fn copy_back<T: DeviceRepr + Default + Clone>(
        &self,
        from: &Copied<T>,
        to: &mut [T],
    ) -> Result<()> {
        let all = self.engine.stream().clone_dtoh(&from.memory);
        let all = all.map_err(driver("copy from the GPU"))?;
        to.clone_from_slice(&all[from.shift..from.shift + from.len]);
        Ok(())
    }
}

fn driver(what: &'static str) -> impl Fn(cudarc::driver::DriverError) -> Error {
    move |source| Error::Driver { what, source }
}

/// Elements on the GPU, `shift` of the allocation before them.
#[derive(Debug)]
pub struct Copied<T> {
    memory: CudaSlice<T>,
    shift: usize,
    len: usize,
}

impl<T> Copied<T> {
    /// The elements.
    pub fn view(&self) -> CudaView<'_, T> {
        self.memory.slice(self.shift..self.shift + self.len)
    }

    /// The elements, to be written.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.memory.slice_mut(self.shift..self.shift + self.len)
    }
}

/// Elements of any dtype on the GPU.
#[derive(Debug)]
#[allow(missing_docs)] // the names say it
pub enum Device {
    F32(Copied<f32>),
    BF16(Copied<bf16>),
    F16(Copied<f16>),
}

impl Device {
    /// The elements, borrowed for the engine.
    pub fn as_ref(&self) -> DeviceSlice<'_> {
        match self {
            Device::F32(copied) => copied.view().into(),
            Device::BF16(copied) => copied.view().into(),
            Device::F16(copied) => copied.view().into(),
        }
    }

    /// The elements, borrowed for the engine to write.
    pub fn as_mut(&mut self) -> DeviceSliceMut<'_> {
        match self {
            Device::F32(copied) => copied.view_mut().into(),
            Device::BF16(copied) => copied.view_mut().into(),
            Device::F16(copied) => copied.view_mut().into(),
        }
    }
}

impl Engine for Cuda {
    fn name(&self) -> String {
        format!("{:?}, operands shifted by {}", self.engine, self.shift)
    }

    fn gemm(&self, gemm: &Gemm, operands: Operands<'_>) -> Result<()> {
        let (lhs, rhs) = (self.upload(operands.lhs)?, self.upload(operands.rhs)?);
        let bias = operands.bias.map(|bias| self.upload(bias)).transpose()?;
        let mut out = self.upload(operands.out.as_ref())?;
        let mut on_device = CudaOperands::new(lhs.as_ref(), rhs.as_ref(), out.as_mut());
        if let Some(bias) = &bias {
            on_device = on_device.with_bias(bias.as_ref());
        }
        self.engine.gemm(gemm, on_device)?;
        self.download(&out, operands.out)
    }

    fn bias_gradient(
        &self,
        problem: &BiasGradient,
        dy: SliceRef<'_>,
        db: SliceMut<'_>,
    ) -> Result<()> {
        let (dy, mut sum) = (self.upload(dy)?, self.upload(db.as_ref())?);
        self.engine
            .bias_gradient(problem, dy.as_ref(), sum.as_mut())?;
        self.download(&sum, db)
    }
}
