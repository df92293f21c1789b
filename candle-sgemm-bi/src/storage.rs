//! Candle's dtypes, devices and storages as the core's: checks, and what every device's storage
//! does for the operations.

use std::ops::Range;

use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, Tensor};
use sgemm_bi_core::{BiasGradient, Dtype, Gemm, Rows};

use crate::error::Error;

/// A storage of a device that the core has an engine for.
///
/// Every operand is checked to be of a dtype that its operation takes; results are new and dense.
pub(crate) trait EngineStorage: BackendStorage {
    /// The number of elements.
    fn len(&self) -> usize;

    /// The elements that a layout addresses, copied in row-major order.
    fn gathered(&self, layout: &Layout) -> Result<Self, Error>;

    /// The product, `len` elements of the operands' dtype.
    fn gemm(
        gemm: &Gemm,
        lhs: Part<'_, Self>,
        rhs: Part<'_, Self>,
        bias: Option<Part<'_, Self>>,
        len: usize,
    ) -> Result<Self, Error>;

    /// The sum of the rows, in f32.
    fn bias_gradient(problem: &BiasGradient, dy: Part<'_, Self>) -> Result<Self, Error>;

    /// The rows side by side, each element rounded once to a dtype (contract section 7).
    fn rounded(rows: &Rows, x: Part<'_, Self>, dtype: Dtype) -> Result<Self, Error>;

    /// log-softmax of dense rows.
    fn log_softmax(rows: &Rows, x: Part<'_, Self>) -> Result<Self, Error>;

    /// Its gradient.
    fn log_softmax_backward(
        rows: &Rows,
        y: Part<'_, Self>,
        dy: Part<'_, Self>,
    ) -> Result<Self, Error>;

    /// The mean cross-entropy of dense rows, one element of their dtype; targets are integers.
    fn cross_entropy(
        rows: &Rows,
        logits: Part<'_, Self>,
        targets: Part<'_, Self>,
    ) -> Result<Self, Error>;

    /// Its gradient; `grad` is one element.
    fn cross_entropy_backward(
        rows: &Rows,
        logits: Part<'_, Self>,
        targets: Part<'_, Self>,
        grad: Part<'_, Self>,
    ) -> Result<Self, Error>;
}

/// What an operation calls its argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub op: &'static str,
    pub argument: &'static str,
}

impl Name {
    /// The core's name of a dtype.
    ///
    /// Errors: [`Error::Dtype`] unless it is f32, bf16 or f16.
    pub(crate) fn core_dtype(self, dtype: DType) -> Result<Dtype, Error> {
        match dtype {
            DType::F32 => Ok(Dtype::F32),
            DType::BF16 => Ok(Dtype::BF16),
            DType::F16 => Ok(Dtype::F16),
            got => Err(self.no_float(got)),
        }
    }

    /// The error of a dtype that the core does not compute with.
    pub(crate) fn no_float(self, got: DType) -> Error {
        Error::Dtype {
            op: self.op,
            argument: self.argument,
            expected: "f32, bf16 or f16".to_string(),
            got,
        }
    }

    /// The error of a target's dtype.
    pub(crate) fn no_integers(self, got: DType) -> Error {
        Error::Dtype {
            op: self.op,
            argument: self.argument,
            expected: "u32, i64 or u8".to_string(),
            got,
        }
    }
}

/// Elements of a storage that an engine reads.
pub(crate) struct Part<'a, S> {
    pub name: Name,
    pub storage: &'a S,
    pub range: Range<usize>,
}

/// Checks that a tensor lies where this build has an engine.
///
/// Errors: [`Error::Device`].
pub(crate) fn require_device(
    op: &'static str,
    argument: &'static str,
    tensor: &Tensor,
) -> Result<(), Error> {
    let device = tensor.device();
    if device.is_cpu() || (cfg!(feature = "cuda") && device.is_cuda()) {
        return Ok(());
    }
    let got = device.location();
    Err(Error::Device { op, argument, got })
}

/// Checks that a tensor lies where this build has an engine, and gives its dtype.
///
/// Errors: [`Error::Device`], [`Error::Dtype`].
pub(crate) fn require_supported(
    op: &'static str,
    argument: &'static str,
    tensor: &Tensor,
) -> Result<Dtype, Error> {
    require_device(op, argument, tensor)?;
    Name { op, argument }.core_dtype(tensor.dtype())
}

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

/// The range of a storage that a layout addresses, where it does so in row-major order. A layout of
/// nothing addresses 0..0: its start may lie past the storage's end.
fn dense_range(layout: &Layout) -> Option<Range<usize>> {
    match layout.shape().elem_count() {
        0 => Some(0..0),
        _ => layout.contiguous_offsets().map(|(start, end)| start..end),
    }
}

/// What a layout addresses, in row-major order: borrowed where the storage has that order, copied
/// where it has another.
pub(crate) enum Dense<'a, S> {
    Borrowed(Part<'a, S>),
    Copied(Name, S, usize),
}

impl<'a, S: EngineStorage> Dense<'a, S> {
    /// Errors: Candle's, of a copy on its device.
    pub(crate) fn new(
        op: &'static str,
        argument: &'static str,
        storage: &'a S,
        layout: &Layout,
    ) -> Result<Self, Error> {
        let name = Name { op, argument };
        Ok(match dense_range(layout) {
            Some(range) => Dense::Borrowed(Part {
                name,
                storage,
                range,
            }),
            None => {
                let len = layout.shape().elem_count();
                Dense::Copied(name, storage.gathered(layout)?, len)
            }
        })
    }

    /// The elements.
    pub(crate) fn part(&self) -> Part<'_, S> {
        match self {
            Dense::Borrowed(part) => Part {
                range: part.range.clone(),
                ..*part
            },
            Dense::Copied(name, storage, len) => Part {
                name: *name,
                storage,
                range: 0..*len,
            },
        }
    }
}
