//! Rows of any dtype to and from f32, many elements at a time.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Element;
use crate::contract::CANONICAL_NAN_16;

/// An element type whose rows are widened and rounded as [`Element`] does one by one.
pub(super) trait RowElement: Element {
    /// Widens a row.
    fn widen_row(row: &[Self], wide: &mut [f32]) {
        for (wide, value) in wide.iter_mut().zip(row) {
            *wide = value.widen();
        }
    }

    /// Rounds a row, NaN canonical.
    fn round_row(wide: &[f32], row: &mut [Self]) {
        for (value, &wide) in row.iter_mut().zip(wide) {
            *value = Self::round(wide);
        }
    }
}

impl RowElement for f32 {}

impl RowElement for bf16 {}

// Element by element, f16 would ask the processor for its conversion instructions every time.
impl RowElement for f16 {
    fn widen_row(row: &[Self], wide: &mut [f32]) {
        row.convert_to_f32_slice(wide);
    }

    fn round_row(wide: &[f32], row: &mut [Self]) {
        row.convert_from_f32_slice(wide);
        for value in row {
            if value.is_nan() {
                *value = f16::from_bits(CANONICAL_NAN_16);
            }
        }
    }
}
