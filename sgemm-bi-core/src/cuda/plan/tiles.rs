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

/// A size of tiles: how much of the output a block of threads computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// 96 × 128: the fewest conflicts of register banks.
    Large,
    /// 64 × 64: for few tiles, and with registers to spare for the addresses of single elements.
    Small,
}

impl Size {
    /// Elements of the output of a block, and of a thread.
    const fn shape(self) -> ([u32; 2], [u32; 2]) {
        match self {
            Size::Large => ([96, 128], [12, 8]),
            Size::Small => ([64, 64], [8, 4]),
        }
    }

    /// Tiles of one matrix.
    pub fn count(self, rows: usize, cols: usize) -> u64 {
        let ([bm, bn], _) = self.shape();
        let (down, across) = (rows.div_ceil(bm as usize), cols.div_ceil(bn as usize));
        (down as u64).saturating_mul(across as u64)
    }

    /// About how long a product takes: the busiest multiprocessor's elements, at the size's speed.
    fn time(self, form: &Form, parts: u64, gpu: Gpu) -> u64 {
        let ([bm, bn], _) = self.shape();
        let speed = match self {
            Size::Large => 100,
            Size::Small => 75,
        };
        let tiles = self.count(form.rows, form.cols).saturating_mul(parts);
        let busiest = tiles.div_ceil(u64::from(gpu.multiprocessors.max(1)));
        busiest.saturating_mul(u64::from(bm * bn) * 1000) / speed
    }

    /// The size that should take the least time. `parts` are the batch's entries, times the chunks.
    pub fn choose(form: &Form, parts: u64, inputs: Inputs, gpu: Gpu) -> Self {
        let time = |size: Size| size.time(form, parts, gpu);
        match inputs.wide() && time(Size::Large) <= time(Size::Small) {
            true => Size::Large,
            false => Size::Small,
        }
    }

    /// All parameters: those for which the compiler's registers suffice (`kernels/instances.txt`).
    pub fn tile(self, inputs: Inputs, split: bool, gpu: Gpu) -> Tile {
        let orders = (inputs.lhs.order, inputs.rhs.order);
        let (bk, stages, resident) = match (self, inputs.element, gpu.arch) {
            // 16-bit operands are widened on their way through registers.
            (Size::Large, Dtype::BF16 | Dtype::F16, _) => (16, 2, 2),
            (Size::Small, Dtype::BF16 | Dtype::F16, _) => (16, 2, 4),
            (_, Dtype::F32, ..ASYNC_COPIES) => (16, 2, 2),
            (Size::Small, Dtype::F32, _) => (16, 4, 4),
            // Shared memory for three blocks of 56 KiB.
            (Size::Large, Dtype::F32, 90..120) => match (orders, split) {
                ((1, 0), true) => (32, 2, 2),
                ((1, _), _) => (32, 2, 3),
                ((_, 0), _) => (16, 3, 3),
                _ => (16, 3, 2),
            },
            (Size::Large, Dtype::F32, _) => (16, 3, 2),
        };
        let ([bm, bn], [tm, tn]) = self.shape();
        Tile {
            bm,
            bn,
            tm,
            tn,
            bk,
            stages,
            // A left operand contiguous along the reduction holds more of the right one.
            unroll: if orders == (0, 0) { bk / 4 } else { 1 },
            resident,
        }
    }
}

impl Tile {
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
    /// past the registers; elsewhere one stage is.
    pub fn of(rows: usize, inputs: Inputs, gpu: Gpu) -> Self {
        let rows = rows.clamp(1, FEW_ROWS).next_power_of_two() as u32;
        FewRows {
            rows,
            cols: 32,
            bk: 256 / inputs.element.size_in_bytes() as u32,
            stages: match (gpu.arch, inputs.rhs.width, inputs.element) {
                (..ASYNC_COPIES, _, _) => 2,
                (_, 2.., _) => 8,
                (_, _, Dtype::F32) => 4,
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
