//! What a softmax or a loss computes over: a batch of rows, their targets, and their validation.

use crate::error::{Error, Result};
use crate::gemm::check_bounds;
use crate::operands::Extent;

pub(crate) const LOG_SOFTMAX: &str = "log_softmax";
pub(crate) const LOG_SOFTMAX_BACKWARD: &str = "log_softmax backward";
pub(crate) const CROSS_ENTROPY: &str = "cross_entropy";
#[cfg(feature = "cuda")]
pub(crate) const ROUND: &str = "round";
pub(crate) const CROSS_ENTROPY_BACKWARD: &str = "cross_entropy backward";

/// A batch of rows: `[rows, cols]`, row-major, each row's elements side by side.
///
/// Element (i, j) of an input is at `i·input_stride + j`, of an output at `i·output_stride + j`,
/// both in elements. An input's stride may be anything, zero (one row for all) included; an
/// output's rows must not overlap. The dtype is the slices' own, one for all of a call.
///
/// ```
/// use sgemm_bi_core::{CpuEngine, Rows};
///
/// # fn main() -> Result<(), sgemm_bi_core::Error> {
/// let x = [0.0f32, 0.0, 9.9, 1.0, 1.0, 9.9]; // [2, 2] inside [2, 3]
/// let mut y = [0.0f32; 4];
/// let rows = Rows::new(2, 2).with_strides(3, 2);
/// CpuEngine::new()?.log_softmax(&rows, &x, &mut y)?;
/// assert_eq!(y, [-std::f32::consts::LN_2; 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row: the classes.
    pub cols: usize,
    /// Distance from an input's row to its next.
    pub input_stride: usize,
    /// Distance from an output's row to its next.
    pub output_stride: usize,
}

impl Rows {
    /// Dense rows.
    pub const fn new(rows: usize, cols: usize) -> Self {
        Rows {
            rows,
            cols,
            input_stride: cols,
            output_stride: cols,
        }
    }

    /// Says how far apart the rows of the inputs and of the output lie.
    pub const fn with_strides(self, input_stride: usize, output_stride: usize) -> Self {
        Rows {
            input_stride,
            output_stride,
            ..self
        }
    }

    /// True when there is no element.
    pub(crate) const fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0
    }

    /// Checks the operands of a log-softmax.
    pub(crate) fn check_log_softmax(&self, x: Extent, y: Extent) -> Result<()> {
        self.check_input(LOG_SOFTMAX, "x", x)?;
        self.check_output(LOG_SOFTMAX, "y", x, y)
    }

    /// Checks the operands of a log-softmax's gradient.
    pub(crate) fn check_log_softmax_backward(
        &self,
        y: Extent,
        dy: Extent,
        dx: Extent,
    ) -> Result<()> {
        let op = LOG_SOFTMAX_BACKWARD;
        self.check_input(op, "y", y)?;
        check_dtype(op, "dy", y, dy)?;
        self.check_input(op, "dy", dy)?;
        self.check_output(op, "dx", y, dx)
    }

    /// Checks the operands of a rounding copy.
    #[cfg(feature = "cuda")]
    pub(crate) fn check_round(&self, x: Extent, y: Extent) -> Result<()> {
        self.check_input(ROUND, "x", x)?;
        // The output's dtype is its own.
        self.check_output(ROUND, "y", y, y)
    }

    /// Checks the operands of a cross-entropy, but for what the targets are.
    pub(crate) fn check_cross_entropy(&self, logits: Extent, targets: usize) -> Result<()> {
        self.check_input(CROSS_ENTROPY, "logits", logits)?;
        self.check_len(CROSS_ENTROPY, targets)
    }

    /// Checks the operands of a cross-entropy's gradient, but for what the targets are.
    pub(crate) fn check_cross_entropy_backward(
        &self,
        logits: Extent,
        targets: usize,
        dlogits: Extent,
    ) -> Result<()> {
        let op = CROSS_ENTROPY_BACKWARD;
        self.check_input(op, "logits", logits)?;
        self.check_len(op, targets)?;
        self.check_output(op, "dlogits", logits, dlogits)
    }

    /// The targets as indices of columns, one for each row.
    pub(crate) fn target_indices(
        &self,
        op: &'static str,
        targets: Targets<'_>,
    ) -> Result<Vec<usize>> {
        let index = |row| {
            let got = targets.get(row);
            match usize::try_from(got) {
                Ok(target) if target < self.cols => Ok(target),
                _ => Err(self.target_out_of_range(op, row, got)),
            }
        };
        (0..self.rows).map(index).collect()
    }

    pub(crate) fn target_out_of_range(&self, op: &'static str, row: usize, got: i64) -> Error {
        Error::TargetOutOfRange {
            op,
            row,
            got,
            classes: self.cols,
        }
    }

    fn check_input(&self, op: &'static str, argument: &'static str, input: Extent) -> Result<()> {
        let dims = [(self.rows, self.input_stride), (self.cols, 1)];
        check_bounds(op, argument, 0, &dims, input.len)
    }

    fn check_output(
        &self,
        op: &'static str,
        argument: &'static str,
        first: Extent,
        output: Extent,
    ) -> Result<()> {
        check_dtype(op, argument, first, output)?;
        let dims = [(self.rows, self.output_stride), (self.cols, 1)];
        check_bounds(op, argument, 0, &dims, output.len)?;
        if self.rows > 1 && self.output_stride < self.cols {
            return Err(Error::OverlappingOutput {
                op,
                sizes: vec![self.rows, self.cols],
                strides: vec![self.output_stride, 1],
            });
        }
        Ok(())
    }

    fn check_len(&self, op: &'static str, targets: usize) -> Result<()> {
        if targets == self.rows {
            return Ok(());
        }
        Err(Error::LengthMismatch {
            op,
            argument: "targets",
            expected: self.rows,
            got: targets,
        })
    }
}

/// Checks that an operand has the dtype of the first input.
fn check_dtype(
    op: &'static str,
    argument: &'static str,
    first: Extent,
    other: Extent,
) -> Result<()> {
    let (expected, got) = (first.dtype, other.dtype);
    if got == expected {
        return Ok(());
    }
    Err(Error::DtypeMismatch {
        op,
        argument,
        expected,
        got,
    })
}

/// The class of each row, in one of the integer types that frameworks use.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Targets<'a> {
    /// u8 elements.
    U8(&'a [u8]),
    /// u32 elements.
    U32(&'a [u32]),
    /// i64 elements.
    I64(&'a [i64]),
}

impl Targets<'_> {
    /// Number of targets.
    pub fn len(&self) -> usize {
        match self {
            Targets::U8(s) => s.len(),
            Targets::U32(s) => s.len(),
            Targets::I64(s) => s.len(),
        }
    }

    /// True when there are no targets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, row: usize) -> i64 {
        match self {
            Targets::U8(s) => i64::from(s[row]),
            Targets::U32(s) => i64::from(s[row]),
            Targets::I64(s) => s[row],
        }
    }
}

macro_rules! from_slices {
    ($($element:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a [$element]> for Targets<'a> {
            fn from(slice: &'a [$element]) -> Self {
                Targets::$variant(slice)
            }
        }
        impl<'a> From<&'a Vec<$element>> for Targets<'a> {
            fn from(slice: &'a Vec<$element>) -> Self {
                Targets::$variant(slice)
            }
        }
        impl<'a, const N: usize> From<&'a [$element; N]> for Targets<'a> {
            fn from(slice: &'a [$element; N]) -> Self {
                Targets::$variant(slice)
            }
        }
    )*};
}
from_slices!(u8 => U8, u32 => U32, i64 => I64);
