//! Contract section 9 line by line: log-softmax and cross-entropy, forward and backward.

use super::{store, sum_of_chunks, widen};
use crate::error::Result;
use crate::math::{exp64, ln64};
use crate::rows::{CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD};
use crate::{Rows, SliceMut, SliceRef, Targets};

/// Computes `y = log_softmax(x)` row by row (contract section 9.2).
///
/// Errors: those of [`CpuEngine::log_softmax`](crate::CpuEngine::log_softmax).
pub fn log_softmax<'a>(
    rows: &Rows,
    x: impl Into<SliceRef<'a>>,
    y: impl Into<SliceMut<'a>>,
) -> Result<()> {
    let (x, mut y) = (x.into(), y.into());
    rows.check_log_softmax(x.into(), y.as_ref().into())?;
    for i in 0..rows.rows {
        let row = Row::new(rows, x, i);
        for j in 0..rows.cols {
            store(&mut y, i * rows.output_stride + j, row.log_softmax(j));
        }
    }
    Ok(())
}

/// Computes the gradient of log-softmax row by row (contract section 9.3).
///
/// Errors: those of
/// [`CpuEngine::log_softmax_backward`](crate::CpuEngine::log_softmax_backward).
pub fn log_softmax_backward<'a>(
    rows: &Rows,
    y: impl Into<SliceRef<'a>>,
    dy: impl Into<SliceRef<'a>>,
    dx: impl Into<SliceMut<'a>>,
) -> Result<()> {
    let (y, dy, mut dx) = (y.into(), dy.into(), dx.into());
    rows.check_log_softmax_backward(y.into(), dy.into(), dx.as_ref().into())?;
    for i in 0..rows.rows {
        let dy = |j| widen(dy, i * rows.input_stride + j);
        let sum = sum_of_chunks(0.0, rows.cols, |chunk| {
            chunk.fold(0.0, |acc, j| acc + dy(j))
        });
        for j in 0..rows.cols {
            let p = exp64(f64::from(widen(y, i * rows.input_stride + j))) as f32;
            let product = p * sum;
            store(&mut dx, i * rows.output_stride + j, dy(j) - product);
        }
    }
    Ok(())
}

/// Computes the mean cross-entropy (contract section 9.4).
///
/// Errors: those of [`CpuEngine::cross_entropy`](crate::CpuEngine::cross_entropy).
pub fn cross_entropy<'a>(
    rows: &Rows,
    logits: impl Into<SliceRef<'a>>,
    targets: impl Into<Targets<'a>>,
) -> Result<f32> {
    let (logits, targets) = (logits.into(), targets.into());
    rows.check_cross_entropy(logits.into(), targets.len())?;
    let targets = rows.target_indices(CROSS_ENTROPY, targets)?;
    let total = sum_of_chunks(0.0, rows.rows, |chunk| {
        chunk.fold(0.0, |acc, i| {
            acc + -Row::new(rows, logits, i).log_softmax(targets[i])
        })
    });
    Ok(crate::Element::round(total / rows.rows as f32))
}

/// Computes the gradient of the mean cross-entropy (contract section 9.5).
///
/// Errors: those of
/// [`CpuEngine::cross_entropy_backward`](crate::CpuEngine::cross_entropy_backward).
pub fn cross_entropy_backward<'a>(
    rows: &Rows,
    logits: impl Into<SliceRef<'a>>,
    targets: impl Into<Targets<'a>>,
    grad: f32,
    dlogits: impl Into<SliceMut<'a>>,
) -> Result<()> {
    let (logits, mut dlogits) = (logits.into(), dlogits.into());
    let targets = targets.into();
    let extent = dlogits.as_ref().into();
    rows.check_cross_entropy_backward(logits.into(), targets.len(), extent)?;
    let targets = rows.target_indices(CROSS_ENTROPY_BACKWARD, targets)?;
    let scale = grad / rows.rows as f32;
    for (i, target) in targets.into_iter().enumerate() {
        let row = Row::new(rows, logits, i);
        for j in 0..rows.cols {
            let p = row.exponential(j) / row.sum;
            let difference = p - if j == target { 1.0 } else { 0.0 };
            store(&mut dlogits, i * rows.output_stride + j, difference * scale);
        }
    }
    Ok(())
}

/// One row with its maximum m and the sum s of its exponentials (contract section 9.2).
struct Row<'a> {
    x: SliceRef<'a>,
    start: usize,
    max: f64,
    sum: f32,
}

impl<'a> Row<'a> {
    fn new(rows: &Rows, x: SliceRef<'a>, i: usize) -> Self {
        let start = i * rows.input_stride;
        let max = (0..rows.cols).fold(f32::NEG_INFINITY, |max, j| {
            let x = widen(x, start + j);
            if max.is_nan() || max >= x { max } else { x }
        });
        let mut row = Row {
            x,
            start,
            max: f64::from(max),
            sum: 0.0,
        };
        row.sum = sum_of_chunks(0.0, rows.cols, |chunk| {
            chunk.fold(0.0, |acc, j| acc + row.exponential(j))
        });
        row
    }

    fn exponential(&self, j: usize) -> f32 {
        exp64(f64::from(widen(self.x, self.start + j)) - self.max) as f32
    }

    fn log_softmax(&self, j: usize) -> f32 {
        let x = f64::from(widen(self.x, self.start + j));
        (x - self.max - ln64(f64::from(self.sum))) as f32
    }
}
