//! From a product to a list of launches: which kernels, with which arguments and grids, and how
//! much workspace. Nothing here touches a GPU, and nothing here can change a bit.

mod access;
mod cut;
mod simplify;
mod tiles;

use super::args::{BIAS_COLS, BIAS_NONE, BIAS_ROWS, Dim, KERNEL_DIMS, Product};
use super::kernels::{self, Instance};
use crate::contract::CHUNK;
use crate::error::{Error, Result};
use crate::turn::{Axis, Form};
use crate::{BatchDim, Dtype};
use access::Access;
use cut::Piece;
use simplify::{forget_unused_strides, merge_dims, split_dims};
use tiles::{FewRows, Inputs, Size, Tile};

/// What a plan needs to know of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    /// Compute capability: 90 for 9.0.
    pub arch: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
}

/// What a product is made of, beside its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds {
    pub element: Dtype,
    pub out: Dtype,
    pub bias: Option<Dtype>,
    pub accumulate: bool,
    /// The first operand is all ones and not read: a bias gradient.
    pub ones: bool,
}

/// Addresses of the operands' first elements in bytes, as the problem names them; only how they
/// are aligned matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub lhs: u64,
    pub rhs: u64,
}

/// One launch of a kernel. Addresses in `args` are relative (see [`Product`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub instance: Instance,
    pub args: Product,
    pub grid: u32,
    pub block: u32,
    /// Dynamic shared memory in bytes.
    pub shared: u32,
}

/// All launches of a product, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The kernels' first operand is the problem's second one.
    pub turned: bool,
    pub steps: Vec<Step>,
    /// Batch dimensions beyond those that a kernel takes: every step is repeated for each entry.
    pub repeats: Vec<BatchDim>,
    /// Bytes of workspace; each entry of `repeats` and each piece uses all of it in turn.
    pub workspace: u64,
}

/// Rows up to which the second operand is streamed through once.
pub(crate) const FEW_ROWS: usize = 16;

/// Most bytes of chunk sums side by side, and of running totals in one launch.
const WORKSPACE_LIMIT: u64 = 512 << 20;

/// Plans a validated product.
pub(crate) fn plan(form: Form, kinds: Kinds, addresses: Addresses, gpu: Gpu) -> Plan {
    // Without an output, strides may be too large to compute with.
    if form.rows == 0 || form.cols == 0 || form.dims.iter().any(|dim| dim.len == 0) {
        return Plan {
            turned: form.turned,
            steps: Vec::new(),
            repeats: Vec::new(),
            workspace: 0,
        };
    }
    let mut form = form.settled();
    // Ones have no layout to prefer, and stay the first operand.
    if !kinds.ones && form.rows > FEW_ROWS && form.cols <= FEW_ROWS {
        form = form.transposed();
    }
    forget_unused_strides(&mut form);
    merge_dims(&mut form.dims);
    let (repeats, dims) = split_dims(std::mem::take(&mut form.dims));
    form.dims = dims;

    let (lhs, rhs) = match form.turned {
        false => (addresses.lhs, addresses.rhs),
        true => (addresses.rhs, addresses.lhs),
    };
    let planner = Planner {
        kinds,
        gpu,
        inputs: Inputs {
            element: kinds.element,
            lhs: Access::of_lhs(&form, &repeats, kinds.element, lhs),
            rhs: Access::of_rhs(&form, &repeats, kinds.element, rhs),
        },
    };
    let mut plan = Plan {
        turned: form.turned,
        steps: Vec::new(),
        repeats,
        workspace: 0,
    };
    for piece in cut::pieces(form, |form| planner.fits(form)) {
        planner.add(&piece, &mut plan);
    }
    plan
}

/// Refuses a reduction whose chunks a kernel cannot count.
pub(crate) fn check_reduction(op: &'static str, reduction: usize) -> Result<()> {
    match i32::try_from(reduction.div_ceil(CHUNK)) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::SizeOverflow {
            op,
            argument: "shape",
            what: format!("a reduction of {reduction} is more than 2^31 chunks, which"),
        }),
    }
}

impl Plan {
    /// Launches, counting repetitions.
    pub fn launches(&self) -> usize {
        let repeats: usize = self.repeats.iter().map(|dim| dim.len).product();
        repeats * self.steps.len()
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.turned {
            writeln!(f, "the operands change places")?;
        }
        if !self.repeats.is_empty() {
            let lens: Vec<_> = self.repeats.iter().map(|dim| dim.len).collect();
            writeln!(f, "repeated for a batch of {lens:?}")?;
        }
        for step in &self.steps {
            let Product {
                rows,
                cols,
                reduction,
                batch,
                ..
            } = step.args;
            writeln!(
                f,
                "{batch} × [{rows}, {reduction}]·[{reduction}, {cols}]: {} blocks of {} threads, {} bytes of shared memory: {}",
                step.grid, step.block, step.shared, step.instance
            )?;
        }
        write!(f, "workspace: {} bytes", self.workspace)
    }
}

/// A way to compute one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    FewRows(FewRows),
    Tile(Size),
}

impl Way {
    /// Blocks of threads for one matrix and one chunk.
    fn blocks(self, form: &Form) -> u64 {
        match self {
            Way::FewRows(few) => few.count(form.cols),
            Way::Tile(size) => size.count(form.rows, form.cols),
        }
    }
}

/// What all pieces of a plan share.
struct Planner {
    kinds: Kinds,
    gpu: Gpu,
    inputs: Inputs,
}

impl Planner {
    fn way(&self, form: &Form) -> Way {
        let parts = entries(form).saturating_mul(chunks(form).max(1));
        if form.rows <= FEW_ROWS {
            return Way::FewRows(FewRows::of(form, parts, self.inputs, self.gpu));
        }
        Way::Tile(Size::choose(form, parts, self.inputs, self.gpu))
    }

    /// Blocks of threads that compute a piece, one chunk after the other.
    fn blocks(&self, form: &Form, way: Way) -> u64 {
        way.blocks(form).saturating_mul(entries(form))
    }

    /// Whether a piece can be one launch: its grid, and its running totals.
    fn fits(&self, form: &Form) -> bool {
        let blocks = self.blocks(form, self.way(form));
        blocks <= i32::MAX as u64 && self.running_totals(form) <= WORKSPACE_LIMIT
    }

    /// Bytes of the totals that chunks after the first one go on from.
    fn running_totals(&self, form: &Form) -> u64 {
        match self.kinds.out {
            Dtype::F32 => 0,
            _ if chunks(form) <= 1 => 0,
            _ => elements(form).saturating_mul(4),
        }
    }

    /// Whether chunks side by side fill the GPU better than one after the other, and fit.
    fn splits(&self, form: &Form, way: Way) -> bool {
        let (blocks, chunks) = (self.blocks(form, way), chunks(form));
        let enough = tiles::enough_blocks(self.gpu);
        let sums = elements(form).saturating_mul(4).saturating_mul(chunks);
        chunks > 1
            && blocks < enough
            && sums <= WORKSPACE_LIMIT
            && blocks.saturating_mul(chunks) <= i32::MAX as u64
    }

    /// Adds the launches of a piece.
    fn add(&self, piece: &Piece, plan: &mut Plan) {
        let form = &piece.form;
        let way = self.way(form);
        let split = self.splits(form, way);
        let chunks = chunks(form);
        let blocks = self.blocks(form, way) * if split { chunks } else { 1 };
        let (instance, block, shared) = match way {
            Way::FewRows(few) => self.few_rows(few, split),
            Way::Tile(size) => self.tile(size.tile(self.inputs, self.gpu), split),
        };
        let args = self.args(piece);
        plan.steps.push(Step {
            instance,
            args,
            grid: blocks as u32,
            block,
            shared,
        });
        let workspace = match split {
            true => elements(form) * 4 * chunks,
            false => self.running_totals(form),
        };
        plan.workspace = plan.workspace.max(workspace);
        if split {
            let block = kernels::FOLD_BLOCK;
            let most = 16 * u64::from(self.gpu.multiprocessors);
            plan.steps.push(Step {
                instance: Instance::new(
                    &kernels::FOLD,
                    vec![
                        ("OUT", kernels::dtype(self.kinds.out)),
                        ("BIAS", self.bias_define()),
                    ],
                ),
                args,
                grid: elements(form).div_ceil(u64::from(block)).clamp(1, most) as u32,
                block,
                shared: 0,
            });
        }
    }

    fn bias_define(&self) -> u32 {
        self.kinds.bias.map_or(0, kernels::dtype)
    }

    /// Defines of both product kernels. What only an epilogue needs is the same for all that have
    /// none, so that they are one instance.
    fn common(&self, split: bool) -> Vec<(&'static str, u32)> {
        let (out, bias) = match split {
            true => (0, 0),
            false => (kernels::dtype(self.kinds.out), self.bias_define()),
        };
        vec![
            ("ELEMENT", kernels::dtype(self.kinds.element)),
            ("OUT", out),
            ("BIAS", bias),
            ("SPLIT", u32::from(split)),
        ]
    }

    fn few_rows(&self, few: FewRows, split: bool) -> (Instance, u32, u32) {
        let ones = self.kinds.ones;
        // Rows are read along the reduction, whatever their layout.
        let lhs_width = match self.inputs.lhs.order {
            1 if !ones => self.inputs.lhs.width,
            _ => 1,
        };
        let mut defines = self.common(split);
        defines.extend([
            ("RHS_ORDER", self.inputs.rhs.order),
            ("LHS_WIDTH", lhs_width),
            ("RHS_WIDTH", self.inputs.rhs.width),
            ("ONES", u32::from(ones)),
        ]);
        defines.extend(few.defines());
        let instance = Instance::new(&kernels::FEW_ROWS, defines);
        (
            instance,
            few.threads(),
            few.shared(ones, self.kinds.element),
        )
    }

    fn tile(&self, tile: Tile, split: bool) -> (Instance, u32, u32) {
        let mut defines = self.common(split);
        defines.extend(tile.defines());
        let instance = Instance::new(&kernels::TILE, defines);
        (instance, tile.threads(), tile.shared())
    }

    fn args(&self, piece: &Piece) -> Product {
        let form = &piece.form;
        let (element, out) = (self.kinds.element, self.kinds.out);
        let bytes = |offset: usize, dtype: Dtype| (offset * dtype.size_in_bytes()) as u64;
        let mut dims = [Dim {
            len: 1,
            lhs: 0,
            rhs: 0,
            out: 0,
        }; KERNEL_DIMS];
        let unused = KERNEL_DIMS - form.dims.len();
        for (into, dim) in dims[unused..].iter_mut().zip(&form.dims) {
            *into = Dim {
                len: dim.len as i64,
                lhs: dim.lhs_stride as i64,
                rhs: dim.rhs_stride as i64,
                out: dim.out_stride as i64,
            };
        }
        Product {
            lhs: bytes(piece.lhs, element),
            rhs: bytes(piece.rhs, element),
            bias: (self.kinds.bias).map_or(0, |dtype| bytes(piece.bias, dtype)),
            out: bytes(piece.out, out),
            totals: 0,
            rows: form.rows as i64,
            cols: form.cols as i64,
            reduction: form.reduction as i64,
            lhs_row: form.lhs.row as i64,
            lhs_red: form.lhs.col as i64,
            rhs_red: form.rhs.row as i64,
            rhs_col: form.rhs.col as i64,
            out_row: form.out.row as i64,
            out_col: form.out.col as i64,
            batch: entries(form) as i64,
            dims,
            bias_along: match form.bias {
                None => BIAS_NONE,
                Some(Axis::Cols) => BIAS_COLS,
                Some(Axis::Rows) => BIAS_ROWS,
            },
            accumulate: i32::from(self.kinds.accumulate),
            flags: 0,
            chunks: chunks(form).max(1) as i32,
        }
    }
}

/// Chunks of the reduction (contract section 3).
fn chunks(form: &Form) -> u64 {
    form.reduction.div_ceil(CHUNK) as u64
}

fn entries(form: &Form) -> u64 {
    form.dims.iter().map(|dim| dim.len as u64).product()
}

/// Elements of the output.
fn elements(form: &Form) -> u64 {
    form.rows as u64 * form.cols as u64 * entries(form)
}

#[cfg(test)]
pub(super) mod tests;
