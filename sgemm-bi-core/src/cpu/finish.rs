//! The end of a chunk: the sum over chunks, the bias and the one rounding to the output's type
//! (contract sections 3 and 7).

use super::isa::Isa;
use super::product::{Axis, Bias};
use crate::operands::with_slice;
use crate::{Element, SliceRef};

/// A strided destination or source of a micro-tile's values.
#[derive(Clone, Copy)]
pub(super) struct Place<P> {
    pub start: P,
    pub row_stride: usize,
    pub col_stride: usize,
}

impl<P> Place<*mut P> {
    /// The same lines, of another type, from `start`.
    pub fn starting_at<Q>(self, start: Q) -> Place<Q> {
        Place {
            start,
            row_stride: self.row_stride,
            col_stride: self.col_stride,
        }
    }

    pub fn as_const(self) -> Place<*const P> {
        self.starting_at(self.start.cast_const())
    }
}

/// A micro-tile whose chunk is complete.
#[derive(Clone, Copy)]
pub(super) struct Finished<'a> {
    /// The chunk's results, rows `TILE_VECTORS` vectors long.
    pub chunk: *const f32,
    pub rows: usize,
    pub cols: usize,
    /// The total so far; +0.0 if none.
    pub total: Option<Place<*const f32>>,
    /// The bias and the index of the tile's first value in it, if this chunk is the last.
    pub bias: Option<(Bias<'a>, usize)>,
}

/// The widest row of a micro-tile.
const WIDEST: usize = 64;

/// Adds the chunk to the total, then the bias, and stores the rounded result.
///
/// # Safety
/// The chunk is valid for reading `rows` rows, the total and `to` for `rows × cols` elements; the
/// bias holds a value for each index of the tile.
#[inline(always)]
pub(super) unsafe fn finish<I: Isa, O: Element>(isa: I, tile: &Finished<'_>, to: Place<*mut O>) {
    let mut values: [f32; WIDEST];
    let bias = match tile.bias {
        None => None,
        Some((bias, first)) => {
            values = [0.0; WIDEST];
            let count = match bias.along {
                Axis::Cols => tile.cols,
                Axis::Rows => tile.rows,
            };
            widen(bias.values, first, &mut values[..count]);
            Some((bias.along, values.as_ptr()))
        }
    };
    isa.vectorize(
        #[inline(always)]
        move || {
            for row in 0..tile.rows {
                for col in (0..tile.cols).step_by(I::LANES) {
                    let count = I::LANES.min(tile.cols - col);
                    // SAFETY: the caller's; columns col..col + count of the row.
                    unsafe {
                        let width = I::TILE_VECTORS * I::LANES;
                        let chunk = isa.load(tile.chunk.add(row * width + col));
                        let start = match tile.total {
                            None => isa.zero(),
                            Some(total) => {
                                // A start of −0.0 reads as +0.0.
                                isa.add(load_place(isa, total, (row, col), count), isa.zero())
                            }
                        };
                        let mut total = isa.add(start, chunk);
                        if let Some((along, values)) = bias {
                            let bias = match along {
                                Axis::Cols => isa.load(values.add(col)),
                                Axis::Rows => isa.splat(values.add(row).read()),
                            };
                            total = isa.add(total, bias);
                        }
                        store_place(isa, to, (row, col), total, count);
                    }
                }
            }
        },
    );
}

fn widen(values: SliceRef<'_>, first: usize, to: &mut [f32]) {
    with_slice!(SliceRef, values, s => {
        for (to, from) in to.iter_mut().zip(&s[first..]) {
            *to = from.widen();
        }
    });
}

/// # Safety
/// `count` values from column `col` of row `row` are valid for reading.
#[inline(always)]
unsafe fn load_place<I: Isa>(
    isa: I,
    place: Place<*const f32>,
    (row, col): (usize, usize),
    count: usize,
) -> I::Vector {
    // SAFETY: the caller's.
    unsafe {
        let from = place
            .start
            .add(row * place.row_stride + col * place.col_stride);
        if place.col_stride == 1 {
            return isa.load_first(from, count);
        }
        let mut values = [0.0; WIDEST];
        for (i, value) in values.iter_mut().enumerate().take(count) {
            *value = from.add(i * place.col_stride).read();
        }
        isa.load(values.as_ptr())
    }
}

/// # Safety
/// `count` elements from column `col` of row `row` are valid for writing.
#[inline(always)]
unsafe fn store_place<I: Isa, O: Element>(
    isa: I,
    place: Place<*mut O>,
    (row, col): (usize, usize),
    values: I::Vector,
    count: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let to = place
            .start
            .add(row * place.row_stride + col * place.col_stride);
        if place.col_stride == 1 {
            return isa.round_first(to, values, count);
        }
        let mut array = [0.0; WIDEST];
        isa.store(array.as_mut_ptr(), values);
        for (i, &value) in array.iter().enumerate().take(count) {
            to.add(i * place.col_stride).write(O::round(value));
        }
    }
}
