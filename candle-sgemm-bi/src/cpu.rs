//! The CPU's storage, computed on by the core's CPU engine.

use candle_core::{CpuStorage, Layout};
use half::{bf16, f16};
use sgemm_bi_core::{
    BiasGradient, Dtype, Element, Gemm, Operands, Rows, SliceMut, SliceRef, Targets,
};

use crate::engine::engine;
use crate::error::Error;
use crate::storage::{EngineStorage, Part};

impl EngineStorage for CpuStorage {
    fn len(&self) -> usize {
        macro_rules! len {
            ($($variant:ident),*) => {
                match self {
                    $(CpuStorage::$variant(s) => s.len(),)*
                }
            };
        }
        len!(
            U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3, F6E2M3, F6E3M2, F4, F8E8M0
        )
    }

    fn gathered(&self, layout: &Layout) -> Result<Self, Error> {
        macro_rules! gathered {
            ($($variant:ident),*) => {
                match self {
                    $(CpuStorage::$variant(s) => {
                        let (dims, strides) = (layout.dims(), layout.stride());
                        let all = gather_strided(s, layout.start_offset(), dims, strides);
                        CpuStorage::$variant(all)
                    })*
                }
            };
        }
        Ok(gathered!(
            U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3, F6E2M3, F6E3M2, F4, F8E8M0
        ))
    }

    fn gemm(
        gemm: &Gemm,
        lhs: Part<'_, Self>,
        rhs: Part<'_, Self>,
        bias: Option<Part<'_, Self>>,
        len: usize,
    ) -> Result<Self, Error> {
        let (lhs, rhs) = (lhs.slice()?, rhs.slice()?);
        let bias = bias.as_ref().map(Part::slice).transpose()?;
        filled(gemm.out_dtype(), len, |out| {
            let operands = Operands {
                lhs,
                rhs,
                bias,
                out,
            };
            Ok(engine()?.gemm(gemm, operands)?)
        })
    }

    fn bias_gradient(problem: &BiasGradient, dy: Part<'_, Self>) -> Result<Self, Error> {
        let mut sums = vec![0.0f32; problem.cols];
        engine()?.bias_gradient(problem, dy.slice()?, &mut sums)?;
        Ok(CpuStorage::F32(sums))
    }

    fn rounded(rows: &Rows, x: Part<'_, Self>, dtype: Dtype) -> Result<Self, Error> {
        let x = x.slice()?;
        let at = |i: usize| i / rows.cols * rows.input_stride + i % rows.cols;
        filled(dtype, rows.rows * rows.cols, |out| {
            match out {
                SliceMut::F32(out) => round_each(out, x, at),
                SliceMut::BF16(out) => round_each(out, x, at),
                SliceMut::F16(out) => round_each(out, x, at),
                _ => unreachable!("the core has no further dtype"),
            }
            Ok(())
        })
    }

    fn log_softmax(rows: &Rows, x: Part<'_, Self>) -> Result<Self, Error> {
        let x = x.slice()?;
        filled(x.dtype(), rows.rows * rows.cols, |y| {
            Ok(engine()?.log_softmax(rows, x, y)?)
        })
    }

    fn log_softmax_backward(
        rows: &Rows,
        y: Part<'_, Self>,
        dy: Part<'_, Self>,
    ) -> Result<Self, Error> {
        let (y, dy) = (y.slice()?, dy.slice()?);
        filled(y.dtype(), rows.rows * rows.cols, |dx| {
            Ok(engine()?.log_softmax_backward(rows, y, dy, dx)?)
        })
    }

    fn cross_entropy(
        rows: &Rows,
        logits: Part<'_, Self>,
        targets: Part<'_, Self>,
    ) -> Result<Self, Error> {
        let logits = logits.slice()?;
        let loss = engine()?.cross_entropy(rows, logits, targets.targets()?)?;
        filled(logits.dtype(), 1, |out| {
            match out {
                SliceMut::F32(out) => out.fill(Element::round(loss)),
                SliceMut::BF16(out) => out.fill(Element::round(loss)),
                SliceMut::F16(out) => out.fill(Element::round(loss)),
                _ => unreachable!("the core has no further dtype"),
            }
            Ok(())
        })
    }

    fn cross_entropy_backward(
        rows: &Rows,
        logits: Part<'_, Self>,
        targets: Part<'_, Self>,
        grad: Part<'_, Self>,
    ) -> Result<Self, Error> {
        let (logits, targets) = (logits.slice()?, targets.targets()?);
        let grad = with_elements!(grad.slice()?, grad => grad[0].widen());
        filled(logits.dtype(), rows.rows * rows.cols, |dlogits| {
            Ok(engine()?.cross_entropy_backward(rows, logits, targets, grad, dlogits)?)
        })
    }
}

/// An element type that both Candle and the core know: it can become a CPU storage.
trait Stored: Element + Default {
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

/// Evaluates an expression with the typed slice inside a [`SliceRef`], whatever its type.
macro_rules! with_elements {
    ($slice:expr, $elements:ident => $body:expr) => {
        match $slice {
            SliceRef::F32($elements) => $body,
            SliceRef::BF16($elements) => $body,
            SliceRef::F16($elements) => $body,
            _ => unreachable!("the core has no further dtype"),
        }
    };
}
use with_elements;

impl<'a> Part<'a, CpuStorage> {
    /// Errors: [`Error::Dtype`] unless they are f32, bf16 or f16.
    fn slice(&self) -> Result<SliceRef<'a>, Error> {
        let range = self.range.clone();
        match self.storage {
            CpuStorage::F32(s) => Ok(SliceRef::from(&s[range])),
            CpuStorage::BF16(s) => Ok(SliceRef::from(&s[range])),
            CpuStorage::F16(s) => Ok(SliceRef::from(&s[range])),
            other => Err(self.name.no_float(dtype(other))),
        }
    }

    /// Errors: [`Error::Dtype`] unless they are u8, u32 or i64.
    fn targets(&self) -> Result<Targets<'a>, Error> {
        let range = self.range.clone();
        match self.storage {
            CpuStorage::U8(s) => Ok(Targets::from(&s[range])),
            CpuStorage::U32(s) => Ok(Targets::from(&s[range])),
            CpuStorage::I64(s) => Ok(Targets::from(&s[range])),
            other => Err(self.name.no_integers(dtype(other))),
        }
    }
}

fn dtype(storage: &CpuStorage) -> candle_core::DType {
    candle_core::backend::BackendStorage::dtype(storage)
}

/// Allocates `len` zeros, lets `fill` write them, and gives them to Candle.
fn filled(
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

fn round_each<T: Element>(out: &mut [T], from: SliceRef<'_>, at: impl Fn(usize) -> usize) {
    with_elements!(from, from => {
        for (i, to) in out.iter_mut().enumerate() {
            *to = T::round(from[at(i)].widen());
        }
    });
}

/// Copies the elements at `start + Σ index·stride`, the last dimension fastest.
fn gather_strided<T: Copy>(
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
