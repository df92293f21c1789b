//! Which blocks of threads a product takes: two small tables, and what `kernels/README.md` says of
//! a block's threads and shared memory.

use super::{FEW_ROWS, Gpu};
use crate::Dtype;
use crate::turn::Form;

/// The parameters of `tile.cu`: a block of threads computes `bm` × `bn` elements of the output,
/// each thread `tm` × `tn` of them, in steps of `bk` elements of the reduction; `stages` steps are
/// in shared memory at a time, and `resident` blocks on a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    pub bm: u32,
    pub bn: u32,
    pub tm: u32,
    pub tn: u32,
    pub bk: u32,
    pub stages: u32,
    pub resident: u32,
}

const fn tile(block: [u32; 2], thread: [u32; 2], bk: u32, stages: u32, resident: u32) -> Tile {
    Tile {
        bm: block[0],
        bn: block[1],
        tm: thread[0],
        tn: thread[1],
        bk,
        stages,
        resident,
    }
}

/// The general tile: the fewest conflicts of register banks.
const GENERAL: Tile = tile([96, 128], [12, 8], 16, 3, 3);
/// Best where both inputs are contiguous along their lines, as in a weight gradient.
const LINES: Tile = tile([128, 128], [16, 8], 8, 6, 2);
/// For outputs of few tiles.
const SMALL: Tile = tile([64, 64], [8, 4], 16, 3, 4);

/// Every tile, with its speed relative to the best one: where the reduction is contiguous in an
/// input, and where it is in neither.
const TILES: [(Tile, [u64; 2]); 3] = [(GENERAL, [100, 98]), (LINES, [97, 100]), (SMALL, [75, 75])];

impl Tile {
    /// Every tile that a plan may choose.
    #[cfg(test)]
    pub fn all() -> impl Iterator<Item = Tile> {
        TILES.into_iter().map(|(tile, _)| tile)
    }

    /// Tiles of one matrix.
    pub fn count(self, rows: usize, cols: usize) -> u64 {
        let (down, across) = (
            rows.div_ceil(self.bm as usize),
            cols.div_ceil(self.bn as usize),
        );
        (down as u64).saturating_mul(across as u64)
    }

    /// Threads of a block.
    pub fn threads(self) -> u32 {
        self.bm / self.tm * (self.bn / self.tn)
    }

    /// Bytes of dynamic shared memory: tiles are widened to f32 on their way in.
    pub fn shared(self) -> u32 {
        self.stages * (self.bm + self.bn) * self.bk * 4
    }

    pub fn defines(self) -> [(&'static str, u32); 7] {
        [
            ("BM", self.bm),
            ("BN", self.bn),
            ("TM", self.tm),
            ("TN", self.tn),
            ("BK", self.bk),
            ("STAGES", self.stages),
            ("RESIDENT", self.resident),
        ]
    }
}

/// The tile that should take the least time: the busiest multiprocessor's elements over the tile's
/// speed. `parts` are the batch's entries, times the chunks where those run side by side.
pub(super) fn choose(form: &Form, parts: u64, along_lines: bool, gpu: Gpu) -> Tile {
    let time = |(tile, speed): &(Tile, [u64; 2])| {
        let tiles = tile.count(form.rows, form.cols).saturating_mul(parts);
        let busiest = tiles.div_ceil(u64::from(gpu.multiprocessors.max(1)));
        let elements = u64::from(tile.bm * tile.bn);
        busiest.saturating_mul(elements * 1000) / speed[usize::from(along_lines)]
    };
    TILES
        .iter()
        .min_by_key(|entry| time(entry))
        .map_or(GENERAL, |entry| entry.0)
}

/// The parameters of `few_rows.cu`: a block computes `rows` × `cols` elements of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FewRows {
    pub rows: u32,
    pub cols: u32,
    pub bk: u32,
    pub stages: u32,
}

impl FewRows {
    /// The parameters for at most [`FEW_ROWS`] rows: what is on its way fills 48 KiB, the shared
    /// memory that every GPU has.
    pub fn of(rows: usize, element: Dtype) -> Self {
        let rows = rows.clamp(1, FEW_ROWS).next_power_of_two() as u32;
        FewRows {
            rows,
            cols: 32,
            bk: 256 / element.size_in_bytes() as u32,
            stages: 4,
        }
    }

    /// Blocks for one matrix.
    pub fn count(self, cols: usize) -> u64 {
        cols.div_ceil(self.cols as usize) as u64
    }

    /// Threads of a block: four warps share 32 columns.
    pub fn threads(self) -> u32 {
        4 * self.cols
    }

    /// Bytes of dynamic shared memory.
    pub fn shared(self, ones: bool, element: Dtype) -> u32 {
        let lhs = if ones { 0 } else { self.rows };
        self.stages * (lhs + self.cols) * self.bk * element.size_in_bytes() as u32
    }

    pub fn defines(self) -> [(&'static str, u32); 4] {
        [
            ("ROWS", self.rows),
            ("COLS", self.cols),
            ("BK", self.bk),
            ("STAGES", self.stages),
        ]
    }
}

/// Blocks of threads that keep a GPU busy to the end: with fewer, chunks run side by side.
pub(super) fn enough_blocks(gpu: Gpu) -> u64 {
    4 * u64::from(gpu.multiprocessors)
}
