//! The micro-kernel: one tile of the output through one block of the reduction, in registers.

use super::isa::{Isa, prefetch};

/// What a micro-tile's chains start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chain {
    /// +0.0: the block begins a chunk.
    Begin,
    /// The values in the partial tile: the block continues a chunk.
    Continue,
}

/// How a left panel holds its `TILE_ROWS` rows: as the operand does, so that packing copies. The
/// kernel broadcasts single values, and takes either order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOrder {
    /// Columns of `TILE_ROWS` values, one after the other.
    Columns,
    /// Rows, [`LEFT_ROW`] values apart.
    Rows,
}

/// Elements of the reduction in one block, at most: a left panel of so many fits L1 beside what
/// streams past it.
pub(super) const DEPTH: usize = 512;

/// Values from a row of a left panel to the next; a cache line more than a row has, so that rows
/// do not share cache sets.
pub(super) const LEFT_ROW: usize = DEPTH + 16;

/// Elements of the reduction by which the right panel, which streams from L2, is asked for before it
/// is used.
const RIGHT_AHEAD: usize = 16;

/// Values in a cache line.
const LINE: usize = 16;

/// One call of the micro-kernel.
///
/// The left panel is in the order that it says, the right panel holds `depth` rows of
/// `TILE_VECTORS` vectors, and the partial tile `TILE_ROWS` rows of `TILE_VECTORS` vectors, both
/// contiguous. The kernel uses the first `rows` and `vectors` of them.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub left: *const f32,
    pub left_order: LeftOrder,
    pub right: *const f32,
    pub depth: usize,
    pub partial: *mut f32,
    pub chain: Chain,
    pub rows: usize,
    pub vectors: usize,
}

/// Advances the chains of a micro-tile by one block of the reduction (contract section 4).
///
/// # Safety
/// The panels are valid for reading and the partial tile for writing, as [`Step`] lays them out;
/// the partial tile was written before when the chain continues. `1 ≤ rows ≤ TILE_ROWS`,
/// `1 ≤ vectors ≤ TILE_VECTORS`.
#[inline(always)]
pub(super) unsafe fn advance<I: Isa>(isa: I, step: &Step) {
    // SAFETY: the caller's.
    unsafe {
        match (step.vectors, step.left_order) {
            (1, LeftOrder::Columns) => by_rows::<I, Columns, 1>(isa, step),
            (1, LeftOrder::Rows) => by_rows::<I, Rows, 1>(isa, step),
            (_, LeftOrder::Columns) => by_rows::<I, Columns, 2>(isa, step),
            (_, LeftOrder::Rows) => by_rows::<I, Rows, 2>(isa, step),
        }
    }
}

/// A [`LeftOrder`] as a type.
trait Order {
    /// Values from a row to the next, in panels of `tile_rows` rows.
    fn row_step(tile_rows: usize) -> usize;
    /// Values from a column to the next.
    fn depth_step(tile_rows: usize) -> usize;
}

struct Columns;

impl Order for Columns {
    #[inline(always)]
    fn row_step(_: usize) -> usize {
        1
    }
    #[inline(always)]
    fn depth_step(tile_rows: usize) -> usize {
        tile_rows
    }
}

struct Rows;

impl Order for Rows {
    #[inline(always)]
    fn row_step(_: usize) -> usize {
        LEFT_ROW
    }
    #[inline(always)]
    fn depth_step(_: usize) -> usize {
        1
    }
}

/// # Safety
/// That of [`advance`].
#[inline(always)]
unsafe fn by_rows<I: Isa, O: Order, const VECTORS: usize>(isa: I, step: &Step) {
    macro_rules! choose {
        ($($rows:literal)*) => {
            match step.rows {
                // SAFETY: the caller's.
                $($rows => unsafe {
                    if $rows <= I::TILE_ROWS && VECTORS <= I::TILE_VECTORS {
                        let Step { left, right, depth, partial, chain, .. } = *step;
                        tile::<I, O, $rows, VECTORS>(isa, left, right, depth, partial, chain)
                    }
                },)*
                _ => unreachable!("a tile has at most TILE_ROWS rows"),
            }
        };
    }
    choose!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
}

/// The operands come in registers: reading a [`Step`] that was just written would wait for the
/// stores of the tile before.
///
/// # Safety
/// That of [`advance`].
#[inline(never)]
unsafe fn tile<I: Isa, O: Order, const ROWS: usize, const VECTORS: usize>(
    isa: I,
    mut left: *const f32,
    mut right: *const f32,
    depth: usize,
    partial: *mut f32,
    chain: Chain,
) {
    isa.vectorize(
        #[inline(always)]
        move || {
            let width = I::TILE_VECTORS * I::LANES;
            let mut acc = [[isa.zero(); VECTORS]; ROWS];
            if chain == Chain::Continue {
                for (i, row) in acc.iter_mut().enumerate() {
                    for (j, value) in row.iter_mut().enumerate() {
                        // SAFETY: inside the partial tile.
                        *value = unsafe { isa.load(partial.add(i * width + j * I::LANES)) };
                    }
                }
            }
            // The next tile's chains are asked for little by little: in one burst they would hold
            // up the right panel's stream.
            let lines = (ROWS * VECTORS * I::LANES).div_ceil(LINE);
            let slot = depth / lines;
            let next = partial.wrapping_add(I::TILE_ROWS * width);
            for i in 0..=lines {
                let mut steps = slot;
                if i < lines {
                    prefetch(next.wrapping_add(i * LINE));
                } else {
                    steps = depth - lines * slot;
                }
                for _ in 0..steps {
                    let mut b = [isa.zero(); VECTORS];
                    for (j, b) in b.iter_mut().enumerate() {
                        // SAFETY: inside the right panel.
                        *b = unsafe { isa.load(right.wrapping_add(j * I::LANES)) };
                    }
                    for j in 0..VECTORS * I::LANES / LINE {
                        prefetch(right.wrapping_add(RIGHT_AHEAD * width + j * LINE));
                    }
                    for (i, row) in acc.iter_mut().enumerate() {
                        // SAFETY: inside the left panel.
                        let a = unsafe { left.wrapping_add(i * O::row_step(I::TILE_ROWS)).read() };
                        let a = isa.splat(a);
                        for (value, b) in row.iter_mut().zip(b) {
                            *value = isa.mul_add(a, b, *value);
                        }
                    }
                    left = left.wrapping_add(O::depth_step(I::TILE_ROWS));
                    right = right.wrapping_add(width);
                }
            }
            // By reference: an array's own iterator would keep it in memory.
            for (i, row) in acc.iter().enumerate() {
                for (j, &value) in row.iter().enumerate() {
                    // SAFETY: inside the partial tile.
                    unsafe { isa.store(partial.add(i * width + j * I::LANES), value) };
                }
            }
        },
    );
}
