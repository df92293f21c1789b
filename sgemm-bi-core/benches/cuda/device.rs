//! The GPU: memory with random values, recorded work, and what it can do at most.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdevice_attribute as Attribute, CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, DevicePtr, DeviceRepr};
use half::{bf16, f16};
use sgemm_bi_core::Dtype;
use sgemm_bi_core::cuda::{CudaEngine, DeviceSlice, DeviceSliceMut};

use crate::chain::Values;
use crate::cublas::Cublas;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What cuBLAS is given, as PyTorch does on this generation.
const WORKSPACE_BYTES: usize = 32 << 20;

pub struct Device {
    pub engine: CudaEngine,
    pub cublas: Cublas,
    pub values: Values,
    /// Bytes per second of a copy inside the device, read and written.
    pub copy_rate: f64,
    /// Multiply-adds count two.
    pub peak_flops: f64,
    pub cache_bytes: usize,
    blocks: [Buffer; 3],
    _workspace: CudaSlice<u8>,
}

/// Device memory of one dtype.
pub enum Buffer {
    F32(CudaSlice<f32>),
    BF16(CudaSlice<bf16>),
    F16(CudaSlice<f16>),
}

impl Device {
    pub fn open() -> Result<Self> {
        let first = CudaEngine::new(0)?;
        let context = first.context().clone();
        // SAFETY: everything here uses one stream.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let engine = CudaEngine::on_stream(stream.clone())?;
        let workspace = stream.alloc_zeros::<u8>(WORKSPACE_BYTES)?;
        let address = workspace.device_ptr(&stream).0;
        let cublas = Cublas::open(stream.cu_stream().cast(), address, WORKSPACE_BYTES)?;
        let values = Values::new();
        let narrow = |value: &f32| bf16::from_f32(*value);
        let half = |value: &f32| f16::from_f32(*value);
        let blocks = [
            Buffer::F32(stream.clone_htod(&values.block)?),
            Buffer::BF16(stream.clone_htod(&values.block.iter().map(narrow).collect::<Vec<_>>())?),
            Buffer::F16(stream.clone_htod(&values.block.iter().map(half).collect::<Vec<_>>())?),
        ];
        let attribute = |which| context.attribute(which).map(|value| value as usize);
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let kilohertz = attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?;
        let cache_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        let mut device = Device {
            engine,
            cublas,
            values,
            copy_rate: 0.0,
            peak_flops: (multiprocessors * 128 * 2 * kilohertz) as f64 * 1e3,
            cache_bytes,
            blocks,
            _workspace: workspace,
        };
        device.copy_rate = device.measure_copies()?;
        Ok(device)
    }

    pub fn stream(&self) -> &Arc<CudaStream> {
        self.engine.stream()
    }

    pub fn description(&self) -> Result<String> {
        Ok(format!(
            "{}: {:.1} TFLOP/s of f32 multiply-adds by its clock, {:.2} TB/s copied, {} MiB of L2; cuBLAS {}",
            self.engine.context().name()?,
            self.peak_flops / 1e12,
            self.copy_rate / 1e12,
            self.cache_bytes >> 20,
            self.cublas.version
        ))
    }

    fn measure_copies(&self) -> Result<f64> {
        let stream = self.stream();
        let bytes = 1usize << 30;
        let (from, mut to) = (
            stream.alloc_zeros::<u8>(bytes)?,
            stream.alloc_zeros::<u8>(bytes)?,
        );
        let mut seconds = Vec::new();
        for _ in 0..9 {
            seconds.push(self.time(|| Ok(stream.memcpy_dtod(&from, &mut to)?))?);
        }
        Ok(2.0 * bytes as f64 / crate::measure::median(seconds))
    }

    /// Memory of zeros.
    pub fn zeros(&self, dtype: Dtype, len: usize) -> Result<Buffer> {
        let stream = self.stream();
        Ok(match dtype {
            Dtype::F32 => Buffer::F32(stream.alloc_zeros(len)?),
            Dtype::BF16 => Buffer::BF16(stream.alloc_zeros(len)?),
            Dtype::F16 => Buffer::F16(stream.alloc_zeros(len)?),
            _ => return Err(format!("no buffers of {dtype}").into()),
        })
    }

    /// Memory whose element i is value (i + offset) of the block.
    pub fn random(&self, dtype: Dtype, len: usize, offset: usize) -> Result<Buffer> {
        let mut buffer = self.zeros(dtype, len)?;
        let stream = self.stream();
        match (&mut buffer, &self.blocks) {
            (Buffer::F32(to), [Buffer::F32(block), ..]) => repeat(stream, block, to, offset)?,
            (Buffer::BF16(to), [_, Buffer::BF16(block), _]) => repeat(stream, block, to, offset)?,
            (Buffer::F16(to), [.., Buffer::F16(block)]) => repeat(stream, block, to, offset)?,
            _ => unreachable!("blocks are in the order of dtypes"),
        }
        Ok(buffer)
    }

    /// Records calls on the stream.
    pub fn record(&self, calls: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
        let stream = self.stream();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let called = calls();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        called?;
        Ok(graph?.ok_or("nothing was recorded")?)
    }

    /// Seconds that work on the stream takes the device.
    pub fn time(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let begin = self.stream().record_event(timed)?;
        work()?;
        let end = self.stream().record_event(timed)?;
        end.synchronize()?;
        Ok(f64::from(begin.elapsed_ms(&end)?) / 1e3)
    }
}

/// Fills `to` with repetitions of `block`, from element `offset` of it on.
fn repeat<T: DeviceRepr>(
    stream: &Arc<CudaStream>,
    block: &CudaSlice<T>,
    to: &mut CudaSlice<T>,
    offset: usize,
) -> Result<()> {
    let (mut done, mut from) = (0, offset % block.len());
    while done < to.len() {
        let len = (block.len() - from).min(to.len() - done);
        let part = block.slice(from..from + len);
        stream.memcpy_dtod(&part, &mut to.slice_mut(done..done + len))?;
        (done, from) = (done + len, 0);
    }
    Ok(())
}

impl Buffer {
    pub fn slice(&self) -> DeviceSlice<'_> {
        match self {
            Buffer::F32(slice) => slice.into(),
            Buffer::BF16(slice) => slice.into(),
            Buffer::F16(slice) => slice.into(),
        }
    }

    pub fn slice_mut(&mut self) -> DeviceSliceMut<'_> {
        match self {
            Buffer::F32(slice) => slice.into(),
            Buffer::BF16(slice) => slice.into(),
            Buffer::F16(slice) => slice.into(),
        }
    }

    pub fn address(&self, stream: &CudaStream) -> u64 {
        match self {
            Buffer::F32(slice) => slice.device_ptr(stream).0,
            Buffer::BF16(slice) => slice.device_ptr(stream).0,
            Buffer::F16(slice) => slice.device_ptr(stream).0,
        }
    }

    /// One element, widened.
    pub fn element(&self, stream: &Arc<CudaStream>, index: usize) -> Result<f32> {
        let at = index..index + 1;
        Ok(match self {
            Buffer::F32(slice) => stream.clone_dtoh(&slice.slice(at))?[0],
            Buffer::BF16(slice) => stream.clone_dtoh(&slice.slice(at))?[0].to_f32(),
            Buffer::F16(slice) => stream.clone_dtoh(&slice.slice(at))?[0].to_f32(),
        })
    }
}
