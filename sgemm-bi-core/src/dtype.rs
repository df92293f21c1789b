//! Element types, their exact widening to f32 and their one rounding back (contract section 7).

use half::{bf16, f16};

use crate::contract::{CANONICAL_NAN_16, CANONICAL_NAN_F32};

/// The type of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// bfloat16: binary32 with 7 fraction bits.
    BF16,
    /// IEEE binary16.
    F16,
}

impl Dtype {
    /// Size of one element in bytes.
    pub const fn size_in_bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::BF16 | Dtype::F16 => 2,
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::BF16 => "bf16",
            Dtype::F16 => "f16",
        })
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
}

/// A Rust type that is the element of a matrix: [`f32`], [`half::bf16`] or [`half::f16`].
pub trait Element: Copy + Send + Sync + std::fmt::Debug + 'static + sealed::Sealed {
    /// The run-time name of this type.
    const DTYPE: Dtype;

    /// Widens to f32; exact for every value.
    fn widen(self) -> f32;

    /// Rounds to this type, nearest even; every NaN becomes the canonical one
    /// (contract section 7).
    fn round(value: f32) -> Self;

    /// The bits, zero-extended.
    fn bits(self) -> u32;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn round(value: f32) -> Self {
        if value.is_nan() {
            f32::from_bits(CANONICAL_NAN_F32)
        } else {
            value
        }
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::BF16;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn round(value: f32) -> Self {
        if value.is_nan() {
            return bf16::from_bits(CANONICAL_NAN_16);
        }
        // Nearest even on the upper half: add half a unit, less one when the kept bit is even.
        let bits = value.to_bits();
        bf16::from_bits(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16)
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
}

impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn round(value: f32) -> Self {
        if value.is_nan() {
            f16::from_bits(CANONICAL_NAN_16)
        } else {
            f16::from_f32(value)
        }
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
}
