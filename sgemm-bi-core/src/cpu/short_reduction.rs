//! Products with a short reduction, such as the weight gradient of a small batch: the output is
//! most of the traffic, so it is written once, row by row.

use half::{bf16, f16};

use super::driver::for_each;
use super::isa::Isa;
use super::product::{Product, Start};
use super::scratch::{Pool, Sizes};
use crate::{Dtype, Element};

/// The longest reduction that this path takes: beyond, packing pays for itself.
const LONGEST: usize = 16;

/// Rows that share a load of the second operand.
const ROWS: usize = 4;

/// Vectors in a step along a row.
const VECTORS: usize = 2;

/// Values of the second operand that stay in L1.
const HELD_VALUES: usize = 8192;

/// Rows of a task at least.
const LEAST_ROWS: usize = 64;

/// True when this path computes the product.
pub(super) fn suits(product: &Product<'_>) -> bool {
    let contiguous = product.out.col_stride == 1 || product.cols == 1;
    contiguous && product.bias.is_none() && (1..=LONGEST).contains(&product.reduction)
}

/// Computes a product that [suits](suits) on `threads` threads of the current pool.
pub(super) fn gemm<I: Isa>(isa: I, product: &Product<'_>, threads: usize, scratch: &Pool) {
    macro_rules! with_output {
        ($element:ty) => {
            match product.out.dtype {
                Dtype::F32 => by_rows::<I, $element, f32>(isa, product, threads, scratch),
                Dtype::BF16 => by_rows::<I, $element, bf16>(isa, product, threads, scratch),
                Dtype::F16 => by_rows::<I, $element, f16>(isa, product, threads, scratch),
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
    threads: usize,
    scratch: &Pool,
) {
    let tile = VECTORS * I::LANES;
    let width = (HELD_VALUES / product.reduction)
        .min(product.cols)
        .next_multiple_of(tile);
    let step = match threads {
        1 => product.rows,
        _ => product.rows.div_ceil(4 * threads).max(LEAST_ROWS),
    };
    let sizes = Sizes {
        right: product.reduction * width,
        ..Sizes::default()
    };
    for_each(threads, product.rows.div_ceil(step.max(1)), |task| {
        let rows = task * step..product.rows.min((task + 1) * step);
        scratch.with(|scratch| {
            let held = scratch.reserve(sizes).right;
            for col in (0..product.cols).step_by(width) {
                let cols = width.min(product.cols - col);
                isa.vectorize(
                    #[inline(always)]
                    || {
                        hold::<I, T>(isa, product, (col, cols), (held, width));
                        for row in rows.clone().step_by(ROWS) {
                            let count = ROWS.min(rows.end - row);
                            let mut lhs = [[0.0; ROWS]; LONGEST];
                            // SAFETY: rows and reduction lie inside the operand (the invariant of
                            // `Product`); columns inside what was just held; the rows are this
                            // task's alone.
                            unsafe {
                                gather::<T>(product, (row, count), &mut lhs);
                                let rhs = (held.cast_const(), width);
                                if count == ROWS {
                                    strip::<I, O, ROWS>(isa, product, (row, col), cols, &lhs, rhs);
                                } else {
                                    for i in 0..count {
                                        let lhs = lhs.map(|values| [values[i]; ROWS]);
                                        let at = (row + i, col);
                                        strip::<I, O, 1>(isa, product, at, cols, &lhs, rhs);
                                    }
                                }
                            }
                        }
                    },
                );
            }
        });
    });
}

/// Widens columns `first..first + cols` of the second operand into rows of `stride` values.
#[inline(always)]
fn hold<I: Isa, T: Element>(
    isa: I,
    product: &Product<'_>,
    (first, cols): (usize, usize),
    (to, stride): (*mut f32, usize),
) {
    let rhs = product.rhs;
    let start: *const T = rhs.start.cast();
    for r in 0..product.reduction {
        for col in (0..cols).step_by(I::LANES) {
            let count = I::LANES.min(cols - col);
            let from = start.wrapping_add(r * rhs.row_stride + (first + col) * rhs.col_stride);
            let to = to.wrapping_add(r * stride + col);
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

/// Computes `R` rows of the output through `cols` columns.
///
/// # Safety
/// The rows and columns from `(row, col)` lie inside the output and belong to this thread; the held
/// rows of the second operand have whole vectors.
#[inline(always)]
unsafe fn strip<I: Isa, O: Element, const R: usize>(
    isa: I,
    product: &Product<'_>,
    (row, col): (usize, usize),
    cols: usize,
    lhs: &[[f32; ROWS]; LONGEST],
    (rhs, stride): (*const f32, usize),
) {
    let out = product.out;
    let first = out
        .start
        .cast::<O>()
        .wrapping_add(row * out.row_stride + col);
    for col in (0..cols).step_by(VECTORS * I::LANES) {
        let mut acc = [[isa.zero(); VECTORS]; R];
        for (r, lhs) in lhs.iter().enumerate().take(product.reduction) {
            let mut b = [isa.zero(); VECTORS];
            for (v, b) in b.iter_mut().enumerate() {
                // SAFETY: the caller's.
                *b = unsafe { isa.load(rhs.wrapping_add(r * stride + col + v * I::LANES)) };
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
                let count = I::LANES.min(cols.saturating_sub(col));
                let to = first.wrapping_add(i * out.row_stride + col);
                // SAFETY: the caller's; an accumulated-into output is f32.
                unsafe {
                    // A start of −0.0 reads as +0.0 (contract section 3).
                    let start = match product.start {
                        Start::Zero => isa.zero(),
                        Start::Output => {
                            isa.add(isa.load_first(to.cast::<f32>(), count), isa.zero())
                        }
                    };
                    isa.round_first(to, isa.add(start, chunk), count);
                }
            }
        }
    }
}
