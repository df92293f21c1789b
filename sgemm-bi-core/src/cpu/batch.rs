//! Batches: folds the dimensions that are rows in disguise, and shares the threads out between
//! and inside the entries that remain.

use super::driver;
use super::isa::Isa;
use super::product::{Axis, Product};
use super::scratch::Pool;
use super::team::Team;
use super::{short_reduction, small_m};
use crate::BatchDim;

/// Fused multiply-adds below which starting threads costs more than it gives.
const PARALLEL_WORK: usize = 1 << 19;

/// Fused multiply-adds of an entry above which the threads share it rather than the batch.
const SHARED_WORK: usize = 1 << 24;

/// Every entry of a batch of products.
pub(super) struct Batch<'a> {
    /// The first entry.
    product: Product<'a>,
    /// The dimensions, outermost first.
    dims: Vec<BatchDim>,
}

/// How threads share a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// One thread does everything.
    Alone,
    /// Each thread takes whole entries.
    Entries,
    /// All threads work on one entry after the other.
    Inside,
}

impl<'a> Batch<'a> {
    /// The batch of `dims` that begins with `first`, folded and turned so that the output's
    /// contiguous direction, if any, is its columns'.
    pub fn new(first: Product<'a>, dims: &[BatchDim]) -> Self {
        let mut product = first;
        let mut dims: Vec<_> = dims.iter().copied().filter(|dim| dim.len != 1).collect();
        if product.reduction == 0 {
            // Nothing is read, so the inputs' strides may be too large to compute with.
            for matrix in [&mut product.lhs, &mut product.rhs] {
                (matrix.row_stride, matrix.col_stride) = (0, 0);
            }
            for dim in &mut dims {
                (dim.lhs_stride, dim.rhs_stride) = (0, 0);
            }
        }
        while let Some(&dim) = dims.last()
            && let Some(folded) = fold(product, dim)
        {
            product = folded;
            dims.pop();
        }
        let out = product.out;
        if out.col_stride != 1 && out.row_stride == 1 && product.rows > 1 {
            product = product.transposed();
            for dim in &mut dims {
                (dim.lhs_stride, dim.rhs_stride) = (dim.rhs_stride, dim.lhs_stride);
            }
        }
        Batch { product, dims }
    }

    fn entries(&self) -> usize {
        self.dims.iter().map(|dim| dim.len).product()
    }

    /// Fused multiply-adds of an entry.
    fn work(&self) -> usize {
        self.product.rows * self.product.cols * self.product.reduction.max(1)
    }

    fn entry(&self, index: usize) -> Product<'a> {
        self.product
            .at(crate::gemm::batch_offsets(&self.dims, index))
    }

    /// How `threads` threads share this batch.
    fn sharing(&self, threads: usize) -> Sharing {
        let entries = self.entries();
        if threads == 1 || entries.saturating_mul(self.work()) < PARALLEL_WORK {
            Sharing::Alone
        } else if entries > 1 && (self.work() < SHARED_WORK || entries >= 4 * threads) {
            Sharing::Entries
        } else {
            Sharing::Inside
        }
    }

    /// Computes every entry.
    pub fn run<I: Isa>(&self, isa: I, team: Team<'_>, scratch: &Pool) {
        let entries = self.entries();
        let sharing = self.sharing(team.threads());
        let (outer, inner) = match sharing {
            Sharing::Alone => (Team::ALONE, Team::ALONE),
            Sharing::Entries => (team, Team::ALONE),
            Sharing::Inside => (Team::ALONE, team),
        };
        let group = match sharing {
            Sharing::Entries => PARALLEL_WORK
                .div_ceil(self.work())
                .min(entries.div_ceil(outer.threads())),
            _ => entries,
        };
        outer.for_each(entries.div_ceil(group), |task| {
            for index in task * group..entries.min((task + 1) * group) {
                let entry = self.entry(index);
                match small_m::suitable(entry) {
                    Some(entry) => small_m::gemm(isa, &entry, inner, scratch),
                    None if short_reduction::suits(&entry) => {
                        short_reduction::gemm(isa, &entry, inner, scratch);
                    }
                    None => driver::gemm(isa, &entry, inner, scratch),
                }
            }
        });
    }
}

/// The product that has the rows of every entry along `dim`, if they lie one after the other.
fn fold(product: Product<'_>, dim: BatchDim) -> Option<Product<'_>> {
    if product.bias.is_some_and(|bias| bias.along == Axis::Rows) || dim.rhs_stride != 0 {
        return None;
    }
    let mut folded = product;
    folded.rows = product.rows * dim.len;
    if product.rows == 1 {
        folded.lhs.row_stride = dim.lhs_stride;
        folded.out.row_stride = dim.out_stride;
        return Some(folded);
    }
    let continues = product.rows * product.lhs.row_stride == dim.lhs_stride
        && product.rows * product.out.row_stride == dim.out_stride;
    continues.then_some(folded)
}
