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
    pub fence: u32,
    pub resident: u32,
    /// What the operands are read with; see [`Size::width`].
    pub lhs: Access,
    pub rhs: Access,
}

/// A size of tiles: how much of the output a block of threads computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// 128 × 128 by 128 threads: most work for each element read from shared memory.
    Huge,
    /// 96 × 128 by 128 threads.
    Large,
    /// 64 × 64 by 64 threads: less is lost in the last wave.
    Medium,
    /// 64 × 64 by 128 threads: for few tiles.
    Small,
    /// 32 × 64 by 128 threads: for very few.
    Tiny,
}

impl Size {
    /// Elements of the output of a block, and of a thread.
    const fn shape(self) -> ([u32; 2], [u32; 2]) {
        match self {
            Size::Huge => ([128, 128], [16, 8]),
            Size::Large => ([96, 128], [12, 8]),
            Size::Medium => ([64, 64], [8, 8]),
            Size::Small => ([64, 64], [8, 4]),
            Size::Tiny => ([32, 64], [4, 4]),
        }
    }

    /// Percents of its full speed that a multiprocessor has with 1, 2, … blocks; with more, all.
    /// Measured, as [`Size::speed`] is (docs/performance.md).
    const fn with_few(self) -> &'static [u64] {
        match self {
            Size::Huge => &[70],
            Size::Large => &[60, 90],
            // Of 64 threads each, for four schedulers.
            Size::Medium => &[45, 80, 74, 97, 83],
            Size::Small => &[88, 95, 98],
            Size::Tiny => &[78, 92],
        }
    }

    /// The full speed, in percents of the largest tiles'. Operands are cheapest where lines are
    /// contiguous, dearest where both have to be turned.
    const fn speed(self, inputs: Inputs) -> u64 {
        let by_turned = match self {
            Size::Huge => [100, 102, 101],
            Size::Large => [102, 100, 98],
            Size::Medium => [97, 96, 90],
            Size::Small => [86, 86, 78],
            Size::Tiny => [72, 70, 66],
        };
        by_turned[(inputs.lhs.order + inputs.rhs.order) as usize]
    }

    /// Tiles of one matrix.
    pub fn count(self, rows: usize, cols: usize) -> u64 {
        let ([bm, bn], _) = self.shape();
        let (down, across) = (rows.div_ceil(bm as usize), cols.div_ceil(bn as usize));
        (down as u64).saturating_mul(across as u64)
    }

    /// About how long a product takes on the busiest multiprocessor.
    fn time(self, form: &Form, parts: u64, inputs: Inputs, gpu: Gpu) -> u64 {
        let ([bm, bn], _) = self.shape();
        let resident = u64::from(self.tile(inputs, gpu).resident);
        let tiles = self.count(form.rows, form.cols).saturating_mul(parts);
        let busiest = tiles.div_ceil(u64::from(gpu.multiprocessors.max(1)));
        let rest = busiest % resident;
        let full_waves = (busiest - rest).saturating_mul(100);
        let last_wave = match rest {
            0 => 0,
            rest => rest * 10_000 / self.with_few().get(rest as usize - 1).unwrap_or(&100),
        };
        let elements = (full_waves + last_wave).saturating_mul(u64::from(bm * bn));
        elements / self.speed(inputs)
    }

    /// The sizes that there are instances of.
    fn all(inputs: Inputs, gpu: Gpu) -> &'static [Self] {
        match (inputs.wide(), inputs.element, gpu.arch) {
            (false, Dtype::F32, ASYNC_COPIES..) => &[Size::Small, Size::Tiny],
            (false, ..) => &[Size::Small],
            (_, _, ..ASYNC_COPIES) => &[Size::Large, Size::Small, Size::Tiny],
            (_, Dtype::F32, 90..100) => &[
                Size::Huge,
                Size::Large,
                Size::Medium,
                Size::Small,
                Size::Tiny,
            ],
            _ => &[Size::Huge, Size::Medium, Size::Small, Size::Tiny],
        }
    }

    /// The size that should take the least time. `parts` are the batch's entries, times the chunks.
    pub fn choose(form: &Form, parts: u64, inputs: Inputs, gpu: Gpu) -> Self {
        let time = |size: &Size| size.time(form, parts, inputs, gpu);
        let sizes = Self::all(inputs, gpu).iter().copied();
        sizes.min_by_key(time).unwrap_or(Size::Small)
    }

    /// All parameters: those for which the compiler's registers suffice (`kernels/instances.txt`).
    pub fn tile(self, inputs: Inputs, gpu: Gpu) -> Tile {
        let narrow = |access: Access| Access { width: 1, ..access };
        let small = matches!(self, Size::Small | Size::Tiny);
        let read = |access: Access| match inputs.element {
            // Few threads have few loads on their way, unless those go past the registers: single
            // elements, where vectors would have to be turned.
            Dtype::F32 if small && gpu.arch >= ASYNC_COPIES => match access.order {
                0 => access,
                _ => narrow(access),
            },
            _ if inputs.wide() => access,
            _ => narrow(access),
        };
        let (lhs, rhs) = (read(inputs.lhs), read(inputs.rhs));
        let gradient = inputs.lhs.order + inputs.rhs.order == 0;
        // What passes through registers needs two stages only.
        let (bk, stages, fence, resident) = match (self, inputs.element, gpu.arch) {
            (Size::Huge, Dtype::F32, _) => (8, 4, if gradient { 3 } else { 1 }, 2),
            (Size::Huge, ..) => (16, 2, 0, 2),
            (Size::Large, _, ..ASYNC_COPIES) => (8, 2, 0, 2),
            (Size::Large, ..) => (8, 4, 2, 3),
            (Size::Medium, Dtype::F32, _) => (8, 4, 0, 6),
            (Size::Medium, ..) => (16, 2, 0, 6),
            (Size::Small, _, ..ASYNC_COPIES) => (16, 2, 0, 2),
            (Size::Small, Dtype::F32, _) => (16, 3, 0, 4),
            (Size::Small, ..) if lhs.width > 1 => (32, 2, 0, 3),
            (Size::Small, ..) => (16, 2, 0, 3),
            (Size::Tiny, _, ..ASYNC_COPIES) => (16, 2, 0, 3),
            (Size::Tiny, Dtype::F32, _) => (32, 3, 0, 3),
            (Size::Tiny, ..) => (64, 2, 0, 3),
        };
        let ([bm, bn], [tm, tn]) = self.shape();
        Tile {
            bm,
            bn,
            tm,
            tn,
            bk,
            stages,
            fence,
            resident,
            lhs,
            rhs,
        }
    }
}

impl Tile {
    /// Threads of a block.
    pub fn threads(self) -> u32 {
        self.bm / self.tm * (self.bn / self.tn)
    }

    /// Bytes of dynamic shared memory: operands, widened to f32, or sums on their way out.
    pub fn shared(self) -> u32 {
        let lhs = self.bm + 4 * self.lhs.order;
        let rhs = self.bn + 4 * self.rhs.order;
        let operands = 4 * self.stages * self.bk * (lhs + rhs);
        let sums = 16 * (self.bm / self.tm) * (self.bn + 4);
        operands.max(sums)
    }

    pub fn defines(self) -> [(&'static str, u32); 12] {
        [
            ("LHS_ORDER", self.lhs.order),
            ("RHS_ORDER", self.rhs.order),
            ("LHS_WIDTH", self.lhs.width),
            ("RHS_WIDTH", self.rhs.width),
            ("BM", self.bm),
            ("BN", self.bn),
            ("TM", self.tm),
            ("TN", self.tn),
            ("BK", self.bk),
            ("STAGES", self.stages),
            ("FENCE", self.fence),
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
    /// The parameters for at most [`FEW_ROWS`] rows. `parts` are the batch's entries, times the
    /// chunks that may run side by side. Where loads go past the registers, as many stages are on
    /// their way as leave room for all of a multiprocessor's blocks; elsewhere one is.
    pub fn of(form: &Form, parts: u64, inputs: Inputs, gpu: Gpu) -> Self {
        let rows = form.rows.clamp(1, FEW_ROWS).next_power_of_two() as u32;
        let bytes = inputs.element.size_in_bytes() as u32;
        let mut stage = FewRows {
            rows,
            cols: 32,
            bk: 256 / bytes,
            stages: 1,
        };
        let blocks = stage.count(form.cols).saturating_mul(parts);
        let busiest = blocks
            .div_ceil(u64::from(gpu.multiprocessors.max(1)))
            .max(1);
        if busiest == 1 && gpu.arch >= ASYNC_COPIES && inputs.rhs.width > 1 {
            // Nobody else works while the block's threads meet: they meet half as often.
            stage.bk *= 2;
        }
        let each = shared_memory(gpu) / (busiest * u64::from(stage.shared(false, inputs.element)));
        let stages = match (gpu.arch, inputs.rhs.width, inputs.element) {
            (..ASYNC_COPIES, _, _) => 2,
            (_, 2.., _) => each.clamp(3, 16) as u32,
            (_, _, Dtype::F32) => 4,
            _ => 3,
        };
        FewRows { stages, ..stage }
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

/// Bytes of a multiprocessor's shared memory that blocks may share, less what each takes besides.
fn shared_memory(gpu: Gpu) -> u64 {
    let kib = match gpu.arch {
        80 | 87 => 150,
        90..120 => 208,
        _ => 92,
    };
    kib << 10
}

/// Blocks of threads that keep a GPU busy to the end: with fewer, chunks run side by side.
pub(super) fn enough_blocks(gpu: Gpu) -> u64 {
    4 * u64::from(gpu.multiprocessors)
}
