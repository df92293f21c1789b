//! Batches: shares the threads out between and inside the entries that remain when dimensions that
//! are rows in disguise have become rows.

use super::driver::{self, for_each};
use super::isa::Isa;
use super::product::Product;
use super::scratch::Pool;
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
pub(super) enum Sharing {
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
        let form = first.form(dims).settled();
        Batch {
            product: first.with_form(&form),
            dims: form.dims,
        }
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
    pub fn sharing(&self, threads: usize) -> Sharing {
        let entries = self.entries();
        if threads == 1 || entries.saturating_mul(self.work()) < PARALLEL_WORK {
            Sharing::Alone
        } else if entries > 1 && (self.work() < SHARED_WORK || entries >= 4 * threads) {
            Sharing::Entries
        } else {
            Sharing::Inside
        }
    }

    /// Computes every entry; unless alone, on a thread of the pool that has the `threads`.
    pub fn run<I: Isa>(&self, isa: I, sharing: Sharing, threads: usize, scratch: &Pool) {
        let entries = self.entries();
        let (outer, inner) = match sharing {
            Sharing::Alone => (1, 1),
            Sharing::Entries => (threads, 1),
            Sharing::Inside => (1, threads),
        };
        let group = match sharing {
            Sharing::Entries => PARALLEL_WORK
                .div_ceil(self.work())
                .min(entries.div_ceil(outer)),
            _ => entries,
        };
        for_each(outer, entries.div_ceil(group), |task| {
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
