//! Blocking and threads: cuts a product into blocks that fit the caches, packs them, and runs the
//! micro-kernel over their tiles.

use std::ops::Range;

use half::{bf16, f16};
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

use super::finish::{Finished, Place, finish};
use super::float_env::with_default_float_env;
use super::isa::Isa;
use super::kernel::{Chain, Step, advance};
use super::pack::{Block, Panels, pack, panel_stride};
use super::product::{Axis, Matrix, Product, Start};
use super::scratch::{Buffers, Scratch, Sizes};
use crate::Dtype;
use crate::contract::CHUNK;

/// Rows and columns of an output block: what is packed of one operand is used for so many lines
/// of the other.
const BLOCK: usize = 2048;

/// Bytes of a right panel: it stays in L1 beside a left panel on its way through.
const RIGHT_PANEL_BYTES: usize = 32 << 10;

/// Bytes of the left panels that a task goes through for each right panel: they stay in L2.
const LEFT_GROUP_BYTES: usize = 1 << 20;

/// Values of the largest micro-tile.
const TILE_VALUES: usize = 1024;

/// Calls `task` with every index below `tasks`, on the pool's threads if there are several, each
/// call in the floating-point environment of the contract.
pub(super) fn for_each(threads: usize, tasks: usize, task: impl Fn(usize) + Send + Sync) {
    let task = |index| with_default_float_env(|| task(index));
    if threads == 1 || tasks <= 1 {
        (0..tasks).for_each(task);
    } else {
        let tasks = (0..tasks).into_par_iter();
        tasks.with_max_len(1).for_each(task);
    }
}

/// Sizes that follow from the SIMD level.
struct Tiling<I>(std::marker::PhantomData<I>);

impl<I: Isa> Tiling<I> {
    const ROWS: usize = I::TILE_ROWS;
    const COLS: usize = I::TILE_VECTORS * I::LANES;
    const VALUES: usize = {
        assert!(Self::ROWS * Self::COLS <= TILE_VALUES);
        Self::ROWS * Self::COLS
    };
    /// Elements of the reduction in one block.
    const DEPTH: usize = {
        let depth = RIGHT_PANEL_BYTES / 4 / Self::COLS;
        if depth < 512 { depth } else { 512 }
    };
}

/// The most working memory in bytes that one product takes, whatever its sizes.
pub(super) const fn scratch_limit<I: Isa>() -> usize {
    let rows = BLOCK.div_ceil(Tiling::<I>::ROWS);
    let cols = BLOCK.div_ceil(Tiling::<I>::COLS);
    let depth = Tiling::<I>::DEPTH;
    let left = rows * panel_stride(Tiling::<I>::ROWS, depth);
    let right = cols * panel_stride(Tiling::<I>::COLS, depth);
    let tiles = rows * cols * Tiling::<I>::VALUES;
    4 * (left + right + 2 * tiles)
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

/// Computes a product on `threads` threads of the current pool.
pub(super) fn gemm<I: Isa>(isa: I, product: &Product<'_>, threads: usize, scratch: &mut Scratch) {
    let chunks = product.reduction.div_ceil(CHUNK).max(1);
    let rows = product.rows.min(BLOCK).div_ceil(Tiling::<I>::ROWS);
    let cols = product.cols.min(BLOCK).div_ceil(Tiling::<I>::COLS);
    let depth = product.reduction.min(Tiling::<I>::DEPTH);
    let tiles = rows * cols * Tiling::<I>::VALUES;
    let spans_blocks = product.reduction > Tiling::<I>::DEPTH;
    let narrow_totals = chunks > 1 && product.out.dtype != Dtype::F32;
    let buffers = scratch.reserve(Sizes {
        left: rows * panel_stride(Tiling::<I>::ROWS, depth),
        right: cols * panel_stride(Tiling::<I>::COLS, depth),
        partial: if spans_blocks { tiles } else { 0 },
        totals: if narrow_totals { tiles } else { 0 },
    });
    for cols in blocks(product.cols, BLOCK) {
        for rows in blocks(product.rows, BLOCK) {
            for chunk in 0..chunks {
                let first = chunk * CHUNK;
                let len = CHUNK.min(product.reduction - first);
                // Blocks of one length: a short last one would pay a tile's loads and stores for
                // little work.
                let count = len.div_ceil(Tiling::<I>::DEPTH).max(1);
                let step = len.div_ceil(count);
                for block in 0..count {
                    let begin = (block * step).min(len);
                    let end = (begin + step).min(len);
                    Stage {
                        isa,
                        product,
                        rows: rows.clone(),
                        cols: cols.clone(),
                        depth: first + begin..first + end,
                        place: StagePlace {
                            first_of_chunk: block == 0,
                            last_of_chunk: block + 1 == count,
                            first_chunk: chunk == 0,
                            last_chunk: chunk + 1 == chunks,
                        },
                        buffers,
                    }
                    .run(threads);
                }
            }
        }
    }
}

/// Cuts `0..len` into ranges of at most `step`.
fn blocks(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len)
        .step_by(step)
        .map(move |first| first..len.min(first + step))
}

impl<I: Isa> Stage<'_, I> {
    fn run(&self, threads: usize) {
        let row_panels = self.rows.len().div_ceil(Tiling::<I>::ROWS);
        let col_panels = self.cols.len().div_ceil(Tiling::<I>::COLS);

        // Packing: a task is a run of neighbouring panels.
        let runs = if threads == 1 { 1 } else { 4 * threads };
        let row_run = row_panels.div_ceil(runs);
        let col_run = col_panels.div_ceil(runs);
        let row_tasks = row_panels.div_ceil(row_run);
        let col_tasks = col_panels.div_ceil(col_run);
        for_each(threads, row_tasks + col_tasks, |task| {
            if task < row_tasks {
                self.pack(Axis::Rows, run_of(task, row_run, row_panels));
            } else {
                self.pack(Axis::Cols, run_of(task - row_tasks, col_run, col_panels));
            }
        });

        // Tiles: a task is a group of left panels by a run of right panels.
        let panel_bytes = 4 * panel_stride(Tiling::<I>::ROWS, self.depth.len());
        let group = (LEFT_GROUP_BYTES / panel_bytes).min(row_panels.div_ceil(threads));
        let groups = row_panels.div_ceil(group);
        let runs = if threads == 1 {
            1
        } else {
            (4 * threads).div_ceil(groups)
        };
        let run = col_panels.div_ceil(runs);
        let runs = col_panels.div_ceil(run);
        for_each(threads, groups * runs, |task| {
            let rows = run_of(task / runs, group, row_panels);
            let cols = run_of(task % runs, run, col_panels);
            for col_panel in cols {
                for row_panel in rows.clone() {
                    self.tile(row_panel, col_panel);
                }
            }
        });
    }

    /// Packs a run of one operand's panels.
    fn pack(&self, axis: Axis, run: Range<usize>) {
        let (matrix, lines, width, to) = match axis {
            Axis::Rows => {
                let lhs = self.product.lhs;
                (lhs, &self.rows, Tiling::<I>::ROWS, self.buffers.left)
            }
            Axis::Cols => {
                let rhs = self.product.rhs;
                let by_columns = Matrix {
                    row_stride: rhs.col_stride,
                    col_stride: rhs.row_stride,
                    ..rhs
                };
                (
                    by_columns,
                    &self.cols,
                    Tiling::<I>::COLS,
                    self.buffers.right,
                )
            }
        };
        let first = lines.start + run.start * width;
        let lines = lines.end.min(lines.start + run.end * width) - first;
        let stride = panel_stride(width, self.depth.len());
        let panels = Panels {
            start: to.wrapping_add(run.start * stride),
            width,
            stride,
        };
        let offset = first * matrix.row_stride + self.depth.start * matrix.col_stride;
        macro_rules! pack_as {
            ($element:ty) => {{
                let block = Block::<$element> {
                    start: matrix.start.cast::<$element>().wrapping_add(offset),
                    line_stride: matrix.row_stride,
                    depth_stride: matrix.col_stride,
                    lines,
                    depth: self.depth.len(),
                };
                // SAFETY: lines and depth lie inside the operand (the invariant of `Product`);
                // `gemm` reserved the panels; the tile's sizes fit `pack`, for they are the
                // level's.
                unsafe { pack(self.isa, block, panels) }
            }};
        }
        match matrix.dtype {
            Dtype::F32 => pack_as!(f32),
            Dtype::BF16 => pack_as!(bf16),
            Dtype::F16 => pack_as!(f16),
        }
    }

    /// Advances one micro-tile, and finishes it where the chunk ends.
    fn tile(&self, row_panel: usize, col_panel: usize) {
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
        let left = panel_stride(Tiling::<I>::ROWS, depth) * row_panel;
        let right = panel_stride(Tiling::<I>::COLS, depth) * col_panel;
        let step = Step {
            left: self.buffers.left.wrapping_add(left),
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
        // SAFETY: `pack` filled both panels for this block of the reduction; the partial tile has
        // TILE_VALUES values or is one of those that `gemm` reserved, and no other thread has it.
        unsafe { advance(self.isa, &step) };
        if last_of_chunk {
            self.finish(partial, (row, col), (rows, cols), (row_panel, col_panel));
        }
    }

    /// The tile of a buffer that keeps one for every tile of the output block.
    fn kept(&self, buffer: *mut f32, row_panel: usize, col_panel: usize) -> *mut f32 {
        let row_panels = self.rows.len().div_ceil(Tiling::<I>::ROWS);
        buffer.wrapping_add((col_panel * row_panels + row_panel) * Tiling::<I>::VALUES)
    }

    /// Adds a complete chunk to the total, and stores the result after the last.
    fn finish(
        &self,
        chunk: *const f32,
        (row, col): (usize, usize),
        (rows, cols): (usize, usize),
        (row_panel, col_panel): (usize, usize),
    ) {
        let product = self.product;
        let out = product.out;
        let StagePlace {
            first_chunk,
            last_chunk,
            ..
        } = self.place;
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
                start: self.kept(self.buffers.totals, row_panel, col_panel),
                row_stride: Tiling::<I>::COLS,
                col_stride: 1,
            },
        };
        let total = match (first_chunk, product.start) {
            (true, Start::Zero) => None,
            (true, Start::Output) => Some(in_output),
            (false, _) => Some(totals),
        };
        let bias = product.bias.filter(|_| last_chunk).map(|bias| {
            let first = match bias.along {
                Axis::Rows => row,
                Axis::Cols => col,
            };
            (bias, first)
        });
        let tile = Finished {
            chunk,
            rows,
            cols,
            total: total.map(Place::as_const),
            bias,
        };
        macro_rules! finish_as {
            ($element:ty) => {{
                let start = out.start.cast::<$element>().wrapping_add(at);
                let to = output.starting_at(start);
                // SAFETY: `advance` filled the chunk; the tile lies inside the output or the
                // totals that `gemm` reserved, and no other thread has it; the bias is as long as
                // its axis (the invariant of `Product`).
                unsafe { finish(self.isa, &tile, to) }
            }};
        }
        match out.dtype {
            // SAFETY: as above.
            _ if !last_chunk => unsafe { finish(self.isa, &tile, totals) },
            Dtype::F32 => finish_as!(f32),
            Dtype::BF16 => finish_as!(bf16),
            Dtype::F16 => finish_as!(f16),
        }
    }
}

/// The `index`-th run of `run` among `count` panels.
fn run_of(index: usize, run: usize, count: usize) -> Range<usize> {
    index * run..count.min((index + 1) * run)
}
