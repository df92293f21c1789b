//! How a kernel reads an input: along which direction, and how many elements at once.

use crate::turn::{Form, Strides};
use crate::{BatchDim, Dtype};

/// Bytes of the widest load.
const WIDE: usize = 16;

/// How an input is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Access {
    /// The direction to walk: 0 along lines (rows of the first operand, columns of the second), 1
    /// along the reduction.
    pub order: u32,
    /// Elements of one load: 1, or as many as 16 bytes hold, aligned.
    pub width: u32,
}

impl Access {
    /// How the first operand of a form is read, if its first element lies at `address`.
    pub fn of_lhs(form: &Form, repeats: &[BatchDim], dtype: Dtype, address: u64) -> Self {
        let Strides { row, col } = form.lhs;
        let batch = form.dims.iter().chain(repeats).map(|dim| dim.lhs_stride);
        Self::of(row, col, batch, dtype, address)
    }

    /// How the second operand is read.
    pub fn of_rhs(form: &Form, repeats: &[BatchDim], dtype: Dtype, address: u64) -> Self {
        let Strides { row, col } = form.rhs;
        let batch = form.dims.iter().chain(repeats).map(|dim| dim.rhs_stride);
        Self::of(col, row, batch, dtype, address)
    }

    fn of(
        line: usize,
        reduction: usize,
        mut batch: impl Iterator<Item = usize>,
        dtype: Dtype,
        address: u64,
    ) -> Self {
        // A stride of zero is a broadcast, or a dimension of one element: nothing to walk along.
        let order = match (line, reduction) {
            (_, 1) => 1,
            (1, _) => 0,
            (0, _) => 1,
            (_, 0) => 0,
            (line, reduction) => u32::from(reduction <= line),
        };
        let (along, across) = match order {
            0 => (line, reduction),
            _ => (reduction, line),
        };
        let width = WIDE / dtype.size_in_bytes();
        let aligned = address.is_multiple_of(WIDE as u64)
            && across.is_multiple_of(width)
            && batch.all(|stride| stride.is_multiple_of(width));
        Access {
            order,
            width: if along == 1 && aligned {
                width as u32
            } else {
                1
            },
        }
    }
}
