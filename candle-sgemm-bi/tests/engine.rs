//! A process whose engine cannot be made: every operation says why, and none panics.

mod common;

use candle_core::{DType, Module};
use candle_sgemm_bi::{Linear, matmul};
use common::*;

#[test]
fn a_bad_simd_level_is_an_error_of_every_operation() {
    // SAFETY: the only test of this binary; no other thread reads the environment yet.
    unsafe { std::env::set_var("SGEMM_BI_SIMD", "sse9") };
    let (a, b) = (random(1, (2, 2), DType::F32), random(2, (2, 2), DType::F32));
    let parts = [
        "the CPU engine could not be created",
        "SGEMM_BI_SIMD",
        "sse9",
        "avx512",
    ];
    for _ in 0..2 {
        assert_error(matmul(&a, &b), &parts);
        assert_error(Linear::new(b.clone(), None).forward(&a), &parts);
    }
}
