//! An owned slice of any element type, so that a dtype is a value in the tests.

use half::{bf16, f16};
use sgemm_bi_core::{Dtype, SliceMut, SliceRef};

/// Owned elements of one dtype.
#[derive(Clone, Debug)]
pub enum Buffer {
    /// f32 elements.
    F32(Vec<f32>),
    /// bf16 elements.
    BF16(Vec<bf16>),
    /// f16 elements.
    F16(Vec<f16>),
}

/// Evaluates an expression with the vector inside a [`Buffer`], whatever its type.
macro_rules! with_buffer {
    ($value:expr, $vec:ident => $body:expr) => {
        match $value {
            Buffer::F32($vec) => $body,
            Buffer::BF16($vec) => $body,
            Buffer::F16($vec) => $body,
        }
    };
}

impl Buffer {
    /// A buffer whose element `i` has the low bits of `word(i)`.
    pub fn from_bits(dtype: Dtype, len: usize, word: impl FnMut(usize) -> u32) -> Self {
        let words = (0..len).map(word);
        match dtype {
            Dtype::F32 => Buffer::F32(words.map(f32::from_bits).collect()),
            Dtype::BF16 => Buffer::BF16(words.map(|w| bf16::from_bits(w as u16)).collect()),
            Dtype::F16 => Buffer::F16(words.map(|w| f16::from_bits(w as u16)).collect()),
            other => panic!("a dtype the tests do not know: {other}"),
        }
    }

    /// The dtype.
    pub fn dtype(&self) -> Dtype {
        self.as_ref().dtype()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        with_buffer!(self, v => v.len())
    }

    /// True when there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bits of element `i`, zero-extended.
    pub fn bits(&self, i: usize) -> u32 {
        match self {
            Buffer::F32(v) => v[i].to_bits(),
            Buffer::BF16(v) => u32::from(v[i].to_bits()),
            Buffer::F16(v) => u32::from(v[i].to_bits()),
        }
    }

    /// The bits of every element.
    pub fn all_bits(&self) -> Vec<u32> {
        (0..self.len()).map(|i| self.bits(i)).collect()
    }

    /// Sets the bits of element `i`.
    pub fn set_bits(&mut self, i: usize, word: u32) {
        match self {
            Buffer::F32(v) => v[i] = f32::from_bits(word),
            Buffer::BF16(v) => v[i] = bf16::from_bits(word as u16),
            Buffer::F16(v) => v[i] = f16::from_bits(word as u16),
        }
    }

    /// The elements `range`, copied.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        match self {
            Buffer::F32(v) => Buffer::F32(v[range].to_vec()),
            Buffer::BF16(v) => Buffer::BF16(v[range].to_vec()),
            Buffer::F16(v) => Buffer::F16(v[range].to_vec()),
        }
    }

    /// The elements, borrowed for an engine.
    pub fn as_ref(&self) -> SliceRef<'_> {
        with_buffer!(self, v => SliceRef::from(v))
    }

    /// The elements, borrowed for an engine to write.
    pub fn as_mut(&mut self) -> SliceMut<'_> {
        with_buffer!(self, v => SliceMut::from(v))
    }
}

impl From<Vec<f32>> for Buffer {
    fn from(values: Vec<f32>) -> Self {
        Buffer::F32(values)
    }
}

impl From<Vec<bf16>> for Buffer {
    fn from(values: Vec<bf16>) -> Self {
        Buffer::BF16(values)
    }
}

impl From<Vec<f16>> for Buffer {
    fn from(values: Vec<f16>) -> Self {
        Buffer::F16(values)
    }
}
