//! A few rows in scratch memory, widened to f32, with the maximum and the sum of each.

use super::convert::RowElement;
use super::kernels::{self, CHAINS};
use crate::Rows;
use crate::contract::CHUNK;
use crate::cpu::Simd;

/// Rows of a block: as many as there are chains to sum side by side.
pub(super) const BLOCK_ROWS: usize = CHAINS;

/// Scratch for up to [`BLOCK_ROWS`] rows: `2·4·cols` bytes for each.
pub(super) struct Block<'a> {
    simd: Simd,
    rows: &'a Rows,
    capacity: usize,
    first_row: usize,
    /// The operand that is not summed, `[capacity, cols]`.
    inputs: Vec<f32>,
    /// What is summed along each row, `[capacity, cols]`.
    terms: Vec<f32>,
    maxima: [f64; BLOCK_ROWS],
    sums: [f32; BLOCK_ROWS],
}

impl<'a> Block<'a> {
    /// Scratch for `capacity` rows.
    pub(super) fn new(simd: Simd, rows: &'a Rows, capacity: usize) -> Self {
        let capacity = capacity.min(rows.rows);
        Block {
            simd,
            rows,
            capacity,
            first_row: 0,
            inputs: vec![0.0; capacity * rows.cols],
            terms: vec![0.0; capacity * rows.cols],
            maxima: [0.0; BLOCK_ROWS],
            sums: [0.0; BLOCK_ROWS],
        }
    }

    /// Moves to the block that starts at a row.
    pub(super) fn start_at(&mut self, first_row: usize) {
        self.first_row = first_row;
    }

    /// The index of the block's first row.
    pub(super) fn first_row(&self) -> usize {
        self.first_row
    }

    /// Number of rows in the block: fewer than its capacity at the end.
    pub(super) fn len(&self) -> usize {
        self.capacity.min(self.rows.rows - self.first_row)
    }

    /// Row `i` of the block: its inputs, its terms, its maximum and its sum.
    pub(super) fn row(&mut self, i: usize) -> (&mut [f32], &mut [f32], f64, f32) {
        let at = i * self.rows.cols..(i + 1) * self.rows.cols;
        (
            &mut self.inputs[at.clone()],
            &mut self.terms[at],
            self.maxima[i],
            self.sums[i],
        )
    }

    /// Reads two operands, and sums the rows of the second.
    pub(super) fn load<T: RowElement>(&mut self, inputs: &[T], terms: &[T]) {
        for i in 0..self.len() {
            let at = self.input_range(i);
            let (wide_inputs, wide_terms, ..) = self.row(i);
            T::widen_row(&inputs[at.clone()], wide_inputs);
            T::widen_row(&terms[at], wide_terms);
        }
        self.sum_terms();
    }

    /// Reads x; its maxima, its exponentials as terms, and their sums (contract section 9.2).
    pub(super) fn load_exponentials<T: RowElement>(&mut self, x: &[T]) {
        for i in 0..self.len() {
            let (at, simd) = (self.input_range(i), self.simd);
            let (wide, terms, ..) = self.row(i);
            T::widen_row(&x[at], wide);
            let max = f64::from(kernels::maximum(simd, wide));
            kernels::exponentials(simd, wide, max, terms);
            self.maxima[i] = max;
        }
        self.sum_terms();
    }

    fn input_range(&self, i: usize) -> std::ops::Range<usize> {
        let start = (self.first_row + i) * self.rows.input_stride;
        start..start + self.rows.cols
    }

    /// Sums each row's terms chunk by chunk (contract section 3): chains of different rows, and of
    /// different chunks of one row, side by side.
    fn sum_terms(&mut self) {
        self.sums = [0.0; BLOCK_ROWS];
        let (rows, cols) = (self.len(), self.rows.cols);
        let full = cols / CHUNK * rows;
        // Chunk-major, so that each row meets its chunks in ascending order.
        for group in (0..full).step_by(CHAINS) {
            self.sum_group(group..full.min(group + CHAINS), CHUNK);
        }
        if !cols.is_multiple_of(CHUNK) {
            self.sum_group(full..full + rows, cols % CHUNK);
        }
    }

    /// Sums up to [`CHAINS`] chains of one length, and adds them to their rows' totals.
    fn sum_group(&mut self, chains: std::ops::Range<usize>, len: usize) {
        let (rows, cols, first) = (self.len(), self.rows.cols, chains.start);
        let chain = |index: usize| {
            let start = index % rows * cols + index / rows * CHUNK;
            &self.terms[start..start + len]
        };
        // A short group is filled with copies of its first chain, which nobody reads.
        let slices =
            std::array::from_fn(|i| chain(if i < chains.len() { first + i } else { first }));
        let sums = kernels::chains(self.simd, slices);
        for (index, sum) in chains.zip(sums) {
            self.sums[index % rows] += sum;
        }
    }
}
