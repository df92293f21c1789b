//! Many threads, several streams, one context: each result is its own.

use sgemm_bi_core::{Dtype, Gemm, Shape, WeightLayout};
use sgemm_bi_tests::compare::assert_bits;
use sgemm_bi_tests::{Cuda, Data, Problem};

/// Problems that take workspace, and some that do not, in several dtypes: kernels that no other
/// test has loaded may be among them.
fn problems() -> Vec<Problem> {
    let mut problems = Vec::new();
    for (i, dtype) in [Dtype::F32, Dtype::BF16, Dtype::F16]
        .into_iter()
        .enumerate()
    {
        for (m, k, n) in [(40, 9000, 50), (3, 9000, 70), (300, 64, 200), (1, 700, 1)] {
            let shape = Shape { m, k, n };
            let forward = Gemm::forward(shape, dtype, WeightLayout::OutIn).with_bias(dtype);
            problems.push(Problem::seeded(forward, Data::Normal, i as u64));
            let gradient = Gemm::weight_gradient(shape, dtype, WeightLayout::InOut).accumulating();
            problems.push(Problem::seeded(gradient, Data::Wide, i as u64));
        }
    }
    problems
}

#[test]
fn threads_with_streams_of_their_own_do_not_disturb_each_other() {
    let Some(cuda) = Cuda::new() else { return };
    let problems = problems();
    let expected: Vec<_> = problems.iter().map(|problem| problem.run(&cuda)).collect();
    let check = |cuda: &Cuda, i: usize| {
        let (problem, expected) = (&problems[i % problems.len()], &expected[i % problems.len()]);
        let what = format!("{:?}", problem.gemm);
        assert_bits(
            &what,
            problem.gemm.out_dtype(),
            &problem.shape(),
            &problem.run(cuda),
            expected,
        );
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (cuda, check) = (&cuda, &check);
            scope.spawn(move || {
                let streams: Vec<_> = (0..3)
                    .map(|_| cuda.engine.context().new_stream().expect("a stream"))
                    .map(|stream| sgemm_bi_core::CudaEngine::on_stream(stream).expect("an engine"))
                    .map(|engine| Cuda {
                        engine,
                        shift: thread % 2,
                    })
                    .collect();
                for i in 0..60 {
                    check(&streams[i % 3], i * 7 + thread);
                }
            });
        }
    });
}

#[test]
fn one_engine_serves_many_threads_on_one_stream() {
    let Some(cuda) = Cuda::new() else { return };
    let problems = problems();
    let expected: Vec<_> = problems.iter().map(|problem| problem.run(&cuda)).collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (cuda, problems, expected) = (&cuda, &problems, &expected);
            scope.spawn(move || {
                for i in (0..problems.len()).map(|i| (i + thread) % problems.len()) {
                    assert!(
                        problems[i].run(cuda) == expected[i],
                        "{:?}",
                        problems[i].gemm
                    );
                }
            });
        }
    });
}
