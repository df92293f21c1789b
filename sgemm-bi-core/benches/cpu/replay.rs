//! The tensor-core tier's replay beside the scalar tier's f32, in turns.

use std::time::Instant;

use half::{bf16, f16};
use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{
    CpuEngine, Dtype, Gemm, Operands, Shape, SliceRef, TensorCoreModel, Tier, WeightLayout,
};

/// The product: 512 rows and columns, a reduction of one chunk.
const SHAPE: Shape = Shape {
    m: 512,
    k: 4096,
    n: 512,
};

/// Prints a row for each SIMD level, model and dtype: the speed, and our f32 time over its time.
pub fn run(pairs: usize) -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "512×4096×512 fwd [out,in], GFLOP/s, packing included; f32 time over the replay's time"
    );
    let values = |len: usize, seed: u64| {
        let mut state = seed;
        let next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(len).collect::<Vec<f32>>()
    };
    let Shape { m, k, n } = SHAPE;
    let (x, w) = (values(m * k, 1 << 40 | 7), values(n * k, 1 << 41 | 5));
    let to_bf16 = |v: &[f32]| v.iter().map(|&v| bf16::from_f32(v)).collect::<Vec<_>>();
    let to_f16 = |v: &[f32]| v.iter().map(|&v| f16::from_f32(v)).collect::<Vec<_>>();
    let (x_bf16, w_bf16, x_f16, w_f16) = (to_bf16(&x), to_bf16(&w), to_f16(&x), to_f16(&w));
    for simd in Simd::available() {
        let engine = CpuEngine::new()?.with_simd(simd)?;
        let timed = |gemm: &Gemm, lhs: SliceRef<'_>, rhs: SliceRef<'_>| {
            let mut out = vec![0.0f32; m * n];
            let begin = Instant::now();
            engine.gemm(gemm, Operands::new(lhs, rhs, &mut out))?;
            Ok::<f64, sgemm_bi_core::Error>(begin.elapsed().as_secs_f64())
        };
        let forward =
            |dtype| Gemm::forward(SHAPE, dtype, WeightLayout::OutIn).with_out_dtype(Dtype::F32);
        for model in [TensorCoreModel::Hopper, TensorCoreModel::Ampere] {
            for dtype in [Dtype::BF16, Dtype::F16] {
                let replayed = forward(dtype).with_tier(Tier::TensorCore(model));
                let scalar = forward(Dtype::F32);
                let mut times = Vec::new();
                for _ in 0..pairs {
                    let (lhs, rhs): (SliceRef<'_>, SliceRef<'_>) = match dtype {
                        Dtype::F16 => ((&x_f16[..]).into(), (&w_f16[..]).into()),
                        _ => ((&x_bf16[..]).into(), (&w_bf16[..]).into()),
                    };
                    let replay = timed(&replayed, lhs, rhs)?;
                    let f32 = timed(&scalar, (&x[..]).into(), (&w[..]).into())?;
                    times.push((replay, f32 / replay));
                }
                let median = |of: fn(&(f64, f64)) -> f64| {
                    let mut values: Vec<f64> = times.iter().map(of).collect();
                    values.sort_by(f64::total_cmp);
                    values[values.len() / 2]
                };
                let flops = 2.0 * (m * k * n) as f64;
                println!(
                    "{simd:>8} {model:>6} {dtype:>4} {:6.1} {:6.3}",
                    flops / median(|t| t.0) / 1e9,
                    median(|t| t.1)
                );
            }
        }
    }
    Ok(())
}
