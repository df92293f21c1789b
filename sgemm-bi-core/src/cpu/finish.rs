//! The end of a chunk: the sum over chunks, the bias and the one rounding to the output's type
//! (contract sections 3 and 7).

use half::{bf16, f16};

use super::isa::Isa;
use super::product::{Axis, Bias, Product, Start};
use crate::operands::with_slice;
use crate::{Dtype, Element, SliceRef};

/// A strided destination or source of a micro-tile's values.
#[derive(Clone, Copy)]
struct Place<P> {
    start: P,
    row_stride: usize,
    col_stride: usize,
}

impl<P> Place<*mut P> {
    /// The same lines, of another type, from `start`.
    fn starting_at<Q>(self, start: Q) -> Place<Q> {
        Place {
            start,
            row_stride: self.row_stride,
            col_stride: self.col_stride,
        }
    }

    fn as_const(self) -> Place<*const P> {
        self.starting_at(self.start.cast_const())
    }
}

/// A micro-tile of the output whose chunk is complete.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// The chunk's results, rows `TILE_VECTORS` vectors long.
    pub chunk: *const f32,
    /// As many values, which keep the totals of an output whose type cannot.
    pub totals: *mut f32,
    /// The first row and column.
    pub at: (usize, usize),
    /// Rows and columns.
    pub sizes: (usize, usize),
    pub place: ChunkPlace,
}

/// Where a chunk stands in the reduction.
#[derive(Clone, Copy)]
pub(super) struct ChunkPlace {
    pub first: bool,
    pub last: bool,
}

/// Adds a tile's chunk to its totals, and stores the results after the last chunk.
///
/// # Safety
/// The tile lies inside the product's output, and no other thread has it; its chunk was computed;
/// where there are several chunks and the output is not f32, `totals` is valid for the tile and
/// holds what the earlier chunks left there.
#[inline(always)]
pub(super) unsafe fn finish<I: Isa>(isa: I, product: &Product<'_>, tile: &Tile) {
    let out = product.out;
    let (row, col) = tile.at;
    let at = row * out.row_stride + col * out.col_stride;
    let output = Place {
        start: out.start,
        row_stride: out.row_stride,
        col_stride: out.col_stride,
    };
    let in_output = output.starting_at(out.start.cast::<f32>().wrapping_add(at));
    // An f32 output holds the totals itself.
    let totals = match out.dtype {
        Dtype::F32 => in_output,
        _ => Place {
            start: tile.totals,
            row_stride: I::TILE_VECTORS * I::LANES,
            col_stride: 1,
        },
    };
    let total = match (tile.place.first, product.start) {
        (true, Start::Zero) => None,
        (true, Start::Output) => Some(in_output),
        (false, _) => Some(totals),
    };
    let bias = product.bias.filter(|_| tile.place.last);
    let bias = bias.map(|bias| match bias.along {
        Axis::Rows => (bias, row),
        Axis::Cols => (bias, col),
    });
    let finished = Finished {
        chunk: tile.chunk,
        rows: tile.sizes.0,
        cols: tile.sizes.1,
        total: total.map(Place::as_const),
        bias,
    };
    macro_rules! store_as {
        ($element:ty) => {{
            let start = out.start.cast::<$element>().wrapping_add(at);
            // SAFETY: the caller's; the bias is as long as its axis (the invariant of `Product`).
            unsafe { store(isa, &finished, output.starting_at(start)) }
        }};
    }
    match out.dtype {
        // SAFETY: as above.
        _ if !tile.place.last => unsafe { store(isa, &finished, totals) },
        Dtype::F32 => store_as!(f32),
        Dtype::BF16 => store_as!(bf16),
        Dtype::F16 => store_as!(f16),
    }
}

/// A micro-tile with its total and bias.
#[derive(Clone, Copy)]
struct Finished<'a> {
    chunk: *const f32,
    rows: usize,
    cols: usize,
    /// The total so far; +0.0 if none.
    total: Option<Place<*const f32>>,
    /// The bias and the index of the tile's first value in it, if this chunk is the last.
    bias: Option<(Bias<'a>, usize)>,
}

/// The most rows and columns of a tile.
const WIDEST: usize = 64;

const _: () = assert!(super::small_m::MOST_ROWS <= WIDEST);

/// Adds the chunk to the total, then the bias, and stores the rounded result.
///
/// # Safety
/// The chunk is valid for reading `rows` rows, the total and `to` for `rows × cols` elements; the
/// bias holds a value for each index of the tile.
#[inline(always)]
unsafe fn store<I: Isa, O: Element>(isa: I, tile: &Finished<'_>, to: Place<*mut O>) {
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
    let tile = *tile;
    let whole = tile.cols.is_multiple_of(I::LANES)
        && to.col_stride == 1
        && tile.total.is_none_or(|total| total.col_stride == 1);
    isa.vectorize(
        #[inline(always)]
        move || {
            if whole {
                // The usual tile, with what is known of it written as constants.
                let to = Place {
                    col_stride: 1,
                    ..to
                };
                let total = tile.total.map(|total| Place {
                    col_stride: 1,
                    ..total
                });
                let tile = Finished { total, ..tile };
                for row in 0..tile.rows {
                    for col in (0..tile.cols).step_by(I::LANES) {
                        // SAFETY: the caller's; a whole vector of the row.
                        unsafe { store_vector(isa, &tile, bias, to, (row, col), I::LANES) };
                    }
                }
            } else {
                for row in 0..tile.rows {
                    for col in (0..tile.cols).step_by(I::LANES) {
                        let count = I::LANES.min(tile.cols - col);
                        // SAFETY: the caller's; columns col..col + count of the row.
                        unsafe { store_vector(isa, &tile, bias, to, (row, col), count) };
                    }
                }
            }
        },
    );
}

/// [`store`] for `count` columns from `col` in `row`, with the values of the bias.
///
/// # Safety
/// That of [`store`], for these columns.
#[inline(always)]
unsafe fn store_vector<I: Isa, O: Element>(
    isa: I,
    tile: &Finished<'_>,
    bias: Option<(Axis, *const f32)>,
    to: Place<*mut O>,
    (row, col): (usize, usize),
    count: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let width = I::TILE_VECTORS * I::LANES;
        let chunk = isa.load(tile.chunk.add(row * width + col));
        let start = match tile.total {
            None => isa.zero(),
            // A start of −0.0 reads as +0.0.
            Some(total) => isa.add(load_place(isa, total, (row, col), count), isa.zero()),
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
