//! log-softmax and cross-entropy on a GPU (contract section 9): the operations there are.

mod check;
mod kernels;
mod launch;
mod loss;
mod softmax;

use super::CudaEngine;
use super::targets::TargetType;
use crate::error::Result;
use crate::rows::{
    CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD, ROUND,
};
use crate::{Dtype, Rows};

/// An operation on rows, with the types of what is not a row: what
/// [`CudaEngine::prepare_rows`] prepares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowOp {
    /// [`CudaEngine::log_softmax`].
    LogSoftmax,
    /// [`CudaEngine::log_softmax_backward`].
    LogSoftmaxBackward,
    /// [`CudaEngine::cross_entropy`].
    CrossEntropy {
        /// The type of the targets.
        targets: TargetType,
        /// The dtype of the loss.
        loss: Dtype,
    },
    /// [`CudaEngine::cross_entropy_backward`].
    CrossEntropyBackward {
        /// The type of the targets.
        targets: TargetType,
        /// The dtype of the loss's gradient.
        grad: Dtype,
    },
    /// [`CudaEngine::round`].
    Round {
        /// The dtype of the result.
        out: Dtype,
    },
}

impl RowOp {
    fn name(self) -> &'static str {
        match self {
            RowOp::LogSoftmax => LOG_SOFTMAX,
            RowOp::LogSoftmaxBackward => LOG_SOFTMAX_BACKWARD,
            RowOp::CrossEntropy { .. } => CROSS_ENTROPY,
            RowOp::CrossEntropyBackward { .. } => CROSS_ENTROPY_BACKWARD,
            RowOp::Round { .. } => ROUND,
        }
    }
}

impl CudaEngine {
    /// Compiles and loads what an operation on rows of `dtype` needs, so that it can be recorded in
    /// a graph. Of `rows`, only the number of columns matters.
    ///
    /// Errors: [`NoNvrtc`](crate::Error::NoNvrtc), [`Compile`](crate::Error::Compile),
    /// [`Driver`](crate::Error::Driver).
    pub fn prepare_rows(&self, op: RowOp, rows: &Rows, dtype: Dtype) -> Result<()> {
        self.bind()?;
        self.load_rows(op, rows, dtype).map(drop)
    }
}

#[cfg(test)]
mod tests;
