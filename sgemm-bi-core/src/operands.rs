//! The data of one call: borrowed slices tagged with their dtype.

use half::{bf16, f16};

use crate::{Dtype, Element};

/// A borrowed slice of any element type.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SliceRef<'a> {
    /// f32 elements.
    F32(&'a [f32]),
    /// bf16 elements.
    BF16(&'a [bf16]),
    /// f16 elements.
    F16(&'a [f16]),
}

/// A mutably borrowed slice of any element type.
#[derive(Debug)]
#[non_exhaustive]
pub enum SliceMut<'a> {
    /// f32 elements.
    F32(&'a mut [f32]),
    /// bf16 elements.
    BF16(&'a mut [bf16]),
    /// f16 elements.
    F16(&'a mut [f16]),
}

/// What checks see of a slice, wherever it lies: its dtype and its number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub dtype: Dtype,
    pub len: usize,
}

impl From<SliceRef<'_>> for Extent {
    fn from(slice: SliceRef<'_>) -> Self {
        Extent {
            dtype: slice.dtype(),
            len: slice.len(),
        }
    }
}

/// Evaluates an expression with the slice inside a [`SliceRef`] or [`SliceMut`], whatever its type.
macro_rules! with_slice {
    ($kind:ident, $value:expr, $slice:ident => $body:expr) => {
        match $value {
            $crate::$kind::F32($slice) => $body,
            $crate::$kind::BF16($slice) => $body,
            $crate::$kind::F16($slice) => $body,
        }
    };
}
pub(crate) use with_slice;

impl SliceRef<'_> {
    /// The element type.
    pub fn dtype(&self) -> Dtype {
        fn of<T: Element>(_: &[T]) -> Dtype {
            T::DTYPE
        }
        with_slice!(SliceRef, self, s => of(s))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        with_slice!(SliceRef, self, s => s.len())
    }

    /// True when there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl SliceMut<'_> {
    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.as_ref().dtype()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// True when there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same slice, shared.
    pub fn as_ref(&self) -> SliceRef<'_> {
        match self {
            SliceMut::F32(s) => SliceRef::F32(s),
            SliceMut::BF16(s) => SliceRef::BF16(s),
            SliceMut::F16(s) => SliceRef::F16(s),
        }
    }
}

macro_rules! from_slices {
    ($($element:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a [$element]> for SliceRef<'a> {
            fn from(slice: &'a [$element]) -> Self {
                SliceRef::$variant(slice)
            }
        }
        impl<'a> From<&'a Vec<$element>> for SliceRef<'a> {
            fn from(slice: &'a Vec<$element>) -> Self {
                SliceRef::$variant(slice)
            }
        }
        impl<'a, const N: usize> From<&'a [$element; N]> for SliceRef<'a> {
            fn from(slice: &'a [$element; N]) -> Self {
                SliceRef::$variant(slice)
            }
        }
        impl<'a> From<&'a mut [$element]> for SliceMut<'a> {
            fn from(slice: &'a mut [$element]) -> Self {
                SliceMut::$variant(slice)
            }
        }
        impl<'a> From<&'a mut Vec<$element>> for SliceMut<'a> {
            fn from(slice: &'a mut Vec<$element>) -> Self {
                SliceMut::$variant(slice)
            }
        }
        impl<'a, const N: usize> From<&'a mut [$element; N]> for SliceMut<'a> {
            fn from(slice: &'a mut [$element; N]) -> Self {
                SliceMut::$variant(slice)
            }
        }
    )*};
}
from_slices!(f32 => F32, bf16 => BF16, f16 => F16);

/// The slices of one matrix product `out = lhs · rhs (+ bias)`.
///
/// What lies in them, and where, is said by the [`Gemm`](crate::Gemm) they are passed with.
#[derive(Debug)]
pub struct Operands<'a> {
    /// First operand.
    pub lhs: SliceRef<'a>,
    /// Second operand.
    pub rhs: SliceRef<'a>,
    /// One value for each output column; exactly as long as there are columns.
    pub bias: Option<SliceRef<'a>>,
    /// The output, or the accumulator.
    pub out: SliceMut<'a>,
}

impl<'a> Operands<'a> {
    /// The operands of a product without bias.
    pub fn new(
        lhs: impl Into<SliceRef<'a>>,
        rhs: impl Into<SliceRef<'a>>,
        out: impl Into<SliceMut<'a>>,
    ) -> Self {
        Operands {
            lhs: lhs.into(),
            rhs: rhs.into(),
            bias: None,
            out: out.into(),
        }
    }

    /// Adds the bias.
    pub fn with_bias(mut self, bias: impl Into<SliceRef<'a>>) -> Self {
        self.bias = Some(bias.into());
        self
    }
}
