//! Where a logical matrix lies in memory: dense, padded, transposed, scattered, stacked.

use sgemm_bi_core::View;

use crate::{Buffer, Format};

/// A way to lay out a matrix. Bits never depend on it (contract section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Rows one after another, from the slice's start.
    RowMajor,
    /// Columns one after another, from the slice's start.
    ColMajor,
    /// Rows with a gap of 3 after each, from element 5.
    PaddedRows,
    /// Columns with a gap of 1 after each, from element 7.
    PaddedCols,
    /// Every second column of every second row of a larger matrix, from element 1.
    Scattered,
}

impl Place {
    /// Every way.
    pub const ALL: [Place; 5] = [
        Place::RowMajor,
        Place::ColMajor,
        Place::PaddedRows,
        Place::PaddedCols,
        Place::Scattered,
    ];

    /// The view of a matrix laid out so.
    pub fn view(self, rows: usize, cols: usize) -> View {
        match self {
            Place::RowMajor => View::row_major(cols),
            Place::ColMajor => View::col_major(rows),
            Place::PaddedRows => View::row_major(cols + 3).at(5),
            Place::PaddedCols => View::col_major(rows + 1).at(7),
            Place::Scattered => View {
                offset: 1,
                row_stride: 4 * cols + 2,
                col_stride: 2,
            },
        }
    }
}

/// Equal matrices one after another: how many, their size, and the distance between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Number of matrices.
    pub entries: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of each.
    pub cols: usize,
    /// Where the first lies.
    pub view: View,
    /// Elements from one to the next.
    pub stride: usize,
}

impl Stack {
    /// One matrix.
    pub fn one(rows: usize, cols: usize, view: View) -> Self {
        Stack {
            entries: 1,
            rows,
            cols,
            view,
            stride: 0,
        }
    }

    /// Matrices of `(rows, cols)` laid out like `place`, with `gap` from the last element of one
    /// to the first of the next.
    pub fn spaced(entries: usize, (rows, cols): (usize, usize), place: Place, gap: usize) -> Self {
        let view = place.view(rows, cols);
        let last_row = rows.saturating_sub(1) * view.row_stride;
        let last_col = cols.saturating_sub(1) * view.col_stride;
        Stack {
            entries,
            rows,
            cols,
            view,
            stride: last_row + last_col + gap,
        }
    }

    fn len(&self) -> usize {
        self.entries * self.rows * self.cols
    }

    /// The addresses of the elements in row-major order.
    fn addresses(&self) -> impl Iterator<Item = usize> + use<> {
        let Stack {
            entries,
            rows,
            cols,
            view,
            stride,
        } = *self;
        (0..entries).flat_map(move |entry| {
            (0..rows).flat_map(move |row| {
                let first = view.offset + entry * stride + row * view.row_stride;
                (0..cols).map(move |col| first + col * view.col_stride)
            })
        })
    }
}

/// Matrices in memory: elements outside them are NaN of an unusual payload, so that a stray read
/// shows in a result and a stray write in the buffer.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The whole slice.
    pub buffer: Buffer,
    stack: Stack,
}

impl Placed {
    /// Lays out row-major `elements`, with `tail` canaries after the last one.
    pub fn new(elements: &Buffer, stack: Stack, tail: usize) -> Self {
        assert_eq!(elements.len(), stack.len(), "{stack:?}");
        let last = stack.addresses().max();
        let len = last.map_or(0, |last| last + 1) + tail;
        let canary = canary(elements);
        let mut buffer = Buffer::from_bits(elements.dtype(), len, |_| canary);
        for (i, at) in stack.addresses().enumerate() {
            buffer.set_bits(at, elements.bits(i));
        }
        Placed { buffer, stack }
    }

    /// The bits of the matrices, row-major.
    pub fn bits(&self) -> Vec<u32> {
        let addresses = self.stack.addresses();
        addresses.map(|at| self.buffer.bits(at)).collect()
    }

    /// Panics when an element outside the matrices is no longer the canary.
    #[track_caller]
    pub fn assert_canaries(&self, what: &str) {
        let mut inside = vec![false; self.buffer.len()];
        self.stack.addresses().for_each(|at| inside[at] = true);
        let canary = canary(&self.buffer);
        for (i, inside) in inside.into_iter().enumerate() {
            let word = self.buffer.bits(i);
            assert!(
                inside || word == canary,
                "{what}: element {i} lies outside the output {:?} and was overwritten by {word:#x}",
                self.stack
            );
        }
    }
}

/// A NaN that no result can be: quiet, negative, with a payload.
fn canary(buffer: &Buffer) -> u32 {
    let format = Format::of(buffer.dtype());
    let infinity = format.infinity();
    let quiet = (infinity & infinity.wrapping_neg()) >> 1;
    format.sign() | infinity | quiet | 5
}
