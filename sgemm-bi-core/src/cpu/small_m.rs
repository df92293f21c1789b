//! Products with few rows, and those with few columns seen transposed: the weight streams through
//! once, unpacked.
//!
//! The chains of a block of columns lie in the cache. A pass takes [`DEPTH`] elements of the
//! reduction: it loads each vector of weights once and advances the chains of every row with it. A
//! weight whose columns are contiguous in the reduction is transposed in registers on the way, so
//! that vectors run over columns in both layouts.

use std::ops::Range;

use half::{bf16, f16};

use super::finish::{ChunkPlace, Tile, finish};
use super::float_env::with_default_float_env;
use super::isa::{Isa, Strided, prefetch};
use super::product::{Matrix, Product};
use super::scratch::{Buffers, Pool, Sizes};
use super::team::Team;
use crate::contract::CHUNK;
use crate::{Dtype, Element};

/// The most rows that this path takes: beyond, packing pays for itself.
pub(super) const MOST_ROWS: usize = 64;

/// Elements of the reduction in a pass.
const DEPTH: usize = 8;

/// Values of the chains that a block of columns has: they stay in L2.
pub(super) const CHAIN_VALUES: usize = 1 << 16;

/// Columns of a block at least, so that a row of the weight is read in long runs.
const LEAST_COLUMNS: usize = 512;

/// Bytes of a cache line.
const LINE: usize = 64;

/// How far ahead of its use, in bytes, a weight is asked for.
const PREFETCHED: usize = 8 * LINE;

/// The product as this path computes it: itself or its transpose, with few rows. None if it has no
/// such form.
pub(super) fn suitable(product: Product<'_>) -> Option<Product<'_>> {
    [product, product.transposed()]
        .into_iter()
        .find(|form| form.rows <= MOST_ROWS)
}

/// Computes a [`suitable`] product on `threads` threads of the current pool.
pub(super) fn gemm<I: Isa>(isa: I, product: &Product<'_>, team: Team<'_>, scratch: &Pool) {
    match product.rhs.dtype {
        Dtype::F32 => by_columns::<I, f32>(isa, product, team, scratch),
        Dtype::BF16 => by_columns::<I, bf16>(isa, product, team, scratch),
        Dtype::F16 => by_columns::<I, f16>(isa, product, team, scratch),
    }
}

/// Cuts the columns into blocks, one for each task.
fn by_columns<I: Isa, T: Element>(isa: I, product: &Product<'_>, team: Team<'_>, scratch: &Pool) {
    if product.rows == 0 || product.cols == 0 {
        return;
    }
    let tile = I::TILE_VECTORS * I::LANES;
    let threads = team.threads();
    let shared = match threads {
        1 => product.cols,
        _ => product.cols.div_ceil(4 * threads).max(LEAST_COLUMNS),
    };
    let step = shared
        .min(CHAIN_VALUES / product.rows)
        .next_multiple_of(tile);
    let blocks = product.cols.div_ceil(step);
    let chunks = product.reduction.div_ceil(CHUNK).max(1);
    // Too few blocks for the threads: these reduce chunks side by side, and add them in order.
    let side_by_side = threads.div_ceil(blocks).min(chunks);
    let values = product.rows * step;
    // A vector past the end: `gather` stores whole ones.
    let lhs = product.rows * product.reduction.min(CHUNK).next_multiple_of(DEPTH) + I::LANES;
    let turned = Columns::<I, T>::TRANSPOSED_DEPTH * tile;
    let narrow_totals = chunks > 1 && product.out.dtype != Dtype::F32;
    let sizes = Sizes {
        left: side_by_side * lhs,
        right: side_by_side * turned,
        partial: side_by_side * values,
        totals: if narrow_totals { values } else { 0 },
    };
    team.for_each(blocks, |block| {
        scratch.with(|scratch| {
            let buffers = scratch.reserve(sizes);
            let columns = |place: usize| Columns::<I, T> {
                isa,
                product,
                cols: block * step..product.cols.min((block + 1) * step),
                buffers: Buffers {
                    left: buffers.left.wrapping_add(place * lhs),
                    right: buffers.right.wrapping_add(place * turned),
                    partial: buffers.partial.wrapping_add(place * values),
                    totals: buffers.totals,
                },
                weight: product.rhs.start.cast(),
            };
            let places: Vec<_> = (0..side_by_side).map(columns).collect();
            for first in (0..chunks).step_by(side_by_side) {
                let places = &places[..side_by_side.min(chunks - first)];
                team.for_each(places.len(), |i| places[i].reduce(first + i));
                for (i, place) in places.iter().enumerate() {
                    // A job that this thread ran while it waited may have changed the environment.
                    with_default_float_env(|| place.add(first + i, chunks));
                }
            }
        });
    });
}

/// A block of columns.
struct Columns<'a, I, T> {
    isa: I,
    product: &'a Product<'a>,
    cols: Range<usize>,
    /// `left` holds the first operand's chunk, `right` transposed weights, `partial` the chains and
    /// `totals` their sums, both tile by tile.
    buffers: Buffers,
    weight: *const T,
}

// SAFETY: threads have buffers of their own, and one at a time writes a block of the output.
unsafe impl<I: Isa, T: Element> Sync for Columns<'_, I, T> {}

/// Vectors of weights: `depth` rows, `stride` elements apart, of `cols` columns.
#[derive(Clone, Copy)]
struct Weights<T> {
    start: *const T,
    stride: usize,
    depth: usize,
    cols: usize,
}

impl<I: Isa, T: Element> Columns<'_, I, T> {
    const TILE: usize = I::TILE_VECTORS * I::LANES;

    /// Elements of the reduction that are transposed at a time: a cache line of each column.
    const TRANSPOSED_DEPTH: usize = LINE / size_of::<T>();

    /// Reduces one chunk.
    fn reduce(&self, chunk: usize) {
        let first = chunk * CHUNK;
        let range = first..self.product.reduction.min(first + CHUNK);
        let values = self.product.rows * self.cols.len().next_multiple_of(Self::TILE);
        // SAFETY: `by_columns` reserved the values; +0.0 is all bits zero.
        unsafe { self.buffers.partial.write_bytes(0, values) };
        self.isa.vectorize(
            #[inline(always)]
            || {
                self.gather(range.clone());
                let rhs = self.product.rhs;
                if rhs.col_stride == 1 || self.product.cols == 1 {
                    self.direct(range);
                } else {
                    self.transposed(range);
                }
            },
        );
    }

    /// Adds a chunk to the totals, and stores the results after the last.
    fn add(&self, chunk: usize, chunks: usize) {
        for tile in 0..self.cols.len().div_ceil(Self::TILE) {
            let rows = self.product.rows;
            let col = self.cols.start + tile * Self::TILE;
            let tile = Tile {
                chunk: self.chains(tile).cast_const(),
                totals: self.buffers.totals.wrapping_add(tile * rows * Self::TILE),
                at: (0, col),
                sizes: (rows, Self::TILE.min(self.cols.end - col)),
                place: ChunkPlace {
                    first: chunk == 0,
                    last: chunk + 1 == chunks,
                },
            };
            // SAFETY: `reduce` filled the chains; the tile lies inside the output, no other thread
            // has it, and `by_columns` reserved the totals where there are any.
            unsafe { finish(self.isa, self.product, &tile) };
        }
    }

    /// Widens the first operand's chunk: [`DEPTH`] elements of each row, then the next ones.
    #[inline(always)]
    fn gather(&self, range: Range<usize>) {
        let lhs = self.product.lhs;
        let rows = self.product.rows;
        let start: *const T = lhs.start.cast();
        let mut to = self.buffers.left;
        for first in range.clone().step_by(DEPTH) {
            let depth = DEPTH.min(range.end - first);
            for row in 0..rows {
                let from = start.wrapping_add(row * lhs.row_stride + first * lhs.col_stride);
                // SAFETY: `row` and `first..first + depth` lie inside the operand (the invariant
                // of `Product`); `by_columns` reserved DEPTH values for each row and pass, and a
                // vector more: what a store writes past its DEPTH the next overwrites.
                unsafe {
                    if lhs.col_stride == 1 && I::LANES >= DEPTH {
                        self.isa.store(to, self.isa.load_first(from, depth));
                    } else {
                        for i in 0..depth {
                            to.add(i).write(from.add(i * lhs.col_stride).read().widen());
                        }
                    }
                }
                to = to.wrapping_add(DEPTH);
            }
        }
    }

    /// A chunk of a weight whose rows are contiguous: DEPTH of its rows a pass.
    #[inline(always)]
    fn direct(&self, range: Range<usize>) {
        let stride = self.product.rhs.row_stride;
        for first in range.clone().step_by(DEPTH) {
            let depth = DEPTH.min(range.end - first);
            let row = self.weight.wrapping_add(first * stride + self.cols.start);
            let lhs = self.lhs(first - range.start);
            for tile in 0..self.cols.len().div_ceil(Self::TILE) {
                let start = row.wrapping_add(tile * Self::TILE);
                let weights = Weights {
                    start,
                    stride,
                    depth,
                    cols: Self::TILE.min(self.cols.len() - tile * Self::TILE),
                };
                for r in 0..depth {
                    let ahead = start.wrapping_add(r * stride);
                    for line in 0..Self::TILE * size_of::<T>() / LINE {
                        prefetch(ahead.wrapping_byte_add(PREFETCHED + line * LINE));
                    }
                }
                // SAFETY: the rows and columns lie inside the weight.
                unsafe { self.advance(weights, lhs, self.chains(tile)) };
            }
        }
    }

    /// A chunk of a weight whose columns are contiguous: a strip of columns at a time, a cache line
    /// of each, transposed into a buffer.
    #[inline(always)]
    fn transposed(&self, range: Range<usize>) {
        // Few streams suit the memory better; with more rows the arithmetic decides.
        let width = match self.product.rows {
            0..=4 => I::LANES,
            _ => Self::TILE,
        };
        let step = Self::TRANSPOSED_DEPTH;
        for begin in (0..self.cols.len()).step_by(width) {
            let cols = width.min(self.cols.len() - begin);
            let chains = self
                .chains(begin / Self::TILE)
                .wrapping_add(begin % Self::TILE);
            for first in range.clone().step_by(step) {
                let depth = step.min(range.end - first);
                for i in (0..cols).step_by(I::LANES) {
                    let lines = I::LANES.min(cols - i);
                    let col = self.cols.start + begin + i;
                    self.transpose(col..col + lines, first..first + depth, i);
                }
                for pass in (0..depth).step_by(DEPTH) {
                    let start = self.buffers.right.wrapping_add(pass * Self::TILE);
                    let weights = Weights {
                        start: start.cast_const(),
                        stride: Self::TILE,
                        depth: DEPTH.min(depth - pass),
                        cols,
                    };
                    let lhs = self.lhs(first + pass - range.start);
                    // SAFETY: the rows were just filled.
                    unsafe { self.advance(weights, lhs, chains) };
                }
            }
        }
    }

    /// Transposes at most LANES columns of the weight and TRANSPOSED_DEPTH elements of each into the
    /// buffer's columns from `to`, and asks for what follows.
    #[inline(always)]
    fn transpose(&self, cols: Range<usize>, depth: Range<usize>, to: usize) {
        let Matrix {
            row_stride,
            col_stride: stride,
            ..
        } = self.product.rhs;
        let lines = cols.len();
        let at = cols.start * stride + depth.start * row_stride;
        let block = self.weight.wrapping_add(at);
        for line in 0..lines {
            let ahead = block.wrapping_add(line * stride);
            prefetch(ahead.wrapping_byte_add(PREFETCHED));
        }
        for r in (0..depth.len()).step_by(I::LANES) {
            let from = Strided {
                start: block.wrapping_add(r * row_stride),
                stride,
            };
            let to = Strided {
                start: self.buffers.right.wrapping_add(r * Self::TILE + to),
                stride: Self::TILE,
            };
            let length = I::LANES.min(depth.len() - r);
            // SAFETY: columns and depth lie inside the weight; the buffer has TRANSPOSED_DEPTH rows
            // of a tile's columns, whole vectors.
            unsafe {
                if row_stride != 1 || length < I::LANES {
                    transpose_any(from, row_stride, (lines, length), to);
                } else if lines == I::LANES {
                    // A constant number of lines: no branch is left of it.
                    self.isa.transpose(from, I::LANES, to);
                } else {
                    self.isa.transpose(from, lines, to);
                }
            }
        }
    }

    /// The first operand's values from element `r` of the chunk, a multiple of DEPTH.
    #[inline(always)]
    fn lhs(&self, r: usize) -> *const f32 {
        self.buffers.left.wrapping_add(r * self.product.rows)
    }

    /// The chains of a tile: a row of TILE values for each row.
    #[inline(always)]
    fn chains(&self, tile: usize) -> *mut f32 {
        let values = self.product.rows * Self::TILE;
        self.buffers.partial.wrapping_add(tile * values)
    }

    /// Advances a tile's chains by the weights.
    ///
    /// # Safety
    /// The weights are valid for reading; `lhs` and `chains` are those of this block.
    #[inline(always)]
    unsafe fn advance<W: Element>(&self, weights: Weights<W>, lhs: *const f32, chains: *mut f32) {
        // Two vectors of weights at a time where DEPTH of them leave registers free for it.
        let pair = if I::LANES >= 16 { 2 } else { 1 };
        let mut col = 0;
        while col < weights.cols {
            let left = weights.cols - col;
            let part = Weights {
                start: weights.start.wrapping_add(col),
                cols: left.min(I::LANES),
                ..weights
            };
            let chains = chains.wrapping_add(col);
            // SAFETY: the caller's.
            unsafe {
                if weights.depth == DEPTH && pair == 2 && left >= 2 * I::LANES {
                    self.pass::<W, DEPTH, 2>(part, lhs, chains);
                    col += I::LANES;
                } else if weights.depth == DEPTH {
                    self.pass::<W, DEPTH, 1>(part, lhs, chains);
                } else {
                    for r in 0..weights.depth {
                        let row = Weights {
                            start: part.start.wrapping_add(r * part.stride),
                            ..part
                        };
                        self.pass::<W, 1, 1>(row, lhs.wrapping_add(r), chains);
                    }
                }
            }
            col += I::LANES;
        }
    }

    /// Advances the chains of every row by `D` rows of `V` vectors of weights, the last of which
    /// has `weights.cols` values.
    ///
    /// # Safety
    /// That of [`advance`](Columns::advance).
    #[inline(always)]
    unsafe fn pass<W: Element, const D: usize, const V: usize>(
        &self,
        weights: Weights<W>,
        lhs: *const f32,
        chains: *mut f32,
    ) {
        let isa = self.isa;
        let mut w = [[isa.zero(); V]; D];
        for (r, row) in w.iter_mut().enumerate() {
            for (v, w) in row.iter_mut().enumerate() {
                let from = weights
                    .start
                    .wrapping_add(r * weights.stride + v * I::LANES);
                // SAFETY: the caller's.
                *w = unsafe {
                    if weights.cols == I::LANES {
                        isa.load(from)
                    } else {
                        isa.load_first(from, weights.cols)
                    }
                };
            }
        }
        for row in 0..self.product.rows {
            let chains = chains.wrapping_add(row * Self::TILE);
            let lhs = lhs.wrapping_add(row * DEPTH);
            let mut acc = [isa.zero(); V];
            for (v, acc) in acc.iter_mut().enumerate() {
                // SAFETY: a tile's row holds whole vectors.
                *acc = unsafe { isa.load(chains.wrapping_add(v * I::LANES).cast_const()) };
            }
            for (r, w) in w.iter().enumerate() {
                // SAFETY: the caller's.
                let x = isa.splat(unsafe { lhs.add(r).read() });
                for (acc, &w) in acc.iter_mut().zip(w) {
                    *acc = isa.mul_add(x, w, *acc);
                }
            }
            for (v, acc) in acc.into_iter().enumerate() {
                // SAFETY: as above.
                unsafe { isa.store(chains.wrapping_add(v * I::LANES), acc) };
            }
        }
    }
}

/// Widens and transposes a block of `lines` lines of `length` elements, `step` apart, one by one.
///
/// # Safety
/// Each line is valid for reading, and a column of `lines` values for each element for writing.
unsafe fn transpose_any<T: Element>(
    from: Strided<*const T>,
    step: usize,
    (lines, length): (usize, usize),
    to: Strided<*mut f32>,
) {
    for j in 0..length {
        for i in 0..lines {
            // SAFETY: the caller's.
            unsafe {
                let value = from.start.add(i * from.stride + j * step).read().widen();
                to.start.add(j * to.stride + i).write(value);
            }
        }
    }
}
