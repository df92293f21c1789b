//! One engine, many callers: calls at the same time, calls from inside other thread pools, and calls
//! one after another.

use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{Dtype, Gemm, Shape, WeightLayout};
use sgemm_bi_tests::compare::assert_bits;
use sgemm_bi_tests::engine::Cpu;
use sgemm_bi_tests::{Data, Engine, Problem, Reference};

/// Problems that take every path, with the bits they should have.
fn problems() -> Vec<(Problem, Vec<u32>)> {
    let shape = |m, k, n| Shape { m, k, n };
    let (f32, bf16, f16) = (Dtype::F32, Dtype::BF16, Dtype::F16);
    let (in_out, out_in) = (WeightLayout::InOut, WeightLayout::OutIn);
    let gemms = [
        Gemm::forward(shape(1, 700, 900), f32, out_in).with_bias(f32),
        Gemm::forward(shape(96, 200, 130), bf16, out_in),
        Gemm::input_gradient(shape(130, 90, 200), f16, in_out),
        Gemm::weight_gradient(shape(4200, 9, 33), bf16, out_in).accumulating(),
        Gemm::forward(shape(5, 8195, 40), f16, in_out),
        Gemm::matmul(shape(64, 64, 64), f32),
    ];
    let problems = gemms.map(|gemm| Problem::seeded(gemm, Data::Normal, 5));
    problems
        .into_iter()
        .map(|problem| {
            let expected = problem.run(&Reference);
            (problem, expected)
        })
        .collect()
}

#[track_caller]
fn check(engine: &dyn Engine, (problem, expected): &(Problem, Vec<u32>)) {
    let (dtype, shape) = (problem.gemm.out_dtype(), problem.shape());
    assert_bits(
        &engine.name(),
        dtype,
        &shape,
        &problem.run(engine),
        expected,
    );
}

#[test]
fn calls_at_the_same_time_do_not_meet() {
    let problems = problems();
    for simd in Simd::available() {
        for threads in [1, 2, 8] {
            let engine = Cpu::new(simd, threads);
            std::thread::scope(|scope| {
                for caller in 0..6 {
                    let (engine, problems) = (&engine, &problems);
                    scope.spawn(move || {
                        for i in 0..problems.len() {
                            check(engine, &problems[(i + caller) % problems.len()]);
                        }
                    });
                }
            });
        }
    }
}

#[test]
fn runs_repeat() {
    let problems = problems();
    let engine = Cpu::new(Simd::detect(), 8);
    for _ in 0..20 {
        problems.iter().for_each(|problem| check(&engine, problem));
    }
}

/// An engine called by the workers of another pool, and by its own kind in turn, must not wait
/// for itself.
#[test]
fn calls_from_inside_thread_pools_finish() {
    let problems = problems();
    let outer = rayon::ThreadPoolBuilder::new()
        .num_threads(3)
        .build()
        .expect("threads start");
    for threads in [1, 2] {
        let engine = Cpu::new(Simd::detect(), threads);
        outer.scope(|scope| {
            for problem in &problems {
                let engine = &engine;
                scope.spawn(move |scope| {
                    check(engine, problem);
                    scope.spawn(move |_| check(engine, problem));
                });
            }
        });
    }
}
