//! The typed errors of this crate, and how they become Candle's.

use candle_core::{DType, DeviceLocation};

/// Why an operation was refused, with the operation, the argument, what was expected and what was
/// got.
///
/// Every function of this crate returns a [`candle_core::Error`] whose message is this error's
/// message: `Error` is converted by [`candle_core::Error::wrap`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine refused the problem.
    #[error(transparent)]
    Core(#[from] sgemm_bi_core::Error),

    /// The process's CPU engine could not be made, which is tried once.
    #[error("the CPU engine could not be created: {0}")]
    Engine(#[source] &'static sgemm_bi_core::Error),

    /// A tensor's rank is not one that the operation takes.
    #[error("{op}: {argument} has the wrong rank: expected {expected}, got shape {got:?}")]
    Rank {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// The ranks that are taken, in words.
        expected: &'static str,
        /// The tensor's shape.
        got: Vec<usize>,
    },

    /// A tensor's shape does not fit the other arguments'.
    #[error("{op}: {argument} has the wrong shape: expected {expected}, got {got:?}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// What would have fitted, and why.
        expected: String,
        /// The tensor's shape.
        got: Vec<usize>,
    },

    /// A tensor's dtype is not one that the operation takes, or not the other arguments'.
    #[error("{op}: {argument} has the wrong dtype: expected {expected}, got {}", got.as_str())]
    Dtype {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// The dtypes that are taken, in words.
        expected: String,
        /// The tensor's dtype.
        got: DType,
    },

    /// A tensor lies on a device that this build has no engine for.
    #[error("{op}: {argument} is on an unsupported device: expected {DEVICES}, got {got:?}")]
    Device {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// Where the tensor lies.
        got: DeviceLocation,
    },

    /// Candle could not allocate or copy memory of a device.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// The devices that this build has an engine for.
const DEVICES: &str = match cfg!(feature = "cuda") {
    true => "the CPU or a CUDA device (there is no Metal engine)",
    false => "the CPU (this build has no CUDA or Metal engine)",
};

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            error => candle_core::Error::wrap(error),
        }
    }
}
