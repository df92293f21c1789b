//! The storage of a CUDA device, computed on by the core's CUDA engine: on Candle's own stream, in
//! memory from Candle's own allocator.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::{CudaStorageSlice, cudarc::driver::CudaSlice};
use candle_core::{CudaDevice, CudaStorage, Layout};
use half::{bf16, f16};
use sgemm_bi_core::cuda::{CudaEngine, CudaOperands, DeviceSlice, DeviceSliceMut, DeviceTargets};
use sgemm_bi_core::{BiasGradient, Dtype, Gemm, Rows};

use crate::error::Error;
use crate::storage::{EngineStorage, Part};

/// The engine of a device. Kernels are the context's, however many engines there are.
fn engine(device: &CudaDevice) -> Result<CudaEngine, Error> {
    Ok(CudaEngine::on_stream(device.cuda_stream())?)
}

impl EngineStorage for CudaStorage {
    fn len(&self) -> usize {
        macro_rules! len {
            ($($variant:ident),*) => {
                match &self.slice {
                    $(CudaStorageSlice::$variant(s) => s.len(),)*
                }
            };
        }
        len!(
            U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3, F6E2M3, F6E3M2, F4, F8E8M0
        )
    }

    fn gathered(&self, layout: &Layout) -> Result<Self, Error> {
        // SAFETY: the copy writes every element.
        let mut dense = unsafe { self.device.alloc_uninit(layout.shape(), self.dtype()) }?;
        self.copy_strided_src(&mut dense, 0, layout)?;
        Ok(dense)
    }

    fn gemm(
        gemm: &Gemm,
        lhs: Part<'_, Self>,
        rhs: Part<'_, Self>,
        bias: Option<Part<'_, Self>>,
        len: usize,
    ) -> Result<Self, Error> {
        let device = &lhs.storage.device;
        let bias = bias.as_ref().map(Part::slice).transpose()?;
        let (lhs, rhs) = (lhs.slice()?, rhs.slice()?);
        filled(device, gemm.out_dtype(), len, |engine, out| {
            let operands = CudaOperands {
                lhs,
                rhs,
                bias,
                out,
            };
            engine.gemm(gemm, operands)
        })
    }

    fn bias_gradient(problem: &BiasGradient, dy: Part<'_, Self>) -> Result<Self, Error> {
        let (device, dy) = (&dy.storage.device, dy.slice()?);
        filled(device, Dtype::F32, problem.cols, |engine, db| {
            engine.bias_gradient(problem, dy, db)
        })
    }

    fn rounded(rows: &Rows, x: Part<'_, Self>, dtype: Dtype) -> Result<Self, Error> {
        let (device, x) = (&x.storage.device, x.slice()?);
        filled(device, dtype, rows.rows * rows.cols, |engine, y| {
            engine.round(rows, x, y)
        })
    }

    fn log_softmax(rows: &Rows, x: Part<'_, Self>) -> Result<Self, Error> {
        let (device, x) = (&x.storage.device, x.slice()?);
        filled(device, x.dtype(), rows.rows * rows.cols, |engine, y| {
            engine.log_softmax(rows, x, y)
        })
    }

    fn log_softmax_backward(
        rows: &Rows,
        y: Part<'_, Self>,
        dy: Part<'_, Self>,
    ) -> Result<Self, Error> {
        let device = &y.storage.device;
        let (y, dy) = (y.slice()?, dy.slice()?);
        filled(device, y.dtype(), rows.rows * rows.cols, |engine, dx| {
            engine.log_softmax_backward(rows, y, dy, dx)
        })
    }

    fn cross_entropy(
        rows: &Rows,
        logits: Part<'_, Self>,
        targets: Part<'_, Self>,
    ) -> Result<Self, Error> {
        let device = &logits.storage.device;
        let (logits, targets) = (logits.slice()?, targets.targets()?);
        filled(device, logits.dtype(), 1, |engine, loss| {
            engine.cross_entropy(rows, logits, targets, loss)
        })
    }

    fn cross_entropy_backward(
        rows: &Rows,
        logits: Part<'_, Self>,
        targets: Part<'_, Self>,
        grad: Part<'_, Self>,
    ) -> Result<Self, Error> {
        let device = &logits.storage.device;
        let (logits, targets, grad) = (logits.slice()?, targets.targets()?, grad.slice()?);
        filled(
            device,
            logits.dtype(),
            rows.rows * rows.cols,
            |engine, dlogits| engine.cross_entropy_backward(rows, logits, targets, grad, dlogits),
        )
    }
}

impl<'a> Part<'a, CudaStorage> {
    /// Errors: [`Error::Dtype`] unless they are f32, bf16 or f16.
    fn slice(&self) -> Result<DeviceSlice<'a>, Error> {
        let range = self.range.clone();
        match &self.storage.slice {
            CudaStorageSlice::F32(s) => Ok(s.slice(range).into()),
            CudaStorageSlice::BF16(s) => Ok(s.slice(range).into()),
            CudaStorageSlice::F16(s) => Ok(s.slice(range).into()),
            _ => Err(self.name.no_float(self.storage.dtype())),
        }
    }

    /// Errors: [`Error::Dtype`] unless they are u8, u32 or i64.
    fn targets(&self) -> Result<DeviceTargets<'a>, Error> {
        let range = self.range.clone();
        match &self.storage.slice {
            CudaStorageSlice::U8(s) => Ok(s.slice(range).into()),
            CudaStorageSlice::U32(s) => Ok(s.slice(range).into()),
            CudaStorageSlice::I64(s) => Ok(s.slice(range).into()),
            _ => Err(self.name.no_integers(self.storage.dtype())),
        }
    }
}

/// Allocates `len` elements, lets the device's engine write all of them, and gives them to Candle.
fn filled(
    device: &CudaDevice,
    dtype: Dtype,
    len: usize,
    fill: impl FnOnce(&CudaEngine, DeviceSliceMut<'_>) -> sgemm_bi_core::Result<()>,
) -> Result<CudaStorage, Error> {
    let engine = engine(device)?;
    macro_rules! filled {
        ($element:ty => $variant:ident) => {{
            // SAFETY: `fill` writes every element; where it fails, nobody sees them.
            let mut slice: CudaSlice<$element> = unsafe { device.alloc(len.max(1)) }?;
            if len == 0 {
                // The driver allocates no empty memory, so this is one element that nothing sees.
                // SAFETY: the address is this allocation's, which the new slice owns.
                slice = unsafe { device.cuda_stream().upgrade_device_ptr(slice.leak(), 0) };
            }
            fill(&engine, (&mut slice).into())?;
            CudaStorageSlice::$variant(slice)
        }};
    }
    let slice = match dtype {
        Dtype::F32 => filled!(f32 => F32),
        Dtype::BF16 => filled!(bf16 => BF16),
        Dtype::F16 => filled!(f16 => F16),
        _ => unreachable!("the core has no further dtype"),
    };
    Ok(CudaStorage {
        slice,
        device: device.clone(),
    })
}
