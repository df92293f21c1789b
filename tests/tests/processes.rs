//! What only a process of its own can show: the environment variables, and threads that do not
//! start. The test runs this very binary again, for one test, with `CHILD` set.

use std::process::{Command, Output};

use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{CpuEngine, Dtype, Error, Gemm, Operands, Shape, WeightLayout};
use sgemm_bi_tests::{Data, hash::hash};

const CHILD: &str = "SGEMM_BI_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// A command that runs the named test of this binary as a child.
fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test is a program"));
    command.args(["--exact", test, "--nocapture", "--test-threads", "1"]);
    command.env(CHILD, "1").env_remove("SGEMM_BI_SIMD");
    command
}

/// What the child said after `said: `, on a line of its own.
#[track_caller]
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let line = text.lines().find_map(|line| line.split_once("said: "));
    line.unwrap_or_else(|| panic!("the child said nothing: {text}"))
        .1
        .to_owned()
}

#[test]
fn the_simd_level_of_the_environment() {
    if is_child() {
        match CpuEngine::new() {
            Ok(engine) => println!("said: {}", engine.simd()),
            Err(error @ (Error::UnknownSimd { .. } | Error::SimdUnavailable { .. })) => {
                println!("said: {error}");
            }
            Err(error) => panic!("another error: {error}"),
        }
        return;
    }
    let with = |value: &str| {
        let mut child = child("the_simd_level_of_the_environment");
        said(
            &child
                .env("SGEMM_BI_SIMD", value)
                .output()
                .expect("the test runs again"),
        )
    };
    let output = child("the_simd_level_of_the_environment").output();
    let best = Simd::detect();
    assert_eq!(said(&output.expect("the test runs again")), best.name());
    for simd in [Simd::Portable, Simd::Avx2, Simd::Avx512] {
        if simd <= best {
            assert_eq!(with(simd.name()), simd.name());
        } else {
            let expected = format!("this processor has no {simd}: the best level it has is {best}");
            assert_eq!(with(simd.name()), expected);
        }
    }
    for unknown in ["", "AVX2", "avx2 ", "sse", "avx1024"] {
        assert_eq!(
            with(unknown),
            format!(
                "SGEMM_BI_SIMD: unknown SIMD level {unknown:?}: \
                 expected one of portable, avx2, avx512"
            )
        );
    }
}

/// A large product's hash with the engine that the environment gives.
#[test]
fn the_environment_does_not_change_bits() {
    if is_child() {
        let shape = Shape {
            m: 130,
            k: 700,
            n: 190,
        };
        let x = Data::Normal.fill(Dtype::BF16, shape.m * shape.k, 1);
        let w = Data::Normal.fill(Dtype::BF16, shape.k * shape.n, 2);
        let mut y = vec![0.0f32; shape.m * shape.n];
        let forward = Gemm::forward(shape, Dtype::BF16, WeightLayout::OutIn);
        CpuEngine::new()
            .and_then(|engine| {
                let operands = Operands::new(x.as_ref(), w.as_ref(), &mut y);
                engine.gemm(&forward.with_out_dtype(Dtype::F32), operands)
            })
            .expect("a valid problem");
        let bits: Vec<_> = y.iter().map(|value| value.to_bits()).collect();
        println!("said: {}", hash(Dtype::F32, &[shape.m, shape.n], &bits));
        return;
    }
    let mut hashes = Vec::new();
    for simd in Simd::available() {
        for threads in ["1", "2", "5"] {
            let mut child = child("the_environment_does_not_change_bits");
            child
                .env("SGEMM_BI_SIMD", simd.name())
                .env("RAYON_NUM_THREADS", threads);
            hashes.push(said(&child.output().expect("the test runs again")));
        }
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

/// With stacks larger than any address space.
#[test]
fn threads_that_do_not_start() {
    if is_child() {
        let error = CpuEngine::new().and_then(|engine| engine.with_threads(3));
        match error {
            Err(error @ Error::ThreadPool { .. }) => {
                let source = std::error::Error::source(&error).expect("it has a source");
                assert!(!source.to_string().is_empty());
                println!("said: {error}");
            }
            Err(error) => panic!("another error: {error}"),
            Ok(_) => println!("said: started"),
        }
        return;
    }
    let mut child = child("threads_that_do_not_start");
    let output = child
        .env("RUST_MIN_STACK", (1u64 << 47).to_string())
        .output();
    let said = said(&output.expect("the test runs again"));
    assert_eq!(said, "could not start 3 threads");
}

/// Zero asks for as many threads as rayon would start by itself.
#[test]
fn zero_threads_are_the_default_number() {
    let engine = CpuEngine::new().and_then(|engine| engine.with_threads(0));
    let mut out = [0.0f32];
    let gemm = Gemm::matmul(Shape { m: 1, k: 2, n: 1 }, Dtype::F32);
    engine
        .and_then(|engine| {
            engine.gemm(
                &gemm,
                Operands::new(&[1.0f32, 2.0], &[3.0f32, 4.0], &mut out),
            )
        })
        .expect("a valid problem");
    assert_eq!(out, [11.0]);
}
