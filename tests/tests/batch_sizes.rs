//! Rows do not depend on the batch they come in, at the sizes of public bug reports.

use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{Dtype, Gemm, Operands, Shape, WeightLayout};
use sgemm_bi_tests::compare::assert_bits;
use sgemm_bi_tests::engine::Cpu;
use sgemm_bi_tests::{Buffer, Data, Engine, Problem, Reference};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];
const LAYOUTS: [WeightLayout; 2] = [WeightLayout::InOut, WeightLayout::OutIn];

/// The levels with vector instructions: these products are too large for the others.
fn fast_engines() -> Vec<Cpu> {
    let vector: Vec<_> = Simd::available()
        .filter(|&simd| simd != Simd::Portable)
        .collect();
    if vector.is_empty() {
        println!("reduced: this processor has the portable level only");
        return vec![Cpu::new(Simd::Portable, 2)];
    }
    vector.into_iter().map(|simd| Cpu::new(simd, 2)).collect()
}

/// Rows of the problem, as a problem of their own.
fn rows_of(whole: &Problem, rows: std::ops::Range<usize>) -> Problem {
    let (r, cols) = (whole.gemm.reduction(), whole.gemm.cols());
    let shape = Shape {
        m: rows.len(),
        k: r,
        n: cols,
    };
    let gemm = Gemm::matmul(shape, whole.gemm.dtype()).with_out_dtype(whole.gemm.out_dtype());
    let (lhs, out) = (gemm.lhs(), gemm.out());
    Problem {
        gemm: gemm.with_views(lhs, whole.gemm.rhs(), out),
        lhs: whole.lhs.slice(rows.start * r..rows.end * r),
        ..whole.clone()
    }
}

/// Compares a few rows' first and last columns with the reference: whole tiles and cut ones.
fn assert_corners(what: &str, problem: &Problem, got: &[u32]) {
    let [rows, cols] = problem.shape();
    let (r, dtype, out) = (
        problem.gemm.reduction(),
        problem.gemm.dtype(),
        problem.gemm.out_dtype(),
    );
    let n = cols.min(9);
    for row in [0, 1, rows / 2, rows - 1] {
        for first in [0, cols - n] {
            let column = |i: usize| problem.rhs.bits(i / n * cols + first + i % n);
            let corner = Problem {
                gemm: Gemm::matmul(Shape { m: 1, k: r, n }, dtype).with_out_dtype(out),
                lhs: problem.lhs.slice(row * r..(row + 1) * r),
                rhs: Buffer::from_bits(dtype, r * n, column),
                bias: None,
                start: None,
            };
            let from = row * cols + first;
            let what = format!("{what}: row {row}, columns from {first}");
            assert_bits(
                &what,
                out,
                &[1, n],
                &got[from..from + n],
                &corner.run(&Reference),
            );
        }
    }
}

/// The first and the last `m` rows alone have the bits they have among all.
fn assert_batches_agree(engine: &Cpu, whole: &Problem, sizes: &[usize]) {
    let [all, cols] = whole.shape();
    let expected = whole.run(engine);
    assert_corners(&engine.name(), whole, &expected);
    for &m in sizes {
        for rows in [0..m, all - m..all] {
            let got = rows_of(whole, rows.clone()).run(engine);
            let what = format!("{}: rows {rows:?} of {:?}", engine.name(), whole.gemm);
            let expected = &expected[rows.start * cols..rows.end * cols];
            assert_bits(&what, whole.gemm.out_dtype(), &[m, cols], &got, expected);
        }
    }
}

#[test]
fn one_row_or_two_of_1000_by_1000_in_f32() {
    let shape = Shape {
        m: 19,
        k: 1000,
        n: 1000,
    };
    for engine in fast_engines() {
        for layout in LAYOUTS {
            for gemm in [
                Gemm::forward(shape, Dtype::F32, layout),
                Gemm::input_gradient(shape, Dtype::F32, layout),
            ] {
                let whole = Problem::seeded(gemm, Data::Normal, 9);
                assert_batches_agree(&engine, &whole, &[1, 2, 3, 8]);
            }
        }
    }
}

#[test]
fn one_sequence_or_two_through_1024_to_512() {
    let shape = Shape {
        m: 200,
        k: 1024,
        n: 512,
    };
    for engine in fast_engines() {
        for dtype in DTYPES {
            let gemm = Gemm::forward(shape, dtype, WeightLayout::OutIn);
            let whole = Problem::seeded(gemm, Data::Normal, 10);
            assert_batches_agree(&engine, &whole, &[1, 100]);
        }
    }
}

#[test]
fn bf16_rows_of_2048_in_any_batch() {
    let shape = Shape {
        m: 1024,
        k: 2048,
        n: 2048,
    };
    let engines = fast_engines();
    let engine = engines.last().expect("there is a level");
    let gemm = Gemm::forward(shape, Dtype::BF16, WeightLayout::OutIn);
    let whole = Problem::seeded(gemm, Data::Normal, 11);
    assert_batches_agree(engine, &whole, &[1, 2, 17, 33, 128, 257]);
}

#[test]
fn sizes_that_are_no_multiple_of_anything() {
    let shape = Shape {
        m: 513,
        k: 384,
        n: 769,
    };
    for engine in fast_engines() {
        for dtype in DTYPES {
            for layout in LAYOUTS {
                for gemm in [
                    Gemm::forward(shape, dtype, layout),
                    Gemm::input_gradient(shape, dtype, layout),
                    Gemm::weight_gradient(shape, dtype, layout),
                ] {
                    let problem = Problem::seeded(gemm, Data::Normal, 18);
                    let what = format!("{}: {:?}", engine.name(), problem.gemm);
                    assert_corners(&what, &problem, &problem.run(&engine));
                }
            }
        }
    }
}

/// The weight gradient of [4, 128, 128] has R = 512, one chunk, one call; a batch of 64 such
/// sequences may be split at 4096 rows.
#[test]
fn the_weight_gradient_of_a_split_batch() {
    const WIDTH: usize = 128;
    let gradient = |engine: &dyn Engine, x: &Buffer, dy: &Buffer, splits: &[usize]| {
        let mut dw = Buffer::from(vec![0.0f32; WIDTH * WIDTH]);
        for rows in splits.windows(2).map(|ends| ends[0]..ends[1]) {
            let shape = Shape {
                m: rows.len(),
                k: WIDTH,
                n: WIDTH,
            };
            let gemm = Gemm::weight_gradient(shape, x.dtype(), WeightLayout::OutIn).accumulating();
            let part = rows.start * WIDTH..rows.end * WIDTH;
            let (x, dy) = (x.slice(part.clone()), dy.slice(part));
            let operands = Operands::new(x.as_ref(), dy.as_ref(), dw.as_mut());
            engine.gemm(&gemm, operands).expect("a valid problem");
        }
        dw.all_bits()
    };
    for dtype in DTYPES {
        let x = Data::Normal.fill(dtype, 8192 * WIDTH, 1);
        let dy = Data::Normal.fill(dtype, 8192 * WIDTH, 2);
        let one_call = gradient(&Reference, &x, &dy, &[0, 512]);
        for engine in fast_engines() {
            let run = |splits: &[usize]| gradient(&engine, &x, &dy, splits);
            let assert = |got: &[u32], expected: &[u32]| {
                let shape = [WIDTH, WIDTH];
                assert_bits(&engine.name(), Dtype::F32, &shape, got, expected);
            };
            assert(&run(&[0, 512]), &one_call);
            assert(&run(&[0, 4096, 8192]), &run(&[0, 8192]));
            assert_ne!(run(&[0, 256, 512]), one_call, "not promised, and not so");
        }
    }
}
