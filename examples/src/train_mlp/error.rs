//! Why a training run failed.

use std::io;
use std::path::PathBuf;

/// Why a training run failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bundled digits are malformed.
    #[error(transparent)]
    Data(#[from] crate::data::DataError),
    /// A file could not be written.
    #[error("{option}: cannot write {}: {source}", path.display())]
    Write {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Two options name one file.
    #[error("--out and --audit name one file: {}", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// Standard output is closed or full.
    #[error("cannot write to standard output: {0}")]
    Stdout(#[from] io::Error),
    /// The threads could not be started.
    #[error("--threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// The engine refused its settings.
    #[error(transparent)]
    Engine(#[from] sgemm_bi_core::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The weights could not be put in safetensors format.
    #[error("safetensors: {0}")]
    Format(#[from] safetensors::SafeTensorError),
    /// The weights are not the expected ones.
    #[error("the weights differ from --expect\n  expected {expected}\n  got      {got}")]
    Mismatch {
        /// The hash asked for.
        expected: blake3::Hash,
        /// The hash of the weights.
        got: blake3::Hash,
    },
}
