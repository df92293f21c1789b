//! The class of each row, in a GPU's memory.

use cudarc::driver::{CudaContext, CudaSlice, CudaView, DeviceSlice as _};

use super::operands::same_device;
use crate::error::Result;

/// An integer type of targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TargetType {
    /// u8 elements.
    U8,
    /// u32 elements.
    U32,
    /// i64 elements.
    I64,
}

impl TargetType {
    /// Its number in kernels.
    pub(super) fn define(self) -> u32 {
        match self {
            TargetType::U8 => 0,
            TargetType::U32 => 1,
            TargetType::I64 => 2,
        }
    }
}

/// Borrowed device memory that holds the class of each row, of one of the integer types that
/// frameworks use.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceTargets<'a> {
    /// u8 elements.
    U8(CudaView<'a, u8>),
    /// u32 elements.
    U32(CudaView<'a, u32>),
    /// i64 elements.
    I64(CudaView<'a, i64>),
}

/// Evaluates an expression with the view, whatever its type.
macro_rules! with_targets {
    ($targets:expr, $view:ident => $body:expr) => {
        match $targets {
            DeviceTargets::U8($view) => $body,
            DeviceTargets::U32($view) => $body,
            DeviceTargets::I64($view) => $body,
        }
    };
}
pub(super) use with_targets;

impl DeviceTargets<'_> {
    /// Number of targets.
    pub fn len(&self) -> usize {
        with_targets!(self, view => view.len())
    }

    /// True when there are no targets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    pub fn target_type(&self) -> TargetType {
        match self {
            DeviceTargets::U8(_) => TargetType::U8,
            DeviceTargets::U32(_) => TargetType::U32,
            DeviceTargets::I64(_) => TargetType::I64,
        }
    }

    /// Checks that the memory is on the device of `context`.
    pub(super) fn check(&self, op: &'static str, context: &CudaContext) -> Result<()> {
        let got = with_targets!(self, view => view.stream().context().ordinal());
        same_device(op, "targets", context.ordinal(), got)
    }
}

macro_rules! from_cuda {
    ($($element:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a CudaSlice<$element>> for DeviceTargets<'a> {
            fn from(slice: &'a CudaSlice<$element>) -> Self {
                DeviceTargets::$variant(slice.as_view())
            }
        }
        impl<'a> From<CudaView<'a, $element>> for DeviceTargets<'a> {
            fn from(view: CudaView<'a, $element>) -> Self {
                DeviceTargets::$variant(view)
            }
        }
    )*};
}
from_cuda!(u8 => U8, u32 => U32, i64 => I64);
