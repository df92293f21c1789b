//! The CPU engine: the contract's bits, packed, blocked, vectorised and threaded.

mod batch;
mod bias_gradient;
mod driver;
mod finish;
mod float_env;
mod isa;
mod kernel;
mod pack;
mod product;
mod replay;
mod scratch;
mod short_reduction;
mod simd;
mod small_m;
mod softmax;
mod team;

use crate::error::{Error, Result};
use crate::{BiasGradient, Gemm, Operands, SliceMut, SliceRef, Tier};
use batch::Batch;
use product::Product;
use team::Team;

use std::sync::Arc;

pub use float_env::with_default_float_env;
pub use simd::Simd;

/// An engine on the CPU's threads.
///
/// Bits: the contract's, on every processor, at every SIMD level and with any number of threads.
#[derive(Clone, Debug)]
pub struct CpuEngine {
    simd: Simd,
    /// Threads of its own, or else the global ones.
    pool: Option<Arc<rayon::ThreadPool>>,
    scratch: Arc<scratch::Pool>,
}

/// Evaluates an expression with the token of a SIMD level.
macro_rules! with_isa {
    ($simd:expr, $isa:ident => $body:expr) => {
        match $simd {
            Simd::Portable => {
                let $isa = $crate::cpu::isa::Portable;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => {
                // SAFETY: an engine's level is one that the processor has (`Simd::require`).
                let $isa = unsafe { $crate::cpu::isa::Avx2::new() };
                $body
            }
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => {
                // SAFETY: as above.
                let $isa = unsafe { $crate::cpu::isa::Avx512::new() };
                $body
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("no processor of this architecture has the level"),
        }
    };
}
use with_isa;

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
            scratch: Arc::new(scratch::Pool::new()),
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
            pool: Some(Arc::new(pool)),
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
    pub fn gemm(&self, gemm: &Gemm, mut operands: Operands<'_>) -> Result<()> {
        gemm.validate(&operands)?;
        match gemm.tier() {
            Tier::Scalar => {
                if gemm.batch_len() > 0 && gemm.rows() > 0 && gemm.cols() > 0 {
                    let first = Product::new(gemm, &mut operands);
                    self.scalar(&Batch::new(first, gemm.batch()));
                }
                Ok(())
            }
            Tier::TensorCore(model) => {
                self.in_pool(|| replay::gemm(gemm, model, self.simd, operands))
            }
        }
    }

    /// The most working memory in bytes that the engine holds for each call in progress, and
    /// keeps for the next ones, whatever the sizes: it depends on the SIMD level and the number
    /// of threads alone. Most calls take far less: packed panels, and the chains of one block of
    /// the output.
    ///
    /// It is about products in the scalar tier and bias gradients. A product in a tensor-core tier
    /// and a row operation allocate what they need and keep nothing: the tiles of 16 tasks for each
    /// thread, and what [`log_softmax`](Self::log_softmax) says.
    pub fn scratch_limit(&self) -> usize {
        fn of<I: isa::Isa>(_: I, threads: usize) -> usize {
            // Chunks side by side: each thread's rows, chains and transposed weights.
            let rows = small_m::MOST_ROWS * crate::contract::CHUNK;
            let side_by_side = threads * 4 * (rows + 2 * small_m::CHAIN_VALUES);
            // A thread holds at most two scratches: an entry's and a task's.
            2 * threads * (driver::scratch_limit::<I>() + side_by_side)
        }
        with_isa!(self.simd, isa => of(isa, self.team().threads()))
    }

    /// The scalar tier (contract section 4).
    fn scalar(&self, batch: &Batch<'_>) {
        let team = self.team();
        with_isa!(self.simd, isa => batch.run(isa, team, &self.scratch));
    }

    fn team(&self) -> Team<'_> {
        Team::of(self.pool.as_deref())
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
        let (dy, mut db) = (dy.into(), db.into());
        problem.validate(dy, &db)?;
        if let SliceMut::F32(db) = &mut db
            && !db.is_empty()
        {
            let product = bias_gradient::product(problem, dy, db);
            self.scalar(&Batch::new(product, &[]));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
