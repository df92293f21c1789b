//! The engines under one name: the naive reference, and the CPU engine at each SIMD level and
//! number of threads.

use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{
    BiasGradient, CpuEngine, Gemm, Operands, Result, SliceMut, SliceRef, reference,
};

/// Something that computes the contract's products.
pub trait Engine {
    /// What it is called in messages.
    fn name(&self) -> String;
    /// Computes a product.
    fn gemm(&self, gemm: &Gemm, operands: Operands<'_>) -> Result<()>;
    /// Computes a bias gradient.
    fn bias_gradient(
        &self,
        problem: &BiasGradient,
        dy: SliceRef<'_>,
        db: SliceMut<'_>,
    ) -> Result<()>;
}

/// The naive reference.
#[derive(Clone, Copy, Debug)]
pub struct Reference;

impl Engine for Reference {
    fn name(&self) -> String {
        "reference".into()
    }

    fn gemm(&self, gemm: &Gemm, operands: Operands<'_>) -> Result<()> {
        reference::gemm(gemm, operands)
    }

    fn bias_gradient(
        &self,
        problem: &BiasGradient,
        dy: SliceRef<'_>,
        db: SliceMut<'_>,
    ) -> Result<()> {
        reference::bias_gradient(problem, dy, db)
    }
}

/// The CPU engine on a number of threads of its own.
#[derive(Clone, Debug)]
pub struct Cpu {
    engine: CpuEngine,
    threads: usize,
}

impl Cpu {
    /// The engine at a level that this processor has.
    pub fn new(simd: Simd, threads: usize) -> Self {
        let engine = CpuEngine::new()
            .and_then(|engine| engine.with_simd(simd))
            .and_then(|engine| engine.with_threads(threads))
            .unwrap_or_else(|error| panic!("{simd}, {threads} threads: {error}"));
        Cpu { engine, threads }
    }
}

impl Engine for Cpu {
    fn name(&self) -> String {
        format!(
            "CPU engine, {}, {} threads",
            self.engine.simd(),
            self.threads
        )
    }

    fn gemm(&self, gemm: &Gemm, operands: Operands<'_>) -> Result<()> {
        self.engine.gemm(gemm, operands)
    }

    fn bias_gradient(
        &self,
        problem: &BiasGradient,
        dy: SliceRef<'_>,
        db: SliceMut<'_>,
    ) -> Result<()> {
        self.engine.bias_gradient(problem, dy, db)
    }
}

/// The CPU engine at every SIMD level that this processor has, with 1, 2 and 8 threads.
///
/// Prints the levels that it lacks: what was not tested is never silent.
pub fn engines() -> Vec<Cpu> {
    let available: Vec<_> = Simd::available().collect();
    for simd in [Simd::Portable, Simd::Avx2, Simd::Avx512] {
        if !available.contains(&simd) {
            println!("skipped: SIMD level {simd}, which this processor does not have");
        }
    }
    let levels = available.into_iter();
    levels
        .flat_map(|simd| [1, 2, 8].map(|threads| Cpu::new(simd, threads)))
        .collect()
}
