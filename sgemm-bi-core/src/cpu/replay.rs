//! The tensor-core tier on the CPU: the block function replayed exactly, a tile of the output at a
//! time (contract section 5).

mod kernel;
mod panel;
mod terms;

use std::ops::Range;

use rayon::prelude::*;

use self::kernel::Arithmetic;
use self::panel::{Lhs, Rhs};
use self::terms::Terms;
use super::float_env::with_default_float_env;
use super::{Simd, with_isa};
use crate::contract::{CHUNK, TensorCoreModel};
use crate::error::Result;
use crate::operands::with_slice;
use crate::{Element, Gemm, Operands, SliceMut, SliceRef};

/// Most rows and columns of the output tile that is one task: packing is shared by them.
const TILE_ROWS: usize = 256;
const TILE_COLS: usize = 512;

/// Least columns of a tile: smaller ones spend their time on packing.
const LEAST_COLS: usize = 64;

/// Elements of the reduction that a panel holds: a group of columns then fits the first cache.
/// A multiple of every block length and a divisor of [`CHUNK`].
const DEPTH: usize = 128;

/// Tiles for each thread whose results are held at once before they are stored.
const TILES_IN_FLIGHT: usize = 4;

/// Computes a product of bf16 or f16 operands in the tensor-core tier.
///
/// Bits: the contract's. Errors: those of [`Gemm::validate`], and
/// [`Error::UnsupportedTier`](crate::Error::UnsupportedTier).
pub(super) fn gemm(
    gemm: &Gemm,
    model: TensorCoreModel,
    simd: Simd,
    operands: Operands<'_>,
) -> Result<()> {
    gemm.validate(&operands)?;
    if gemm.is_empty() {
        return Ok(()); // A batch of nothing may have any number of entries.
    }
    let (bias, out) = (operands.bias, operands.out);
    let arithmetic = Arithmetic {
        parameters: model.half_precision(),
        dtype: gemm.dtype(),
    };
    match (operands.lhs, operands.rhs) {
        (SliceRef::BF16(lhs), SliceRef::BF16(rhs)) => {
            let replay = Replay::new(gemm, arithmetic, lhs, rhs, bias);
            with_isa!(simd, isa => replay.run(isa, out));
        }
        (SliceRef::F16(lhs), SliceRef::F16(rhs)) => {
            let replay = Replay::new(gemm, arithmetic, lhs, rhs, bias);
            with_isa!(simd, isa => replay.run(isa, out));
        }
        _ => return Err(gemm.unsupported_tier("the CPU engine")),
    }
    Ok(())
}

/// A validated product.
struct Replay<'a, T> {
    gemm: &'a Gemm,
    arithmetic: Arithmetic,
    lhs: &'a [T],
    rhs: &'a [T],
    bias: Option<SliceRef<'a>>,
}

/// A rectangle of one batch entry's output.
#[derive(Clone)]
struct Tile {
    lhs_offset: usize,
    rhs_offset: usize,
    out_offset: usize,
    rows: Range<usize>,
    cols: Range<usize>,
}

impl<'a, T: Element> Replay<'a, T> {
    fn new(
        gemm: &'a Gemm,
        arithmetic: Arithmetic,
        lhs: &'a [T],
        rhs: &'a [T],
        bias: Option<SliceRef<'a>>,
    ) -> Self {
        Replay {
            gemm,
            arithmetic,
            lhs,
            rhs,
            bias,
        }
    }

    fn run<W: Terms>(&self, isa: W, mut out: SliceMut<'_>) {
        let size = self.tile_size();
        let tiles_down = self.gemm.rows().div_ceil(size.0);
        let tiles_across = self.gemm.cols().div_ceil(size.1);
        let tiles = self.gemm.batch_len() * tiles_down * tiles_across;
        let tile = |index| {
            let (down, across) = (index / tiles_across, index % tiles_across);
            self.tile(size, down / tiles_down, down % tiles_down, across)
        };
        let wave = TILES_IN_FLIGHT * rayon::current_num_threads();
        for first in (0..tiles).step_by(wave) {
            let held = out.as_ref();
            let computed = (first..tiles.min(first + wave)).into_par_iter();
            let computed: Vec<(Tile, Vec<f32>)> = computed
                .map(|index| {
                    let tile = tile(index);
                    let totals = with_default_float_env(|| {
                        isa.vectorize(
                            #[inline(always)]
                            || self.totals(isa, &tile, held),
                        )
                    });
                    (tile, totals)
                })
                .collect();
            for (tile, totals) in computed {
                with_default_float_env(|| {
                    with_slice!(SliceMut, &mut out, out => self.store(&tile, &totals, out));
                });
            }
        }
    }

    /// Rows and columns of a tile: large, for panels are packed for each, but enough tiles for all
    /// threads.
    fn tile_size(&self) -> (usize, usize) {
        let (mut rows, mut cols) = (TILE_ROWS, TILE_COLS);
        let enough = 2 * rayon::current_num_threads();
        let tiles = |rows, cols| {
            let down = self.gemm.rows().div_ceil(rows);
            self.gemm.batch_len() * down * self.gemm.cols().div_ceil(cols)
        };
        while tiles(rows, cols) < enough && cols > LEAST_COLS {
            match self.gemm.rows() > rows / 2 && rows > cols / 2 {
                true => rows /= 2,
                false => cols /= 2,
            }
        }
        (rows, cols)
    }

    fn tile(&self, size: (usize, usize), entry: usize, down: usize, across: usize) -> Tile {
        let (lhs_offset, rhs_offset, out_offset) = self.gemm.batch_offsets(entry);
        let (row, col) = (down * size.0, across * size.1);
        Tile {
            lhs_offset,
            rhs_offset,
            out_offset,
            rows: row..self.gemm.rows().min(row + size.0),
            cols: col..self.gemm.cols().min(col + size.1),
        }
    }

    fn out_at(&self, tile: &Tile, row: usize, col: usize) -> usize {
        let view = self.gemm.out();
        view.offset + tile.out_offset + row * view.row_stride + col * view.col_stride
    }

    /// The tile's totals, bias included, row by row (contract sections 3, 5 and 7).
    #[inline(always)]
    fn totals<W: Terms>(&self, isa: W, tile: &Tile, out: SliceRef<'_>) -> Vec<f32> {
        let (rows, cols) = (tile.rows.len(), tile.cols.len());
        let group = 2 * W::LANES;
        let padded = cols.div_ceil(group) * group;
        let mut totals = vec![0.0; rows * cols];
        if self.gemm.accumulates() {
            for (line, row) in totals.chunks_exact_mut(cols).zip(tile.rows.clone()) {
                for (total, col) in line.iter_mut().zip(tile.cols.clone()) {
                    let at = self.out_at(tile, row, col);
                    // A held −0.0 is read as +0.0.
                    *total = with_slice!(SliceRef, out, out => out[at].widen()) + 0.0;
                }
            }
        }
        let reduction = self.gemm.reduction();
        let block_length = self.arithmetic.parameters.length;
        let (mut lhs, mut rhs) = (Lhs::new(block_length), Rhs::new(group, block_length));
        let mut chain = vec![0.0; rows * padded];
        for chunk in (0..reduction).step_by(CHUNK) {
            let end = reduction.min(chunk + CHUNK);
            chain.fill(0.0);
            for first in (chunk..end).step_by(DEPTH) {
                let depth = first..end.min(first + DEPTH);
                let view = self.gemm.lhs();
                let view = view.at(view.offset + tile.lhs_offset);
                lhs.fill(isa, self.lhs, view, tile.rows.clone(), depth.clone());
                let view = self.gemm.rhs();
                let view = view.at(view.offset + tile.rhs_offset);
                rhs.fill(isa, self.rhs, view, tile.cols.clone(), depth);
                self.arithmetic.advance(isa, &lhs, &rhs, &mut chain);
            }
            for (line, chain) in totals
                .chunks_exact_mut(cols)
                .zip(chain.chunks_exact(padded))
            {
                for (total, chunk) in line.iter_mut().zip(chain) {
                    *total += chunk;
                }
            }
        }
        if let Some(bias) = self.bias {
            for line in totals.chunks_exact_mut(cols) {
                for (total, col) in line.iter_mut().zip(tile.cols.clone()) {
                    *total += with_slice!(SliceRef, bias, bias => bias[col].widen());
                }
            }
        }
        totals
    }

    /// Section 7: one rounding to the output type, NaN canonical.
    fn store<O: Element>(&self, tile: &Tile, totals: &[f32], out: &mut [O]) {
        for (line, row) in totals.chunks_exact(tile.cols.len()).zip(tile.rows.clone()) {
            for (&total, col) in line.iter().zip(tile.cols.clone()) {
                out[self.out_at(tile, row, col)] = O::round(total);
            }
        }
    }
}

#[cfg(test)]
mod tests;
