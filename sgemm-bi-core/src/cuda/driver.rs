//! The few driver calls that cudarc has no safe form of, and its errors as ours.

use std::ffi::{CString, c_void};

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};

use super::kernels::Function;
use super::nvrtc::loading;
use crate::error::{Error, Result};

/// Dynamic shared memory that a kernel has without asking, in bytes.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

/// Turns a driver's error into ours; `what` was attempted.
pub(crate) fn driver(what: &'static str) -> impl Fn(DriverError) -> Error {
    move |source| Error::Driver { what, source }
}

/// The driver's functions; every call but [`require`](Driver::require) needs it to have succeeded
/// once, and a context bound to the thread.
pub(crate) struct Driver;

/// Blocks of a launch, threads of a block, and its bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchSize {
    pub grid: u32,
    pub block: u32,
    pub shared: u32,
}

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Pageable memory, or nothing at all.
    Unknown,
    /// Host memory that the driver knows of.
    Host,
    /// Memory of a device, in a range of `bytes` from `start` on.
    Device {
        ordinal: i32,
        start: u64,
        bytes: u64,
    },
}

impl Driver {
    /// Makes sure that the driver is there: cudarc panics when it is not.
    ///
    /// Errors: [`Error::NoDriver`].
    pub fn require() -> Result<()> {
        let names: &[&str] = match cfg!(windows) {
            true => &["nvcuda.dll"],
            false => &["libcuda.so.1", "libcuda.so"],
        };
        let mut reasons = Vec::new();
        for name in names {
            // SAFETY: the driver's initialisers have no requirements.
            match unsafe { libloading::Library::new(*name) } {
                Ok(library) => {
                    std::mem::forget(library);
                    return Ok(());
                }
                Err(error) => reasons.push(loading(error)),
            }
        }
        Err(Error::NoDriver {
            looked: reasons.join("; "),
        })
    }

    /// How many GPUs there are.
    pub fn device_count() -> Result<usize> {
        match CudaContext::device_count() {
            Ok(count) => Ok(count as usize),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
            Err(error) => Err(driver("count the GPUs")(error)),
        }
    }

    /// The major version of CUDA that the driver is for.
    pub fn major() -> Result<i32> {
        let mut version = 0;
        // SAFETY: the pointer is to an integer that the function writes.
        let code = unsafe { sys::cuDriverGetVersion(&mut version) };
        code.result()
            .map_err(driver("ask for the driver's version"))?;
        Ok(version / 1000)
    }

    /// Loads code into the bound context.
    pub fn load_module(code: &[u8]) -> std::result::Result<sys::CUmodule, DriverError> {
        // PTX is a text that a zero ends; machine code does not mind one more byte.
        let image = [code, &[0]].concat();
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // Another thread may be capturing a graph, which this thread's loading has no part in.
        // SAFETY: the pointer is to this thread's mode, which is exchanged.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result()?;
        // SAFETY: the image is whole: a compiler made it, and its hash was checked if it was kept.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
        // SAFETY: as above; the old mode comes back.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result()?;
        module
    }

    /// A function of a module that may use `shared` bytes of dynamic shared memory.
    pub fn function(
        module: sys::CUmodule,
        name: &str,
        shared: u32,
    ) -> std::result::Result<sys::CUfunction, DriverError> {
        let invalid = DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        let name = CString::new(name).map_err(|_| invalid)?;
        // SAFETY: modules are never unloaded.
        let function = unsafe { result::module::get_function(module, name) }?;
        if shared > SHARED_WITHOUT_ASKING {
            use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let shared = shared as i32;
            // SAFETY: a function of a live module.
            unsafe { result::function::set_function_attribute(function, attribute, shared) }?;
        }
        Ok(function)
    }

    /// Whether a stream is recording a graph.
    pub fn is_capturing(stream: &CudaStream) -> Result<bool> {
        let status = stream
            .capture_status()
            .map_err(driver("ask whether a stream captures"))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// What the driver knows of an address.
    pub fn memory_at(address: u64) -> Result<Memory> {
        use sys::CUpointer_attribute as Attribute;
        let (mut kind, mut managed, mut ordinal) = (0u32, 0u32, -1i32);
        let (mut start, mut bytes) = (0u64, 0usize);
        let mut attributes = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        let mut values: [*mut c_void; 5] = [
            (&raw mut kind).cast(),
            (&raw mut managed).cast(),
            (&raw mut ordinal).cast(),
            (&raw mut start).cast(),
            (&raw mut bytes).cast(),
        ];
        // SAFETY: as many attributes as values, each value of its attribute's type.
        let code = unsafe {
            sys::cuPointerGetAttributes(
                attributes.len() as u32,
                attributes.as_mut_ptr(),
                values.as_mut_ptr(),
                address,
            )
        };
        code.result()
            .map_err(driver("ask what memory an address is in"))?;
        Ok(match kind {
            0 => Memory::Unknown,
            kind if kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32 && managed == 0 => {
                Memory::Host
            }
            _ => Memory::Device {
                ordinal,
                start,
                bytes: bytes as u64,
            },
        })
    }

    /// Whether an address is in memory that was mapped piece by piece: a range may go on in the next
    /// one.
    pub fn is_mapped(address: u64) -> bool {
        let mut handle = 0;
        // SAFETY: the handle is written where there is one, and then given back.
        unsafe {
            sys::cuMemRetainAllocationHandle(&mut handle, address as *mut c_void)
                .result()
                .and_then(|()| sys::cuMemRelease(handle).result())
                .is_ok()
        }
    }

    /// Launches a kernel with its one argument.
    ///
    /// # Safety
    ///
    /// `A` is the argument that `function` declares, and every element that it addresses is live on
    /// the stream's device until the launch has run.
    pub unsafe fn launch<A: Copy>(
        stream: &CudaStream,
        function: Function,
        size: LaunchSize,
        mut args: A,
    ) -> Result<()> {
        let mut pointers = [(&raw mut args).cast::<c_void>()];
        // SAFETY: the caller's promise; the driver copies the argument before it returns.
        unsafe {
            result::launch_kernel(
                function.0,
                (size.grid, 1, 1),
                (size.block, 1, 1),
                size.shared,
                stream.cu_stream(),
                &mut pointers,
            )
        }
        .map_err(driver("launch a kernel"))
    }
}
