//! What it takes until an engine works, and what a call costs the host.

use std::error::Error;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use sgemm_bi_core::cuda::{CudaEngine, CudaOperands};
use sgemm_bi_core::{Dtype, Gemm, Shape, WeightLayout};

/// Prints times since `begin`, the start of `main`. Kernels that are in the cache on disk are
/// loaded; `SGEMM_BI_CACHE_DIR=` makes it compile them.
pub fn run(begin: Instant) -> Result<(), Box<dyn Error>> {
    // SAFETY: loading the driver only initialises it.
    let driver = unsafe { libloading::Library::new("libcuda.so.1") };
    driver.map_err(|why| format!("no NVIDIA driver: {why}"))?;
    let mut last = begin;
    let mut lap = |what: &str| {
        let now = Instant::now();
        println!("{what}: {:.1} ms", 1e3 * (now - last).as_secs_f64());
        last = now;
    };
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let zeros = |len| stream.alloc_zeros::<f32>(len);
    let (x, w, mut y) = (zeros(1 << 16)?, zeros(1 << 16)?, zeros(1 << 16)?);
    stream.synchronize()?;
    lap("driver, context, stream and memory");
    let engine = CudaEngine::on_stream(stream.clone())?;
    lap("engine");
    let shape = Shape {
        m: 256,
        k: 256,
        n: 256,
    };
    let forward = Gemm::forward(shape, Dtype::F32, WeightLayout::OutIn);
    let gradient = Gemm::weight_gradient(shape, Dtype::F32, WeightLayout::OutIn);
    engine.gemm(&forward, CudaOperands::new(&x, &w, &mut y))?;
    stream.synchronize()?;
    lap("first product");
    engine.gemm(&gradient, CudaOperands::new(&x, &w, &mut y))?;
    stream.synchronize()?;
    lap("first product of another kernel");

    // Few calls at a time, so that the queue of launches never fills.
    let (mut spent, mut calls) = (Duration::ZERO, 0);
    while calls < 10_000 {
        let start = Instant::now();
        for _ in 0..100 {
            engine.gemm(&forward, CudaOperands::new(&x, &w, &mut y))?;
        }
        spent += start.elapsed();
        calls += 100;
        stream.synchronize()?;
    }
    let each = spent / calls;
    println!("host time of a call: {:.2} µs", 1e6 * each.as_secs_f64());
    Ok(())
}
