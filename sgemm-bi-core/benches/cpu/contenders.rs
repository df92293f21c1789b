//! The contenders that are Rust code: our engine, and the `gemm` crate as Candle calls it.

use sgemm_bi_core::{CpuEngine, Gemm, Operands, SliceMut, SliceRef, View};

/// Something that computes products.
pub trait Contender {
    /// Its column in the table.
    fn name(&self) -> &'static str;

    /// Computes the product once; false when it has no such product.
    fn multiply(
        &self,
        gemm: &Gemm,
        lhs: SliceRef<'_>,
        rhs: SliceRef<'_>,
        out: SliceMut<'_>,
    ) -> bool;

    /// Called after a turn: time for its threads to fall asleep.
    fn rest(&self) {}
}

/// This crate's engine.
pub struct Ours {
    engine: CpuEngine,
}

impl Ours {
    pub fn new(engine: CpuEngine) -> Self {
        Ours { engine }
    }
}

impl Contender for Ours {
    fn name(&self) -> &'static str {
        "ours"
    }

    fn multiply(
        &self,
        gemm: &Gemm,
        lhs: SliceRef<'_>,
        rhs: SliceRef<'_>,
        out: SliceMut<'_>,
    ) -> bool {
        let result = self.engine.gemm(gemm, Operands::new(lhs, rhs, out));
        result.expect("the benchmark's problems are valid");
        true
    }
}

/// The `gemm` crate with the arguments of candle-core's CPU matmul.
pub struct GemmCrate {
    parallelism: gemm::Parallelism,
}

impl GemmCrate {
    /// The instruction set that this build of the crate may use.
    pub const LEVEL: &'static str = if cfg!(feature = "bench-gemm-avx512") {
        "0.19 with its x86-v4 feature (AVX-512), which candle-core does not turn on"
    } else {
        "0.19 with candle-core's features (AVX2 and FMA at most)"
    };

    pub fn new(threads: usize) -> Self {
        let parallelism = match threads {
            1 => gemm::Parallelism::None,
            threads => gemm::Parallelism::Rayon(threads),
        };
        GemmCrate { parallelism }
    }
}

impl Contender for GemmCrate {
    fn name(&self) -> &'static str {
        "gemm crate"
    }

    fn multiply(
        &self,
        gemm: &Gemm,
        lhs: SliceRef<'_>,
        rhs: SliceRef<'_>,
        out: SliceMut<'_>,
    ) -> bool {
        let (SliceRef::F32(lhs), SliceRef::F32(rhs), SliceMut::F32(out)) = (lhs, rhs, out) else {
            return false;
        };
        let strides = |view: View| (view.col_stride as isize, view.row_stride as isize);
        let (lhs_cs, lhs_rs) = strides(gemm.lhs());
        let (rhs_cs, rhs_rs) = strides(gemm.rhs());
        let (out_cs, out_rs) = strides(gemm.out());
        let (alpha, beta) = (0.0, 1.0);
        // SAFETY: the strides and sizes are those of dense matrices that fill the slices.
        unsafe {
            gemm::gemm(
                gemm.rows(),
                gemm.cols(),
                gemm.reduction(),
                out.as_mut_ptr(),
                out_cs,
                out_rs,
                false,
                lhs.as_ptr(),
                lhs_cs,
                lhs_rs,
                rhs.as_ptr(),
                rhs_cs,
                rhs_rs,
                alpha,
                beta,
                false,
                false,
                false,
                self.parallelism,
            );
        }
        true
    }
}
