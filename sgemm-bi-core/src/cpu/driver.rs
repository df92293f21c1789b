//! Blocking and threads: cuts a product into blocks that fit the caches, packs them, and runs the
//! micro-kernel over their tiles.

use std::ops::Range;

use half::{bf16, f16};

use super::finish::{ChunkPlace, Tile, finish};
use super::isa::{Isa, Strided, prefetch};
use super::kernel::{Chain, DEPTH, LEFT_ROW, LeftOrder, Step, advance};
use super::pack::{Block, Panels, copy_lines, pack, panel_stride};
use super::product::{Axis, Matrix, Product};
use super::scratch::{Buffers, Pool, Sizes, scratch_bytes};
use super::team::{Member, Team};
use crate::Dtype;
use crate::contract::CHUNK;

/// Rows of an output block: the second operand is packed once for so many.
const ROW_BLOCK: usize = 2048;

/// Columns of an output block: the first operand is packed once for so many. With a block of the
/// reduction they fill half of a usual L2.
const COL_BLOCK: usize = 512;

/// Left panels that a task packs at a time where rows are contiguous: few enough to stay in L2
/// beside the right panels, enough for packing to read whole cache lines. Where columns are
/// contiguous it packs one, which stays in L1.
const GROUP: usize = 8;

/// Values of the largest micro-tile.
const TILE_VALUES: usize = 1024;

/// Sizes that follow from the SIMD level.
struct Tiling<I>(std::marker::PhantomData<I>);

impl<I: Isa> Tiling<I> {
    const ROWS: usize = I::TILE_ROWS;
    const COLS: usize = I::TILE_VECTORS * I::LANES;
    /// Values from a left panel to the next.
    const fn left_stride(order: LeftOrder, depth: usize) -> usize {
        match order {
            LeftOrder::Columns => panel_stride(Self::ROWS, depth),
            LeftOrder::Rows => Self::ROWS * LEFT_ROW,
        }
    }

    const VALUES: usize = {
        assert!(Self::ROWS * Self::COLS <= TILE_VALUES);
        Self::ROWS * Self::COLS
    };
}

/// The most bytes that a product takes of one scratch, whatever its sizes.
pub(super) const fn scratch_limit<I: Isa>() -> usize {
    let rows = ROW_BLOCK.div_ceil(Tiling::<I>::ROWS);
    let cols = COL_BLOCK.div_ceil(Tiling::<I>::COLS);
    let columns = 2 * GROUP * Tiling::<I>::left_stride(LeftOrder::Columns, DEPTH);
    let row = 2 * Tiling::<I>::left_stride(LeftOrder::Rows, DEPTH);
    let left = if columns > row { columns } else { row };
    let right = cols * panel_stride(Tiling::<I>::COLS, DEPTH);
    let tiles = rows * cols * Tiling::<I>::VALUES;
    scratch_bytes(Sizes {
        left,
        right,
        partial: tiles,
        totals: tiles,
    })
}

/// A block of the output through a block of the reduction.
struct Stage<'a, I> {
    isa: I,
    product: &'a Product<'a>,
    rows: Range<usize>,
    cols: Range<usize>,
    depth: Range<usize>,
    place: StagePlace,
    buffers: Buffers,
    pool: &'a Pool,
}

/// Where a block of the reduction stands.
#[derive(Clone, Copy)]
struct StagePlace {
    first_of_chunk: bool,
    last_of_chunk: bool,
    first_chunk: bool,
    last_chunk: bool,
}

// SAFETY: threads pack disjoint panels and advance disjoint tiles, one phase after the other.
unsafe impl<I: Isa> Sync for Stage<'_, I> {}

/// Computes a product.
pub(super) fn gemm<I: Isa>(isa: I, product: &Product<'_>, team: Team<'_>, pool: &Pool) {
    let chunks = product.reduction.div_ceil(CHUNK).max(1);
    let rows = product.rows.min(ROW_BLOCK).div_ceil(Tiling::<I>::ROWS);
    let cols = product.cols.min(COL_BLOCK).div_ceil(Tiling::<I>::COLS);
    let depth = product.reduction.min(DEPTH);
    let tiles = rows * cols * Tiling::<I>::VALUES;
    let narrow_totals = chunks > 1 && product.out.dtype != Dtype::F32;
    let sizes = Sizes {
        left: 0,
        right: cols * panel_stride(Tiling::<I>::COLS, depth),
        partial: if product.reduction > DEPTH { tiles } else { 0 },
        totals: if narrow_totals { tiles } else { 0 },
    };
    pool.with(|scratch| {
        let buffers = scratch.reserve(sizes);
        team.run(|member| {
            for cols in blocks(product.cols, COL_BLOCK) {
                for rows in blocks(product.rows, ROW_BLOCK) {
                    for (depth, place) in depth_blocks(product.reduction, I::LANES) {
                        let (cols, rows) = (cols.clone(), rows.clone());
                        Stage {
                            isa,
                            product,
                            rows,
                            cols,
                            depth,
                            place,
                            buffers,
                            pool,
                        }
                        .run(team.threads(), member);
                    }
                }
            }
        });
    });
}

/// Cuts a reduction into chunks, and chunks into blocks of about one length: a short last one
/// would pay a tile's loads and stores for little work. An empty reduction is one empty chunk,
/// whose sum, +0.0, changes no total.
fn depth_blocks(
    reduction: usize,
    lanes: usize,
) -> impl Iterator<Item = (Range<usize>, StagePlace)> {
    let chunks = reduction.div_ceil(CHUNK).max(1);
    (0..chunks).flat_map(move |chunk| {
        let first = chunk * CHUNK;
        let len = CHUNK.min(reduction - first);
        let count = len.div_ceil(DEPTH).max(1);
        let step = len.div_ceil(count).next_multiple_of(lanes);
        let count = len.div_ceil(step.max(1)).max(1);
        (0..count).map(move |block| {
            let depth = first + block * step..first + len.min((block + 1) * step);
            let place = StagePlace {
                first_of_chunk: block == 0,
                last_of_chunk: block + 1 == count,
                first_chunk: chunk == 0,
                last_chunk: chunk + 1 == chunks,
            };
            (depth, place)
        })
    })
}

/// Cuts `0..len` into ranges of at most `step`.
fn blocks(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len)
        .step_by(step)
        .map(move |first| first..len.min(first + step))
}

impl<I: Isa> Stage<'_, I> {
    /// One thread's share: right panels first, and tiles when all are packed.
    fn run(&self, threads: usize, member: &mut Member<'_>) {
        let row_panels = self.rows.len().div_ceil(Tiling::<I>::ROWS);
        let col_panels = self.cols.len().div_ceil(Tiling::<I>::COLS);
        let right_stride = panel_stride(Tiling::<I>::COLS, self.depth.len());

        // The right panels, for all threads: a task packs a run of neighbours.
        let tasks = if threads == 1 { 1 } else { 4 * threads };
        let tasks = tasks.min(col_panels);
        member.phase(tasks, |task| {
            let run = share(task, tasks, col_panels);
            let to = self.buffers.right.wrapping_add(run.start * right_stride);
            self.pack(Axis::Cols, run, self.depth.clone(), to);
        });

        // Tiles: a task takes a run of left panels along a run of right panels. The left panel is
        // in L1, the right panels come from L2.
        let tasks = if threads == 1 { 1 } else { 8 * threads };
        let row_tasks = tasks.min(row_panels);
        let col_tasks = tasks.div_ceil(row_tasks).min(col_panels);
        member.phase(row_tasks * col_tasks, |task| {
            let cols = share(task % col_tasks, col_tasks, col_panels);
            let rows = share(task / col_tasks, row_tasks, row_panels);
            self.tiles(rows, cols);
        });
    }

    /// Computes the tiles of a run of left panels and a run of right panels. Left panels are
    /// packed a group at a time; between tiles a share of the next group is, so that nobody waits
    /// for its memory.
    fn tiles(&self, rows: Range<usize>, cols: Range<usize>) {
        let depth = self.depth.len();
        let group = match self.left_order() {
            LeftOrder::Rows => 1,
            LeftOrder::Columns => rows.len().min(GROUP),
        };
        let left_stride = Tiling::<I>::left_stride(self.left_order(), depth);
        let least_share = match self.left_order() {
            LeftOrder::Rows => I::LANES,
            LeftOrder::Columns => 1,
        };
        let sizes = Sizes {
            left: 2 * group * left_stride,
            ..Sizes::default()
        };
        self.pool.with(|scratch| {
            let mut current = scratch.reserve(sizes).left;
            let mut next = current.wrapping_add(group * left_stride);
            let groups = blocks(rows.len(), group);
            let groups = groups.map(|run| rows.start + run.start..rows.start + run.end);
            let first = rows.start..rows.end.min(rows.start + group);
            self.pack(Axis::Rows, first, self.depth.clone(), current);
            for panels in groups {
                let after = panels.end..rows.end.min(panels.end + group);
                let share = depth
                    .div_ceil(panels.len() * cols.len())
                    .next_multiple_of(least_share);
                let mut shares = blocks(if after.is_empty() { 0 } else { depth }, share);
                for (panel, row_panel) in panels.enumerate() {
                    let left = current.wrapping_add(panel * left_stride);
                    for col_panel in cols.clone() {
                        self.tile(left, row_panel, col_panel);
                        if let Some(share) = shares.next() {
                            let start = self.depth.start;
                            let share = start + share.start..start + share.end;
                            self.pack(Axis::Rows, after.clone(), share, next);
                        }
                    }
                }
                std::mem::swap(&mut current, &mut next);
            }
        });
    }

    /// Packs a part of the depth of a run of one operand's panels; `to` is where the run begins.
    fn pack(&self, axis: Axis, run: Range<usize>, depth: Range<usize>, to: *mut f32) {
        let (matrix, lines, width) = match axis {
            Axis::Rows => {
                let lhs = self.product.lhs;
                (lhs, &self.rows, Tiling::<I>::ROWS)
            }
            Axis::Cols => {
                let rhs = self.product.rhs;
                let by_columns = Matrix {
                    row_stride: rhs.col_stride,
                    col_stride: rhs.row_stride,
                    ..rhs
                };
                (by_columns, &self.cols, Tiling::<I>::COLS)
            }
        };
        let first = lines.start + run.start * width;
        let lines = lines.end.min(lines.start + run.end * width) - first;
        let stride = panel_stride(width, self.depth.len());
        let panels = Panels {
            start: to,
            width,
            stride,
        };
        let offset = first * matrix.row_stride + depth.start * matrix.col_stride;
        let packed = depth.start - self.depth.start;
        macro_rules! pack_as {
            ($element:ty) => {{
                let block = Block::<$element> {
                    start: matrix.start.cast::<$element>().wrapping_add(offset),
                    line_stride: matrix.row_stride,
                    depth_stride: matrix.col_stride,
                    lines,
                    depth: depth.len(),
                };
                // SAFETY: lines and depth lie inside the operand (the invariant of `Product`);
                // `to` has room for the panels; the tile's sizes fit `pack`, for they are the
                // level's.
                unsafe {
                    if axis == Axis::Rows && self.left_order() == LeftOrder::Rows {
                        let to = Strided {
                            start: to.wrapping_add(packed),
                            stride: LEFT_ROW,
                        };
                        copy_lines(self.isa, block, to);
                    } else {
                        let start = to.wrapping_add(packed * width);
                        pack(self.isa, block, Panels { start, ..panels });
                    }
                }
            }};
        }
        match matrix.dtype {
            Dtype::F32 => pack_as!(f32),
            Dtype::BF16 => pack_as!(bf16),
            Dtype::F16 => pack_as!(f16),
        }
    }

    /// Advances one micro-tile, and finishes it where the chunk ends.
    fn tile(&self, left: *const f32, row_panel: usize, col_panel: usize) {
        let row = self.rows.start + row_panel * Tiling::<I>::ROWS;
        let col = self.cols.start + col_panel * Tiling::<I>::COLS;
        let rows = Tiling::<I>::ROWS.min(self.rows.end - row);
        let cols = Tiling::<I>::COLS.min(self.cols.end - col);
        let depth = self.depth.len();
        let StagePlace {
            first_of_chunk,
            last_of_chunk,
            ..
        } = self.place;

        #[repr(align(64))]
        struct OnStack(std::mem::MaybeUninit<[f32; TILE_VALUES]>);
        let mut on_stack = OnStack(std::mem::MaybeUninit::uninit());
        let partial = if first_of_chunk && last_of_chunk {
            on_stack.0.as_mut_ptr().cast()
        } else {
            self.kept(self.buffers.partial, row_panel, col_panel)
        };
        let right = panel_stride(Tiling::<I>::COLS, depth) * col_panel;
        let step = Step {
            left,
            left_order: self.left_order(),
            right: self.buffers.right.wrapping_add(right),
            depth,
            partial,
            chain: if first_of_chunk {
                Chain::Begin
            } else {
                Chain::Continue
            },
            rows,
            vectors: cols.div_ceil(I::LANES),
        };
        if last_of_chunk {
            self.prefetch_output((row, col), (rows, cols));
        }
        // SAFETY: `pack` filled both panels for this block of the reduction; the partial tile has
        // TILE_VALUES values or is one of those that `gemm` reserved, and no other thread has it.
        unsafe { advance(self.isa, &step) };
        if last_of_chunk {
            self.finish(partial, (row, col), (rows, cols), (row_panel, col_panel));
        }
    }

    /// How left panels hold their rows.
    fn left_order(&self) -> LeftOrder {
        match self.product.lhs.col_stride {
            1 => LeftOrder::Rows,
            _ => LeftOrder::Columns,
        }
    }

    /// Asks for a tile of the output that is written soon, where its rows are contiguous.
    #[inline(always)]
    fn prefetch_output(&self, (row, col): (usize, usize), (rows, cols): (usize, usize)) {
        let out = self.product.out;
        if out.col_stride == 1 {
            let size = out.dtype.size_in_bytes();
            for row in row..row + rows {
                let start = (row * out.row_stride + col) * size;
                for byte in (0..cols * size).step_by(64) {
                    prefetch(out.start.wrapping_byte_add(start + byte));
                }
            }
        }
    }

    /// The tile of a buffer that keeps one for every tile of the output block.
    fn kept(&self, buffer: *mut f32, row_panel: usize, col_panel: usize) -> *mut f32 {
        let col_panels = self.cols.len().div_ceil(Tiling::<I>::COLS);
        buffer.wrapping_add((row_panel * col_panels + col_panel) * Tiling::<I>::VALUES)
    }

    /// Adds a complete chunk to the total, and stores the result after the last.
    fn finish(
        &self,
        chunk: *const f32,
        at: (usize, usize),
        sizes: (usize, usize),
        (row_panel, col_panel): (usize, usize),
    ) {
        let tile = Tile {
            chunk,
            totals: self.kept(self.buffers.totals, row_panel, col_panel),
            at,
            sizes,
            place: ChunkPlace {
                first: self.place.first_chunk,
                last: self.place.last_chunk,
            },
        };
        // SAFETY: `advance` filled the chunk; the tile lies inside the output, no other thread has
        // it, and `gemm` reserved the totals where there are any.
        unsafe { finish(self.isa, self.product, &tile) }
    }
}

/// The `index`-th of `shares` shares of `count` panels, as even as can be.
fn share(index: usize, shares: usize, count: usize) -> Range<usize> {
    index * count / shares..(index + 1) * count / shares
}
