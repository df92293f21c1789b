//! The CPU engine's log-softmax and cross-entropy (contract section 9), threaded over rows.

mod block;
mod convert;
mod kernels;
#[cfg(test)]
mod tests;

use std::hint::black_box;

use rayon::prelude::*;

use self::block::{BLOCK_ROWS, Block};
use self::convert::RowElement;
use super::CpuEngine;
use super::float_env::with_default_float_env;
use crate::contract::CHUNK;
use crate::error::Result;
use crate::math::ln64;
use crate::operands::with_slice;
use crate::rows::{CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD};
use crate::{Element, Rows, SliceMut, SliceRef, Targets};

/// Elements below which waking threads costs more than it saves.
const SEQUENTIAL_ELEMENTS: usize = 1 << 14;

/// Evaluates an expression with typed slices of one dtype, which validation has made sure of.
macro_rules! with_rows {
    ($op:literal, ($($slice:ident: $kind:ident),*) => $body:expr) => {
        match ($($slice,)*) {
            ($($kind::F32($slice),)*) => $body,
            ($($kind::BF16($slice),)*) => $body,
            ($($kind::F16($slice),)*) => $body,
            _ => unreachable!(concat!($op, ": validated")),
        }
    };
}

impl CpuEngine {
    /// Computes `y = log_softmax(x)`: y`[i, j]` = x`[i, j]` − ln Σⱼ e^x`[i, j]`.
    ///
    /// x and y are f32, bf16 or f16, the same for both. Bits: contract section 9.2; a row's depend
    /// on that row alone. A row that holds a NaN or +∞, or nothing but −∞, becomes NaN. Takes
    /// `64·cols` bytes for each thread.
    ///
    /// Errors, all before anything is written: [`TooShort`], [`SizeOverflow`],
    /// [`DtypeMismatch`], [`OverlappingOutput`].
    ///
    /// [`TooShort`]: crate::Error::TooShort
    /// [`SizeOverflow`]: crate::Error::SizeOverflow
    /// [`DtypeMismatch`]: crate::Error::DtypeMismatch
    /// [`OverlappingOutput`]: crate::Error::OverlappingOutput
    ///
    /// ```
    /// use sgemm_bi_core::{CpuEngine, Rows};
    ///
    /// # fn main() -> Result<(), sgemm_bi_core::Error> {
    /// let mut y = [0.0f32; 3];
    /// CpuEngine::new()?.log_softmax(&Rows::new(1, 3), &[0.0f32, 0.0, -f32::INFINITY], &mut y)?;
    /// assert_eq!(y, [-0.6931472, -0.6931472, -f32::INFINITY]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_softmax<'a>(
        &self,
        rows: &Rows,
        x: impl Into<SliceRef<'a>>,
        y: impl Into<SliceMut<'a>>,
    ) -> Result<()> {
        let (x, y) = (x.into(), y.into());
        rows.check_log_softmax(x.into(), y.as_ref().into())?;
        let job = Job { engine: self, rows };
        with_rows!("log_softmax", (x: SliceRef, y: SliceMut) => {
            job.run(y, rows.output_stride, |block, outputs| {
                block.load_exponentials(x);
                for i in 0..block.len() {
                    let (x, e, max, sum) = block.row(i);
                    kernels::log_probabilities(self.simd, x, max, ln64(f64::from(sum)), e);
                    RowElement::round_row(e, job.output_row(outputs, i));
                }
            })
        });
        Ok(())
    }

    /// Computes the gradient of [`log_softmax`](Self::log_softmax) from its result y and the
    /// gradient dy of that result: dx`[i, j]` = dy`[i, j]` − e^y`[i, j]` · Σⱼ dy`[i, j]`.
    ///
    /// y, dy and dx have one dtype; y and dy share the input stride. Bits: contract section 9.3.
    /// Errors: as [`log_softmax`](Self::log_softmax).
    pub fn log_softmax_backward<'a>(
        &self,
        rows: &Rows,
        y: impl Into<SliceRef<'a>>,
        dy: impl Into<SliceRef<'a>>,
        dx: impl Into<SliceMut<'a>>,
    ) -> Result<()> {
        let (y, dy, dx) = (y.into(), dy.into(), dx.into());
        rows.check_log_softmax_backward(y.into(), dy.into(), dx.as_ref().into())?;
        let job = Job { engine: self, rows };
        with_rows!("log_softmax backward", (y: SliceRef, dy: SliceRef, dx: SliceMut) => {
            job.run(dx, rows.output_stride, |block, outputs| {
                block.load(y, dy);
                for i in 0..block.len() {
                    let (y, dy, _, sum) = block.row(i);
                    kernels::log_softmax_gradient(self.simd, y, sum, dy);
                    RowElement::round_row(dy, job.output_row(outputs, i));
                }
            })
        });
        Ok(())
    }

    /// Computes the mean over the rows of −log_softmax(logits)`[i, targets[i]]`, in f32.
    ///
    /// logits are f32, bf16 or f16; there is one target for each row, from 0 to `cols` (exclusive).
    /// No row gives NaN, as the mean of nothing does in PyTorch and in Candle. Bits: contract
    /// section 9.4; no intermediate is rounded to 16 bits.
    ///
    /// Errors: [`TooShort`], [`SizeOverflow`], [`LengthMismatch`], [`TargetOutOfRange`].
    ///
    /// [`TooShort`]: crate::Error::TooShort
    /// [`SizeOverflow`]: crate::Error::SizeOverflow
    /// [`LengthMismatch`]: crate::Error::LengthMismatch
    /// [`TargetOutOfRange`]: crate::Error::TargetOutOfRange
    ///
    /// ```
    /// use sgemm_bi_core::{CpuEngine, Rows};
    ///
    /// # fn main() -> Result<(), sgemm_bi_core::Error> {
    /// let engine = CpuEngine::new()?;
    /// let loss = engine.cross_entropy(&Rows::new(2, 2), &[0.0f32, 0.0, 1.0, 1.0], &[0u32, 1])?;
    /// assert_eq!(loss, std::f32::consts::LN_2);
    ///
    /// let refused = engine.cross_entropy(&Rows::new(1, 2), &[0.0f32, 0.0], &[-100i64]);
    /// assert_eq!(
    ///     refused.unwrap_err().to_string(),
    ///     "cross_entropy: target -100 of row 0 is out of range: expected 0 to 2 (exclusive)"
    /// );
    /// # Ok(())
    /// # }
    /// ```
    pub fn cross_entropy<'a>(
        &self,
        rows: &Rows,
        logits: impl Into<SliceRef<'a>>,
        targets: impl Into<Targets<'a>>,
    ) -> Result<f32> {
        let (logits, targets) = (logits.into(), targets.into());
        rows.check_cross_entropy(logits.into(), targets.len())?;
        let targets = rows.target_indices(CROSS_ENTROPY, targets)?;
        let mut losses = vec![0f32; rows.rows];
        let job = Job { engine: self, rows };
        with_slice!(SliceRef, logits, logits => {
            job.run(&mut losses, 1, |block, losses| {
                block.load_exponentials(logits);
                for (i, loss) in losses.iter_mut().enumerate() {
                    let target = targets[block.first_row() + i];
                    let (x, _, max, sum) = block.row(i);
                    let y = (f64::from(x[target]) - max - ln64(f64::from(sum))) as f32;
                    *loss = -y;
                }
            })
        });
        Ok(with_default_float_env(|| {
            let mut total = 0.0;
            for chunk in losses.chunks(CHUNK) {
                total += chunk.iter().fold(0.0, |acc, loss| acc + loss);
            }
            Element::round(divided(total, rows.rows))
        }))
    }

    /// Computes the gradient of [`cross_entropy`](Self::cross_entropy) from the gradient `grad` of
    /// its result: dlogits`[i, j]` = (softmax(logits)`[i, j]` − \[j = targets\[i\]\]) · grad / rows.
    ///
    /// logits and dlogits have one dtype. Bits: contract section 9.5; computed in f32 and rounded
    /// once to the dtype.
    ///
    /// Errors: as [`cross_entropy`](Self::cross_entropy), and [`DtypeMismatch`],
    /// [`OverlappingOutput`].
    ///
    /// [`DtypeMismatch`]: crate::Error::DtypeMismatch
    /// [`OverlappingOutput`]: crate::Error::OverlappingOutput
    pub fn cross_entropy_backward<'a>(
        &self,
        rows: &Rows,
        logits: impl Into<SliceRef<'a>>,
        targets: impl Into<Targets<'a>>,
        grad: f32,
        dlogits: impl Into<SliceMut<'a>>,
    ) -> Result<()> {
        let (logits, dlogits) = (logits.into(), dlogits.into());
        let targets = targets.into();
        let extent = dlogits.as_ref().into();
        rows.check_cross_entropy_backward(logits.into(), targets.len(), extent)?;
        let targets = rows.target_indices(CROSS_ENTROPY_BACKWARD, targets)?;
        let scale = with_default_float_env(|| divided(grad, rows.rows));
        let job = Job { engine: self, rows };
        with_rows!("cross_entropy backward", (logits: SliceRef, dlogits: SliceMut) => {
            job.run(dlogits, rows.output_stride, |block, outputs| {
                block.load_exponentials(logits);
                for i in 0..block.len() {
                    let target = targets[block.first_row() + i];
                    let (_, e, _, sum) = block.row(i);
                    // p − 0 is p, so only the target's element has a subtraction.
                    let of_target = (e[target] / sum - 1.0) * scale;
                    kernels::scaled_probabilities(self.simd, e, sum, scale);
                    e[target] = of_target;
                    RowElement::round_row(e, job.output_row(outputs, i));
                }
            })
        });
        Ok(())
    }
}

/// `value / f32(rows)`, in the floating-point environment of the moment: nothing but registers takes
/// part in it, so that the compiler might move it past a change of the environment.
fn divided(value: f32, rows: usize) -> f32 {
    black_box(black_box(value) / black_box(rows) as f32)
}

/// One call: the engine and the rows.
struct Job<'a> {
    engine: &'a CpuEngine,
    rows: &'a Rows,
}

impl Job<'_> {
    /// Calls `compute` for every block of rows, with scratch and with the part of `output` that
    /// starts at the block's first row; `stride` is the distance of the output's rows.
    fn run<T: Send>(
        &self,
        output: &mut [T],
        stride: usize,
        compute: impl Fn(&mut Block<'_>, &mut [T]) + Sync,
    ) {
        let (simd, rows) = (self.engine.simd, self.rows);
        if rows.is_empty() {
            return;
        }
        // The last row may end early, and a single row's stride says nothing.
        let len = match rows.rows {
            1 => output.len(),
            rows => output.len().min(rows.saturating_mul(stride)),
        };
        let output = &mut output[..len];
        let stride = if rows.rows == 1 { len } else { stride };

        if rows.rows.saturating_mul(rows.cols) < SEQUENTIAL_ELEMENTS {
            let mut block = Block::new(simd, rows, BLOCK_ROWS);
            for (index, outputs) in output
                .chunks_mut(BLOCK_ROWS.saturating_mul(stride))
                .enumerate()
            {
                block.start_at(index * BLOCK_ROWS);
                with_default_float_env(|| compute(&mut block, outputs));
            }
            return;
        }
        self.engine.in_pool(|| {
            let share = rows.rows.div_ceil(rayon::current_num_threads());
            let block_rows = share.min(BLOCK_ROWS);
            output
                .par_chunks_mut(block_rows.saturating_mul(stride))
                .enumerate()
                .for_each_init(
                    || Block::new(simd, rows, block_rows),
                    |block, (index, outputs)| {
                        block.start_at(index * block_rows);
                        with_default_float_env(|| compute(block, outputs));
                    },
                );
        });
    }

    /// Row `i` of a block's part of an output `[rows, cols]`.
    fn output_row<'o, T>(&self, outputs: &'o mut [T], i: usize) -> &'o mut [T] {
        let start = i * self.rows.output_stride;
        &mut outputs[start..start + self.rows.cols]
    }
}
