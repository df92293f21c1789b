//! Candle's dtypes, devices and CPU storages as the core's: checks, borrowed slices, outputs.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::{CpuStorage, DType, Layout, Tensor};
use half::{bf16, f16};
use sgemm_bi_core::{Dtype, Element, SliceMut, SliceRef};

use crate::error::Error;

/// An element type that both Candle and the core know: it can become a CPU storage.
pub(crate) trait Stored: Element + Default {
    /// A storage that owns these elements.
    fn into_storage(elements: Vec<Self>) -> CpuStorage;
}

macro_rules! stored {
    ($($element:ty => $variant:ident),*) => {$(
        impl Stored for $element {
            fn into_storage(elements: Vec<Self>) -> CpuStorage {
                CpuStorage::$variant(elements)
            }
        }
    )*};
}
stored!(f32 => F32, bf16 => BF16, f16 => F16);

/// The core's name of a tensor's dtype.
///
/// Errors: [`Error::Dtype`] unless it is f32, bf16 or f16.
pub(crate) fn core_dtype(
    op: &'static str,
    argument: &'static str,
    dtype: DType,
) -> Result<Dtype, Error> {
    match dtype {
        DType::F32 => Ok(Dtype::F32),
        DType::BF16 => Ok(Dtype::BF16),
        DType::F16 => Ok(Dtype::F16),
        got => Err(Error::Dtype {
            op,
            argument,
            expected: "f32, bf16 or f16".to_string(),
            got,
        }),
    }
}

/// Checks that a tensor lies where this build has an engine, and gives its dtype.
///
/// Errors: [`Error::Device`], [`Error::Dtype`].
pub(crate) fn require_supported(
    op: &'static str,
    argument: &'static str,
    tensor: &Tensor,
) -> Result<Dtype, Error> {
    if !tensor.device().is_cpu() {
        let got = tensor.device().location();
        return Err(Error::Device { op, argument, got });
    }
    core_dtype(op, argument, tensor.dtype())
}

/// The whole of a CPU storage, for the core to read through a view.
///
/// Errors: [`Error::Dtype`] unless it holds f32, bf16 or f16.
pub(crate) fn slice_of<'a>(
    op: &'static str,
    argument: &'static str,
    storage: &'a CpuStorage,
) -> Result<SliceRef<'a>, Error> {
    match storage {
        CpuStorage::F32(s) => Ok(s.into()),
        CpuStorage::BF16(s) => Ok(s.into()),
        CpuStorage::F16(s) => Ok(s.into()),
        other => Err(Error::Dtype {
            op,
            argument,
            expected: "f32, bf16 or f16".to_string(),
            got: candle_core::backend::BackendStorage::dtype(other),
        }),
    }
}

/// Evaluates an expression with the typed slice inside a [`SliceRef`], whatever its type.
macro_rules! with_elements {
    ($slice:expr, $elements:ident => $body:expr) => {
        match $slice {
            sgemm_bi_core::SliceRef::F32($elements) => $body,
            sgemm_bi_core::SliceRef::BF16($elements) => $body,
            sgemm_bi_core::SliceRef::F16($elements) => $body,
            _ => unreachable!("the core has no further dtype"),
        }
    };
}
pub(crate) use with_elements;

/// The number of elements of a new tensor, checked before anything is allocated.
///
/// Errors: [`sgemm_bi_core::Error::SizeOverflow`] when the elements' bytes do not fit the address
/// space, or when the non-zero sizes alone overflow.
pub(crate) fn output_len(op: &'static str, dims: &[usize]) -> Result<usize, Error> {
    let bytes = dims
        .iter()
        .filter(|&&size| size > 0)
        .try_fold(size_of::<f32>(), |len, &size| len.checked_mul(size))
        .filter(|&bytes| bytes <= isize::MAX as usize);
    match bytes {
        Some(_) => Ok(dims.iter().product()),
        None => Err(Error::Core(sgemm_bi_core::Error::SizeOverflow {
            op,
            argument: "out",
            what: format!("shape {dims:?}"),
        })),
    }
}

/// Allocates `len` zeros, lets `fill` write them, and gives them to Candle.
pub(crate) fn filled(
    dtype: Dtype,
    len: usize,
    fill: impl FnOnce(SliceMut<'_>) -> Result<(), Error>,
) -> Result<CpuStorage, Error> {
    fn typed<T: Stored>(
        len: usize,
        fill: impl FnOnce(SliceMut<'_>) -> Result<(), Error>,
    ) -> Result<CpuStorage, Error>
    where
        for<'a> SliceMut<'a>: From<&'a mut Vec<T>>,
    {
        let mut elements = vec![T::default(); len];
        fill(SliceMut::from(&mut elements))?;
        Ok(T::into_storage(elements))
    }
    match dtype {
        Dtype::F32 => typed::<f32>(len, fill),
        Dtype::BF16 => typed::<bf16>(len, fill),
        Dtype::F16 => typed::<f16>(len, fill),
        _ => unreachable!("the core has no further dtype"),
    }
}

/// The range of a storage that a layout addresses, where it does so in row-major order. A layout of
/// nothing addresses 0..0: its start may lie past the storage's end.
fn dense_range(layout: &Layout) -> Option<Range<usize>> {
    match layout.shape().elem_count() {
        0 => Some(0..0),
        _ => layout.contiguous_offsets().map(|(start, end)| start..end),
    }
}

/// The elements that a layout addresses, copied in row-major order.
pub(crate) fn gather<T: Copy>(elements: &[T], layout: &Layout) -> Vec<T> {
    match dense_range(layout) {
        Some(range) => elements[range].to_vec(),
        None => gather_strided(
            elements,
            layout.start_offset(),
            layout.dims(),
            layout.stride(),
        ),
    }
}

/// Copies the elements at `start + Σ index·stride`, the last dimension fastest.
pub(crate) fn gather_strided<T: Copy>(
    elements: &[T],
    start: usize,
    dims: &[usize],
    strides: &[usize],
) -> Vec<T> {
    let len = dims.iter().product();
    let mut gathered = Vec::with_capacity(len);
    let (inner, inner_stride, outer) = match dims.split_last() {
        Some((&inner, outer)) => (inner, strides[outer.len()], outer),
        None => (1, 0, dims),
    };
    let mut index = vec![0; outer.len()];
    while gathered.len() < len {
        let row: usize = index
            .iter()
            .zip(strides)
            .map(|(i, stride)| i * stride)
            .sum();
        gathered.extend((0..inner).map(|i| elements[start + row + i * inner_stride]));
        for (i, &size) in index.iter_mut().zip(outer).rev() {
            *i += 1;
            if *i < size {
                break;
            }
            *i = 0;
        }
    }
    gathered
}

/// [`gather_strided`] for elements of any type.
pub(crate) fn gathered(
    slice: SliceRef<'_>,
    start: usize,
    dims: &[usize],
    strides: &[usize],
) -> CpuStorage {
    with_elements!(slice, elements => {
        Stored::into_storage(gather_strided(elements, start, dims, strides))
    })
}

/// What a layout addresses, in row-major order: borrowed where the storage has that order, copied
/// where it has another.
pub(crate) struct Dense<'a> {
    storage: Cow<'a, CpuStorage>,
    range: Range<usize>,
}

impl<'a> Dense<'a> {
    /// Errors: [`Error::Dtype`] unless the storage holds f32, bf16 or f16.
    pub(crate) fn new(
        op: &'static str,
        argument: &'static str,
        storage: &'a CpuStorage,
        layout: &Layout,
    ) -> Result<Self, Error> {
        let slice = slice_of(op, argument, storage)?;
        Ok(match dense_range(layout) {
            Some(range) => Dense {
                storage: Cow::Borrowed(storage),
                range,
            },
            None => {
                let (start, dims) = (layout.start_offset(), layout.dims());
                Dense {
                    storage: Cow::Owned(gathered(slice, start, dims, layout.stride())),
                    range: 0..layout.shape().elem_count(),
                }
            }
        })
    }

    /// The elements. Errors: as [`new`](Dense::new).
    pub(crate) fn slice(
        &self,
        op: &'static str,
        argument: &'static str,
    ) -> Result<SliceRef<'_>, Error> {
        let range = self.range.clone();
        Ok(with_elements!(slice_of(op, argument, &self.storage)?, s => SliceRef::from(&s[range])))
    }
}
