//! The CPU engine: the contract's bits, packed, blocked, vectorised and threaded.

mod replay;
mod simd;
mod softmax;

use crate::error::{Error, Result};
use crate::{BiasGradient, Gemm, Operands, SliceMut, SliceRef, Tier};

pub use simd::Simd;

/// An engine on the CPU's threads.
///
/// Bits: the contract's, on every processor, at every SIMD level and with any number of threads.
#[derive(Clone, Debug)]
pub struct CpuEngine {
    simd: Simd,
    pool: Option<std::sync::Arc<rayon::ThreadPool>>,
}

impl CpuEngine {
    /// An engine at the best SIMD level that the processor has, or the one that the environment
    /// variable `SGEMM_BI_SIMD` names (`portable`, `avx2`, `avx512`), on rayon's global threads
    /// (`RAYON_NUM_THREADS`).
    ///
    /// Errors: [`Error::UnknownSimd`], [`Error::SimdUnavailable`].
    pub fn new() -> Result<Self> {
        Ok(CpuEngine {
            simd: Simd::from_environment()?,
            pool: None,
        })
    }

    /// The same engine at a given SIMD level.
    ///
    /// Errors: [`Error::SimdUnavailable`].
    pub fn with_simd(self, simd: Simd) -> Result<Self> {
        Ok(CpuEngine {
            simd: simd.require()?,
            ..self
        })
    }

    /// The same engine on `threads` threads of its own.
    ///
    /// Errors: [`Error::ThreadPool`].
    pub fn with_threads(self, threads: usize) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|source| Error::ThreadPool { threads, source })?;
        Ok(CpuEngine {
            pool: Some(std::sync::Arc::new(pool)),
            ..self
        })
    }

    /// The SIMD level.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// Computes `out = lhs · rhs (+ bias)`, or adds to `out`.
    ///
    /// Errors: those of [`Gemm::validate`], and [`Error::UnsupportedTier`].
    pub fn gemm(&self, gemm: &Gemm, operands: Operands<'_>) -> Result<()> {
        if let Tier::TensorCore(model) = gemm.tier() {
            return self.in_pool(|| replay::gemm(gemm, model, self.simd, operands));
        }
        crate::reference::gemm(gemm, operands)
    }

    /// Runs `work` on this engine's threads.
    fn in_pool<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Computes `db = Σ rows of dy`, or adds to `db`.
    ///
    /// Errors: those of [`BiasGradient::validate`].
    pub fn bias_gradient<'a>(
        &self,
        problem: &BiasGradient,
        dy: impl Into<SliceRef<'a>>,
        db: impl Into<SliceMut<'a>>,
    ) -> Result<()> {
        crate::reference::bias_gradient(problem, dy, db)
    }
}
