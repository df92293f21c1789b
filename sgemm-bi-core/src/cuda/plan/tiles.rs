//! Which blocks of threads a product takes: a small table, the parameters that go with it, and what
//! `kernels/README.md` says of a block's threads and shared memory.

use super::access::Access;
use super::{FEW_ROWS, Gpu};
use crate::Dtype;
use crate::turn::Form;

/// How a kernel reads its operands, which decides what suits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inputs {
    pub element: Dtype,
    pub lhs: Access,
    pub rhs: Access,
}

impl Inputs {
    /// Whether both operands are loaded 16 bytes at a time.
    fn wide(self) -> bool {
        self.lhs.width > 1 && self.rhs.width > 1
    }
}

/// Compute capability from which loads go to shared memory past the registers.
const ASYNC_COPIES: u32 = 80;

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
    pub unroll: u32,
    pub resident: u32,
}

/// A size of tiles.
#[derive(Clone, Copy, Debug)]
struct Size {
    block: [u32; 2],
    thread: [u32; 2],
    /// Steps in shared memory: where they are copied past the registers, and elsewhere.
    stages: [u32; 2],
    /// Blocks on a multiprocessor: with the fewest registers in use, and otherwise.
    resident: [u32; 2],
    /// Speed, relative to the best size.
    speed: u64,
    /// Whether it has registers to spare for the addresses of single elements.
    any_strides: bool,
}

/// The sizes that plans choose from.
const SIZES: [Size; 2] = [
    // The fewest conflicts of register banks.
    Size {
        block: [96, 128],
        thread: [12, 8],
        stages: [3, 2],
        resident: [3, 2],
        speed: 100,
        any_strides: false,
    },
    // For few tiles, and any strides.
    Size {
        block: [64, 64],
        thread: [8, 4],
        stages: [4, 2],
        resident: [4, 4],
        speed: 75,
        any_strides: true,
    },
];

impl Size {
    fn tile(self, inputs: Inputs, gpu: Gpu) -> Tile {
        let copies = inputs.element == Dtype::F32 && gpu.arch >= ASYNC_COPIES;
        // A left operand contiguous along the reduction holds more of the right one.
        let orders = (inputs.lhs.order, inputs.rhs.order);
        let bk = 16;
        Tile {
            bm: self.block[0],
            bn: self.block[1],
            tm: self.thread[0],
            tn: self.thread[1],
            bk,
            stages: self.stages[usize::from(!copies)],
            unroll: if orders == (0, 0) { bk / 4 } else { 1 },
            resident: self.resident[usize::from(!copies || orders == (0, 1))],
        }
    }

    /// About how long a product takes: the busiest multiprocessor's elements, at the size's speed.
    fn time(self, form: &Form, parts: u64, gpu: Gpu) -> u64 {
        let [bm, bn] = self.block;
        let tiles = count(form.rows, form.cols, self.block).saturating_mul(parts);
        let busiest = tiles.div_ceil(u64::from(gpu.multiprocessors.max(1)));
        busiest.saturating_mul(u64::from(bm * bn) * 1000) / self.speed
    }
}

/// The tile that should take the least time. `parts` are the batch's entries, times the chunks.
pub(super) fn choose(form: &Form, parts: u64, inputs: Inputs, gpu: Gpu) -> Tile {
    let suits = |size: &&Size| size.any_strides || inputs.wide();
    let sizes = SIZES.iter().filter(suits);
    let best = sizes.min_by_key(|size| size.time(form, parts, gpu));
    best.unwrap_or(&SIZES[1]).tile(inputs, gpu)
}

/// Tiles of one matrix.
fn count(rows: usize, cols: usize, [bm, bn]: [u32; 2]) -> u64 {
    let (down, across) = (rows.div_ceil(bm as usize), cols.div_ceil(bn as usize));
    (down as u64).saturating_mul(across as u64)
}

impl Tile {
    /// Blocks for one matrix.
    pub fn count(self, rows: usize, cols: usize) -> u64 {
        count(rows, cols, [self.bm, self.bn])
    }

    /// Threads of a block.
    pub fn threads(self) -> u32 {
        self.bm / self.tm * (self.bn / self.tn)
    }

    /// Bytes of dynamic shared memory: tiles are widened to f32 on their way in.
    pub fn shared(self) -> u32 {
        self.stages * (self.bm + self.bn) * self.bk * 4
    }

    pub fn defines(self) -> [(&'static str, u32); 8] {
        [
            ("BM", self.bm),
            ("BN", self.bn),
            ("TM", self.tm),
            ("TN", self.tn),
            ("BK", self.bk),
            ("STAGES", self.stages),
            ("UNROLL", self.unroll),
            ("RESIDENT", self.resident),
        ]
    }
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
    /// The parameters for at most [`FEW_ROWS`] rows. Tens of KiB are on their way where loads go
    /// past the registers; elsewhere one stage is, and the rest fits the 48 KiB of every GPU.
    pub fn of(rows: usize, inputs: Inputs, gpu: Gpu) -> Self {
        let rows = rows.clamp(1, FEW_ROWS).next_power_of_two() as u32;
        FewRows {
            rows,
            cols: 32,
            bk: 256 / inputs.element.size_in_bytes() as u32,
            stages: match (inputs.rhs.width, inputs.element) {
                (2.., _) if gpu.arch >= ASYNC_COPIES => 8,
                (_, Dtype::F32) => 4,
                _ => 3,
            },
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
