//! Products with a short reduction, such as the weight gradient of a small batch: the output is
//! most of the traffic, so it is written once, row by row.

use std::ops::Range;

use half::{bf16, f16};

use super::isa::Isa;
use super::product::{Product, Start};
use super::scratch::{Pool, Sizes};
use super::team::Team;
use crate::{Dtype, Element};

/// The longest reduction that this path takes: beyond, packing pays for itself.
const LONGEST: usize = 16;

/// Rows that share a load of the second operand.
const ROWS: usize = 4;

/// Values in the longest vector.
const WIDEST: usize = 16;

/// Vectors in a step along a row.
const VECTORS: usize = 2;

/// Values of the second operand that stay in L1.
const HELD_VALUES: usize = 8192;

/// Bytes of an output from which it is written past the caches: more than L2 holds.
const STREAMED_BYTES: usize = 8 << 20;

/// Rows of a task at least.
const LEAST_ROWS: usize = 64;

/// True when this path computes the product.
pub(super) fn suits(product: &Product<'_>) -> bool {
    let contiguous = product.out.col_stride == 1 || product.cols == 1;
    contiguous && product.bias.is_none() && (1..=LONGEST).contains(&product.reduction)
}

/// Computes a product that [suits](suits) on `threads` threads of the current pool.
pub(super) fn gemm<I: Isa>(isa: I, product: &Product<'_>, team: Team<'_>, scratch: &Pool) {
    macro_rules! with_output {
        ($element:ty) => {
            match product.out.dtype {
                Dtype::F32 => by_rows::<I, $element, f32>(isa, product, team, scratch),
                Dtype::BF16 => by_rows::<I, $element, bf16>(isa, product, team, scratch),
                Dtype::F16 => by_rows::<I, $element, f16>(isa, product, team, scratch),
            }
        };
    }
    match product.rhs.dtype {
        Dtype::F32 => with_output!(f32),
        Dtype::BF16 => with_output!(bf16),
        Dtype::F16 => with_output!(f16),
    }
}

/// Cuts the rows into blocks, one for each task, and the columns so that what a task holds of the
/// second operand stays in L1.
fn by_rows<I: Isa, T: Element, O: Element>(
    isa: I,
    product: &Product<'_>,
    team: Team<'_>,
    scratch: &Pool,
) {
    let tile = VECTORS * I::LANES;
    let width = (HELD_VALUES / product.reduction)
        .min(product.cols)
        .next_multiple_of(tile);
    let step = match team.threads() {
        1 => product.rows,
        threads => product.rows.div_ceil(4 * threads).max(LEAST_ROWS),
    };
    let sizes = Sizes {
        // A step past the end: a streamed part starts anywhere.
        right: product.reduction * width + tile,
        ..Sizes::default()
    };
    let vector_bytes = I::LANES * size_of::<f32>();
    let out = product.out;
    let streams = O::DTYPE == Dtype::F32
        && product.start == Start::Zero
        && product.rows * product.cols * size_of::<f32>() >= STREAMED_BYTES
        && (out.row_stride * size_of::<f32>()).is_multiple_of(vector_bytes);
    // Columns of a block before the first aligned vector: the same in every row and block.
    let lead = match streams {
        true => out.start.cast::<f32>().align_offset(vector_bytes),
        false => 0,
    };
    team.for_each(product.rows.div_ceil(step.max(1)), |task| {
        let rows = task * step..product.rows.min((task + 1) * step);
        scratch.with(|scratch| {
            let held = Held {
                start: scratch.reserve(sizes).right,
                stride: width,
            };
            for col in (0..product.cols).step_by(width) {
                let cols = width.min(product.cols - col);
                // Up to the first aligned vector, the aligned ones, and what is left.
                let aligned = if streams {
                    let lead = lead.min(cols);
                    lead..lead + (cols - lead) / I::LANES * I::LANES
                } else {
                    cols..cols
                };
                let parts = [
                    (0..aligned.start, Write::Through),
                    (aligned.clone(), Write::Past),
                    (aligned.end..cols, Write::Through),
                ];
                isa.vectorize(
                    #[inline(always)]
                    || {
                        hold::<I, T>(isa, product, (col, cols), held);
                        for row in rows.clone().step_by(ROWS) {
                            let count = ROWS.min(rows.end - row);
                            let mut lhs = [[0.0; ROWS]; LONGEST];
                            // SAFETY: rows and reduction lie inside the operand (the invariant of
                            // `Product`).
                            unsafe { gather::<T>(product, (row, count), &mut lhs) };
                            for (part, write) in &parts {
                                let strip = Strip {
                                    row,
                                    col,
                                    part: part.clone(),
                                    write: *write,
                                };
                                // SAFETY: columns that were just held; the rows are this task's
                                // alone; the parts written past the caches are aligned.
                                unsafe {
                                    if count == ROWS {
                                        strip.run::<I, O, ROWS>(isa, product, &lhs, held);
                                        continue;
                                    }
                                    for i in 0..count {
                                        let lhs = lhs.map(|values| [values[i]; ROWS]);
                                        let row = row + i;
                                        let strip = Strip {
                                            row,
                                            ..strip.clone()
                                        };
                                        strip.run::<I, O, 1>(isa, product, &lhs, held);
                                    }
                                }
                            }
                        }
                    },
                );
            }
            if streams {
                isa.fence();
            }
        });
    });
}

/// How results leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    /// Through the caches.
    Through,
    /// Past them, whole vectors at aligned addresses.
    Past,
}

/// The widened columns of the second operand: rows `stride` values apart.
#[derive(Clone, Copy)]
struct Held {
    start: *mut f32,
    stride: usize,
}

/// Widens columns `first..first + cols` of the second operand.
#[inline(always)]
fn hold<I: Isa, T: Element>(
    isa: I,
    product: &Product<'_>,
    (first, cols): (usize, usize),
    held: Held,
) {
    let rhs = product.rhs;
    let start: *const T = rhs.start.cast();
    for r in 0..product.reduction {
        for col in (0..cols).step_by(I::LANES) {
            let count = I::LANES.min(cols - col);
            let from = start.wrapping_add(r * rhs.row_stride + (first + col) * rhs.col_stride);
            let to = held.start.wrapping_add(r * held.stride + col);
            // SAFETY: the columns lie inside the operand (the invariant of `Product`); `by_rows`
            // reserved rows of whole vectors.
            unsafe {
                if rhs.col_stride == 1 {
                    isa.store(to, isa.load_first(from, count));
                } else {
                    for i in 0..count {
                        to.add(i).write(from.add(i * rhs.col_stride).read().widen());
                    }
                }
            }
        }
    }
}

/// Widens the first operand's rows `row..row + count`, transposed.
///
/// # Safety
/// The rows lie inside the operand.
#[inline(always)]
unsafe fn gather<T: Element>(
    product: &Product<'_>,
    (row, count): (usize, usize),
    to: &mut [[f32; ROWS]; LONGEST],
) {
    let lhs = product.lhs;
    let start: *const T = lhs.start.cast();
    for (r, to) in to.iter_mut().enumerate().take(product.reduction) {
        for (i, to) in to.iter_mut().enumerate().take(count) {
            let at = (row + i) * lhs.row_stride + r * lhs.col_stride;
            // SAFETY: the caller's.
            *to = unsafe { start.add(at).read().widen() };
        }
    }
}

/// Rows from `row` on, through `part` of the held columns, the first of which is column `col`.
#[derive(Clone)]
struct Strip {
    row: usize,
    col: usize,
    part: Range<usize>,
    write: Write,
}

impl Strip {
    /// Computes `R` rows of the strip.
    ///
    /// # Safety
    /// The strip lies inside the output and belongs to this thread; `held` has a step of vectors
    /// after the part; a part written past the caches is aligned, whole vectors of f32, and not
    /// accumulated into.
    #[inline(always)]
    unsafe fn run<I: Isa, O: Element, const R: usize>(
        self,
        isa: I,
        product: &Product<'_>,
        lhs: &[[f32; ROWS]; LONGEST],
        held: Held,
    ) {
        let out = product.out;
        let first = self.row * out.row_stride + self.col;
        let first = out.start.cast::<O>().wrapping_add(first);
        for col in self.part.clone().step_by(VECTORS * I::LANES) {
            let mut acc = [[isa.zero(); VECTORS]; R];
            for (r, lhs) in lhs.iter().enumerate().take(product.reduction) {
                let row = held.start.wrapping_add(r * held.stride + col);
                let mut b = [isa.zero(); VECTORS];
                for (v, b) in b.iter_mut().enumerate() {
                    // SAFETY: the caller's.
                    *b = unsafe { isa.load(row.wrapping_add(v * I::LANES).cast_const()) };
                }
                for (acc, &a) in acc.iter_mut().zip(lhs) {
                    let a = isa.splat(a);
                    for (acc, b) in acc.iter_mut().zip(b) {
                        *acc = isa.mul_add(a, b, *acc);
                    }
                }
            }
            for (i, acc) in acc.iter().enumerate() {
                for (v, &chunk) in acc.iter().enumerate() {
                    let col = col + v * I::LANES;
                    let count = I::LANES.min(self.part.end.saturating_sub(col));
                    let to = first.wrapping_add(i * out.row_stride + col);
                    // SAFETY: the caller's; an accumulated-into output is f32.
                    unsafe {
                        match (self.write, product.start) {
                            (Write::Past, _) if count > 0 => {
                                let total = isa.add(isa.zero(), chunk);
                                let mut rounded = [0.0f32; WIDEST];
                                isa.round_first(rounded.as_mut_ptr(), total, I::LANES);
                                isa.stream(to.cast(), isa.load(rounded.as_ptr()));
                            }
                            (_, Start::Zero) => {
                                isa.round_first(to, isa.add(isa.zero(), chunk), count);
                            }
                            (_, Start::Output) => {
                                // A start of −0.0 reads as +0.0 (contract section 3).
                                let held = isa.load_first(to.cast::<f32>(), count);
                                let start = isa.add(held, isa.zero());
                                isa.round_first(to, isa.add(start, chunk), count);
                            }
                        }
                    }
                }
            }
        }
    }
}
