//! The data of one call on a GPU: device memory tagged with its dtype, and the checks of where it
//! lies.

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut,
    DeviceSlice as _, SyncOnDrop, sys::CUdeviceptr,
};
use half::{bf16, f16};

use super::driver::{Driver, Memory};
use crate::Dtype;
use crate::error::{Error, Result};
use crate::gemm::Extents;
use crate::operands::Extent;

/// Borrowed device memory of any element type.
#[derive(Debug)]
pub struct DeviceSlice<'a>(Source<'a>);

/// Mutably borrowed device memory of any element type.
#[derive(Debug)]
pub struct DeviceSliceMut<'a>(SourceMut<'a>);

#[derive(Debug)]
enum Source<'a> {
    F32(CudaView<'a, f32>),
    BF16(CudaView<'a, bf16>),
    F16(CudaView<'a, f16>),
    Raw(Raw),
}

#[derive(Debug)]
enum SourceMut<'a> {
    F32(CudaViewMut<'a, f32>),
    BF16(CudaViewMut<'a, bf16>),
    F16(CudaViewMut<'a, f16>),
    Raw(Raw),
}

#[derive(Clone, Copy, Debug)]
struct Raw {
    address: CUdeviceptr,
    extent: Extent,
}

/// Evaluates an expression with the view inside a source, or another one with the raw address.
macro_rules! with_view {
    ($kind:ident, $value:expr, $view:ident => $body:expr, $raw:ident => $other:expr) => {
        match $value {
            $kind::F32($view) => $body,
            $kind::BF16($view) => $body,
            $kind::F16($view) => $body,
            $kind::Raw($raw) => $other,
        }
    };
}

/// The extent of a view of `T`.
fn extent<T: crate::Element>(view: &impl cudarc::driver::DeviceSlice<T>) -> Extent {
    Extent {
        dtype: T::DTYPE,
        len: view.len(),
    }
}

/// The address of a view, without ordering anything after it.
fn view_address<T>(view: &impl DevicePtr<T>) -> CUdeviceptr {
    let (address, guard) = view.device_ptr(view.stream());
    // Nothing was done that later work would have to wait for.
    std::mem::forget(guard);
    address
}

macro_rules! slice_methods {
    ($slice:ident, $source:ident) => {
        impl $slice<'_> {
            /// The memory of `len` elements from an address on the engine's device.
            ///
            /// A call checks what the driver knows of it: that it is memory of the device, that
            /// the allocation holds `len` elements, and that the address is a multiple of their
            /// size.
            ///
            /// # Safety
            ///
            /// Until the launches of a call that it is passed to have run, the memory stays
            /// allocated, and nothing else on the device writes what they read or touches what
            /// they write; no input shares an element with the output.
            pub unsafe fn from_raw(address: CUdeviceptr, len: usize, dtype: Dtype) -> Self {
                let extent = Extent { dtype, len };
                $slice($source::Raw(Raw { address, extent }))
            }

            /// The element type.
            pub fn dtype(&self) -> Dtype {
                self.extent().dtype
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                self.extent().len
            }

            /// True when there are no elements.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            pub(crate) fn extent(&self) -> Extent {
                with_view!($source, &self.0, view => extent(view), raw => raw.extent)
            }

            /// Checks that the memory can be used on the device of `context`, which is bound.
            pub(crate) fn check(
                &self,
                op: &'static str,
                argument: &'static str,
                context: &CudaContext,
            ) -> Result<()> {
                with_view!($source, &self.0, view => {
                    let (expected, got) = (context.ordinal(), view.stream().context().ordinal());
                    same_device(op, argument, expected, got)
                }, raw => raw.check(op, argument, context.ordinal()))
            }
        }
    };
}
slice_methods!(DeviceSlice, Source);
slice_methods!(DeviceSliceMut, SourceMut);

/// An address, and what is kept until the launches that use it are in the stream.
pub(crate) struct Pinned<'a> {
    pub address: CUdeviceptr,
    _guard: Option<SyncOnDrop<'a>>,
}

impl DeviceSlice<'_> {
    /// The address, for its alignment only: work on it needs [`pin`](Self::pin).
    pub(crate) fn address(&self) -> CUdeviceptr {
        with_view!(Source, &self.0, view => view_address(view), raw => raw.address)
    }

    /// The address, in order with the stream's earlier and later work.
    pub(crate) fn pin<'a>(&'a self, stream: &'a CudaStream) -> Pinned<'a> {
        with_view!(Source, &self.0, view => {
            let (address, guard) = view.device_ptr(stream);
            Pinned { address, _guard: Some(guard) }
        }, raw => Pinned { address: raw.address, _guard: None })
    }
}

impl DeviceSliceMut<'_> {
    /// The address, in order with the stream's earlier and later work.
    pub(crate) fn pin<'a>(&'a mut self, stream: &'a CudaStream) -> Pinned<'a> {
        with_view!(SourceMut, &mut self.0, view => {
            let (address, guard) = view.device_ptr_mut(stream);
            Pinned { address, _guard: Some(guard) }
        }, raw => Pinned { address: raw.address, _guard: None })
    }
}

pub(super) fn same_device(
    op: &'static str,
    argument: &'static str,
    expected: usize,
    got: usize,
) -> Result<()> {
    match expected == got {
        true => Ok(()),
        false => Err(Error::WrongDevice {
            op,
            argument,
            expected,
            got,
        }),
    }
}

impl Raw {
    fn check(&self, op: &'static str, argument: &'static str, device: usize) -> Result<()> {
        let Raw { address, extent } = *self;
        let size = extent.dtype.size_in_bytes();
        let overflow = || Error::SizeOverflow {
            op,
            argument,
            what: format!(
                "{} elements of {} from {address:#x}",
                extent.len, extent.dtype
            ),
        };
        let bytes = extent.len.checked_mul(size).ok_or_else(overflow)? as u64;
        let end = address.checked_add(bytes).ok_or_else(overflow)?;
        if bytes == 0 {
            return Ok(());
        }
        if !address.is_multiple_of(size as u64) {
            let dtype = extent.dtype;
            return Err(Error::Misaligned {
                op,
                argument,
                dtype,
                address,
            });
        }
        let mut reached = address;
        while reached < end {
            match Driver::memory_at(reached)? {
                Memory::Device {
                    ordinal,
                    start,
                    bytes,
                } if start.saturating_add(bytes) > reached => {
                    same_device(op, argument, device, ordinal as usize)?;
                    reached = start.saturating_add(bytes);
                }
                memory if reached == address => {
                    return Err(Error::NotDeviceMemory {
                        op,
                        argument,
                        address,
                        got: match memory {
                            Memory::Host => "host memory",
                            _ => "memory that the driver does not know",
                        },
                    });
                }
                _ => break,
            }
            // An allocation ends here, but for those that are put together from pieces.
            if reached < end && !Driver::is_mapped(address) {
                break;
            }
        }
        if reached < end {
            return Err(Error::AllocationTooSmall {
                op,
                argument,
                expected: bytes,
                got: reached - address,
            });
        }
        Ok(())
    }
}

macro_rules! from_cuda {
    ($($element:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a CudaSlice<$element>> for DeviceSlice<'a> {
            fn from(slice: &'a CudaSlice<$element>) -> Self {
                DeviceSlice(Source::$variant(slice.as_view()))
            }
        }
        impl<'a> From<CudaView<'a, $element>> for DeviceSlice<'a> {
            fn from(view: CudaView<'a, $element>) -> Self {
                DeviceSlice(Source::$variant(view))
            }
        }
        impl<'a> From<&CudaView<'a, $element>> for DeviceSlice<'a> {
            fn from(view: &CudaView<'a, $element>) -> Self {
                DeviceSlice(Source::$variant(view.slice(..)))
            }
        }
        impl<'a> From<&'a mut CudaSlice<$element>> for DeviceSliceMut<'a> {
            fn from(slice: &'a mut CudaSlice<$element>) -> Self {
                DeviceSliceMut(SourceMut::$variant(slice.as_view_mut()))
            }
        }
        impl<'a> From<CudaViewMut<'a, $element>> for DeviceSliceMut<'a> {
            fn from(view: CudaViewMut<'a, $element>) -> Self {
                DeviceSliceMut(SourceMut::$variant(view))
            }
        }
        impl<'a> From<&'a mut CudaViewMut<'_, $element>> for DeviceSliceMut<'a> {
            fn from(view: &'a mut CudaViewMut<'_, $element>) -> Self {
                DeviceSliceMut(SourceMut::$variant(view.slice_mut(..)))
            }
        }
    )*};
}
from_cuda!(f32 => F32, bf16 => BF16, f16 => F16);

/// The device memory of one matrix product `out = lhs · rhs (+ bias)`.
///
/// What lies in it, and where, is said by the [`Gemm`](crate::Gemm) it is passed with.
#[derive(Debug)]
pub struct CudaOperands<'a> {
    /// First operand.
    pub lhs: DeviceSlice<'a>,
    /// Second operand.
    pub rhs: DeviceSlice<'a>,
    /// One value for each output column; exactly as long as there are columns.
    pub bias: Option<DeviceSlice<'a>>,
    /// The output, or the accumulator.
    pub out: DeviceSliceMut<'a>,
}

impl<'a> CudaOperands<'a> {
    /// The operands of a product without bias.
    pub fn new(
        lhs: impl Into<DeviceSlice<'a>>,
        rhs: impl Into<DeviceSlice<'a>>,
        out: impl Into<DeviceSliceMut<'a>>,
    ) -> Self {
        CudaOperands {
            lhs: lhs.into(),
            rhs: rhs.into(),
            bias: None,
            out: out.into(),
        }
    }

    /// Adds the bias.
    pub fn with_bias(mut self, bias: impl Into<DeviceSlice<'a>>) -> Self {
        self.bias = Some(bias.into());
        self
    }

    pub(crate) fn extents(&self) -> Extents {
        Extents {
            lhs: self.lhs.extent(),
            rhs: self.rhs.extent(),
            bias: self.bias.as_ref().map(DeviceSlice::extent),
            out: self.out.extent(),
        }
    }

    /// Checks where every operand lies.
    pub(crate) fn check(&self, op: &'static str, context: &CudaContext) -> Result<()> {
        self.lhs.check(op, "lhs", context)?;
        self.rhs.check(op, "rhs", context)?;
        if let Some(bias) = &self.bias {
            bias.check(op, "bias", context)?;
        }
        self.out.check(op, "out", context)
    }
}
