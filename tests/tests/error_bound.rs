//! The rounding error of the scalar tier against binary64, by a bound derived from the chain.
//!
//! With u = 2⁻²⁴, each fused multiply-add and each addition multiplies its exact result by a
//! factor (1 + δ), |δ| ≤ u (no underflow here: the data are products of values above 2⁻²⁴ in
//! magnitude, or zero). The term a[r]·b[r] of a chunk of L elements passes at most L of them in
//! the chain, and then one for each of the C chunks in the sum, and one for the bias. So the
//! total is Σ a[r]·b[r]·(1 + θ_r) + start·(1 + θ) + bias·(1 + θ′), where every |θ| ≤ γₙ = n·u /
//! (1 − n·u) with n = min(R, 4096) + C + 1, and
//!
//! |total − exact| ≤ γₙ · (Σ |a[r]·b[r]| + |start| + |bias|).
//!
//! n stops growing at 4096 but for the C = R / 4096: a single chain would have n = R. The product
//! of two f32 values is exact in binary64 but for the significand's last bits (one rounding of
//! 2⁻⁵³ each, R additions): the comparison allows R·2⁻⁵² of the same sum for it. A 16-bit output
//! adds half a unit in its last place.

use sgemm_bi_core::contract::CHUNK;
use sgemm_bi_core::{Dtype, Element, Gemm, Shape, WeightLayout};
use sgemm_bi_tests::engine::Cpu;
use sgemm_bi_tests::{Buffer, Data, Engine, Problem};

use half::{bf16, f16};

fn values(buffer: &Buffer) -> Vec<f64> {
    match buffer {
        Buffer::F32(v) => v.iter().map(|x| f64::from(*x)).collect(),
        Buffer::BF16(v) => v.iter().map(|x| f64::from(x.widen())).collect(),
        Buffer::F16(v) => v.iter().map(|x| f64::from(x.widen())).collect(),
    }
}

fn value(dtype: Dtype, bits: u32) -> f64 {
    match dtype {
        Dtype::F32 => f64::from(f32::from_bits(bits)),
        Dtype::BF16 => f64::from(bf16::from_bits(bits as u16).widen()),
        Dtype::F16 => f64::from(f16::from_bits(bits as u16).widen()),
        other => panic!("{other}"),
    }
}

/// Half a unit in the last place, relative, and half the smallest subnormal.
fn output_rounding(dtype: Dtype) -> (f64, f64) {
    match dtype {
        Dtype::BF16 => (2f64.powi(-8), 0.0),
        Dtype::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        _ => (0.0, 0.0),
    }
}

/// The largest error as a fraction of its bound.
fn check(engine: &dyn Engine, problem: &Problem) -> f64 {
    let gemm = &problem.gemm;
    let (r, cols) = (gemm.reduction(), gemm.cols());
    let (lhs, rhs) = (values(&problem.lhs), values(&problem.rhs));
    let bias = problem.bias.as_ref().map(values);
    let start = problem.start.as_ref().map(values);
    let n = (r.min(CHUNK) + r.div_ceil(CHUNK) + 1) as f64;
    let u = 2f64.powi(-24);
    let gamma = n * u / (1.0 - n * u) + r as f64 * 2f64.powi(-52);
    let (relative, absolute) = output_rounding(gemm.out_dtype());
    let mut worst = 0f64;
    for (i, bits) in problem.run(engine).into_iter().enumerate() {
        let (row, col) = (i / cols, i % cols);
        let bias = bias.as_ref().map_or(0.0, |bias| bias[col]);
        let start = start.as_ref().map_or(0.0, |start| start[i]);
        let terms = (0..r).map(|k| lhs[row * r + k] * rhs[k * cols + col]);
        let exact = start + terms.clone().sum::<f64>() + bias;
        let magnitude = start.abs() + terms.map(f64::abs).sum::<f64>() + bias.abs();
        let bound = gamma * magnitude;
        let bound = bound + relative * (exact.abs() + bound) + absolute;
        let error = (value(gemm.out_dtype(), bits) - exact).abs();
        assert!(
            error <= bound,
            "{}, {gemm:?}: at ({row}, {col}) the error {error:e} is over the bound {bound:e}",
            engine.name()
        );
        worst = worst.max(error / bound.max(f64::MIN_POSITIVE));
    }
    worst
}

#[test]
fn errors_stay_below_the_bound_of_the_chain() {
    let best = sgemm_bi_core::cpu::Simd::detect();
    let engine = Cpu::new(best, 2);
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
        for (m, k, n) in [
            (7, 1, 9),
            (9, 100, 11),
            (3, CHUNK, 5),
            (2, 5 * CHUNK + 1, 3),
        ] {
            for data in [Data::Normal, Data::Uniform] {
                let shape = Shape { m, k, n };
                let forward = Gemm::forward(shape, dtype, WeightLayout::OutIn);
                let wide = forward
                    .clone()
                    .with_out_dtype(Dtype::F32)
                    .with_bias(Dtype::F32);
                let accumulating = wide.clone().accumulating();
                for gemm in [forward, wide, accumulating] {
                    let worst = check(&engine, &Problem::seeded(gemm, data, 7));
                    // Not an empty claim: the errors are there.
                    assert!(k == 1 || worst > 0.0);
                }
            }
        }
    }
}
