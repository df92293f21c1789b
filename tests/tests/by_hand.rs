//! Bits computed by hand from the contract, on the reference and on every form of the CPU engine.

use half::{bf16, f16};
use sgemm_bi_core::contract::CHUNK;
use sgemm_bi_core::{BiasGradient, Dtype, Gemm, Shape};
use sgemm_bi_tests::compare::assert_f32_bits;
use sgemm_bi_tests::{Buffer, Engine, Problem, Reference, engines};

const CANONICAL_NAN: f32 = f32::from_bits(0x7FFF_FFFF);
/// 2^24: adding 1 to it is lost to the tie, adding 2 is not.
const BIG: f32 = 16_777_216.0;

fn everywhere(mut check: impl FnMut(&dyn Engine)) {
    check(&Reference);
    engines().iter().for_each(|engine| check(engine));
}

fn f32_problem(row: &[f32], column: &[f32]) -> Problem {
    let shape = Shape {
        m: 1,
        k: row.len(),
        n: 1,
    };
    Problem {
        gemm: Gemm::matmul(shape, Dtype::F32),
        lhs: row.to_vec().into(),
        rhs: column.to_vec().into(),
        bias: None,
        start: None,
    }
}

#[track_caller]
fn assert_product(what: &str, problem: &Problem, expected: f32) {
    everywhere(|engine| {
        let got = f32::from_bits(problem.run(engine)[0]);
        assert_f32_bits(&format!("{what}: {}", engine.name()), &[got], &[expected]);
    });
}

#[track_caller]
fn assert_dot(what: &str, row: &[f32], column: &[f32], expected: f32) {
    assert_product(what, &f32_problem(row, column), expected);
}

#[test]
fn a_product_and_its_sum_are_rounded_once() {
    // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: a rounded product would lose the last term.
    let x = 1.0 + 2f32.powi(-12);
    assert_dot("one term", &[x], &[x], 1.0 + 2f32.powi(-11));
    let expected = 2f32.powi(-11) + 2f32.powi(-24);
    assert_dot("less one", &[-1.0, x], &[1.0, x], expected);
}

#[test]
fn the_order_is_ascending() {
    assert_dot("big first", &[BIG, 1.0, 1.0], &[1.0; 3], BIG);
    assert_dot("big last", &[1.0, 1.0, BIG], &[1.0; 3], BIG + 2.0);
    assert_dot("big between", &[1.0, BIG, 1.0, -BIG], &[1.0; 4], 0.0);
}

/// A row of R values that are 0.0 except where given.
fn sparse(r: usize, values: &[(usize, f32)]) -> Vec<f32> {
    let mut row = vec![0.0; r];
    for &(i, value) in values {
        row[i] = value;
    }
    row
}

#[test]
fn a_chunk_ends_after_4096_elements() {
    let dot = |what, r, values: &[(usize, f32)], expected| {
        assert_dot(what, &sparse(r, values), &vec![1.0; r], expected);
    };
    // In one chunk both ones are lost one by one; in a chunk of their own they add up first.
    dot(
        "one chunk",
        CHUNK,
        &[(0, BIG), (CHUNK - 2, 1.0), (CHUNK - 1, 1.0)],
        BIG,
    );
    let ones = [(0, BIG), (CHUNK, 1.0), (CHUNK + 1, 1.0)];
    dot("two chunks", CHUNK + 2, &ones, BIG + 2.0);
    let ones = [(0, BIG), (CHUNK - 1, 1.0), (CHUNK, 1.0)];
    dot("on either side of the boundary", CHUNK + 1, &ones, BIG);
    // Chunks are added in ascending order, not pairwise and not backwards.
    let ones = [(0, BIG), (CHUNK, 1.0), (2 * CHUNK, 1.0)];
    dot("three chunks", 2 * CHUNK + 1, &ones, BIG);
    let ones = [(0, 1.0), (CHUNK, 1.0), (2 * CHUNK, BIG)];
    dot("three chunks, big last", 2 * CHUNK + 1, &ones, BIG + 2.0);
}

#[test]
fn the_accumulated_value_comes_before_the_first_chunk() {
    let r = CHUNK + 1;
    let accumulate = |what: &str, row: &[f32], start: f32, expected: f32| {
        let mut problem = f32_problem(row, &vec![1.0; row.len()]);
        problem.gemm = problem.gemm.accumulating();
        problem.start = Some(vec![start].into());
        assert_product(what, &problem, expected);
    };
    accumulate("in a chunk's chain", &[1.0, 1.0], BIG, BIG + 2.0);
    accumulate(
        "over chunks",
        &sparse(r, &[(0, 1.0), (CHUNK, 1.0)]),
        BIG,
        BIG,
    );
    accumulate("a start of -0.0 is +0.0", &[-0.0], -0.0, 0.0);
    accumulate("nothing added to -0.0", &[], -0.0, 0.0);
    accumulate(
        "nothing added to a NaN",
        &[],
        f32::from_bits(0xFFC0_1234),
        CANONICAL_NAN,
    );
    accumulate("nothing added", &[], -2.5, -2.5);
    accumulate(
        "opposite infinities",
        &[f32::INFINITY],
        f32::NEG_INFINITY,
        CANONICAL_NAN,
    );
}

#[test]
fn zeros_have_the_sign_of_the_contract() {
    assert_dot("-0.0", &[-0.0], &[1.0], 0.0);
    assert_dot("-0.0 twice", &[-0.0, -0.0], &[1.0, 1.0], 0.0);
    assert_dot("cancellation", &[1.0, -1.0], &[3.0, 3.0], 0.0);
    assert_dot("no term", &[], &[], 0.0);
    // 2^-150 from below rounds to -0.0 in the chain; the total is +0.0.
    let tiny = 2f32.powi(-75);
    assert_dot("underflow", &[-tiny], &[tiny], 0.0);
    let x = 2f32.powi(-74);
    assert_dot(
        "smallest subnormal",
        &[-x],
        &[2f32.powi(-75)],
        f32::from_bits(0x8000_0001),
    );
    // 3 * 2^-150 is a tie between one and two units: even is two.
    let three = 3.0 * 2f32.powi(-75);
    assert_dot("subnormal tie", &[three], &[tiny], f32::from_bits(2));
    // A bias of -0.0 is added to a total that is +0.0.
    let mut problem = f32_problem(&[-tiny], &[tiny]);
    problem.gemm = problem.gemm.with_bias(Dtype::F32);
    problem.bias = Some(vec![-0.0f32].into());
    assert_product("bias of -0.0", &problem, 0.0);
}

#[test]
fn a_16_bit_output_may_be_a_rounded_negative_zero() {
    let shape = Shape { m: 1, k: 1, n: 1 };
    let problem = |dtype, lhs: Buffer, rhs: Buffer| Problem {
        gemm: Gemm::matmul(shape, dtype),
        lhs,
        rhs,
        bias: None,
        start: None,
    };
    let (minus, tiny) = (f16::from_f32(-1.0), f16::from_bits(1));
    let half = vec![minus].into();
    let exact = problem(Dtype::F16, half, vec![tiny].into());
    let rounded = problem(Dtype::F16, vec![-tiny].into(), vec![tiny].into());
    let minus_bf16 = vec![bf16::from_f32(-2f32.powi(-100))].into();
    let bf16_tiny = problem(
        Dtype::BF16,
        minus_bf16,
        vec![bf16::from_f32(2f32.powi(-42))].into(),
    );
    everywhere(|engine| {
        assert_eq!(exact.run(engine), [0x8001], "{}", engine.name());
        assert_eq!(rounded.run(engine), [0x8000], "{}", engine.name());
        assert_eq!(bf16_tiny.run(engine), [0x8000], "{}", engine.name());
    });
}

#[test]
fn infinities_and_nans_follow_ieee_754() {
    let inf = f32::INFINITY;
    let canonical = CANONICAL_NAN;
    assert_dot("inf", &[inf, 1.0], &[2.0, 3.0], inf);
    assert_dot("-inf", &[inf, 1.0], &[-2.0, 3.0], -inf);
    assert_dot("inf - inf", &[inf, inf], &[1.0, -1.0], canonical);
    assert_dot("inf * 0", &[inf], &[0.0], canonical);
    assert_dot(
        "signalling",
        &[f32::from_bits(0x7F80_0001)],
        &[1.0],
        canonical,
    );
    assert_dot("payload", &[1.0], &[f32::from_bits(0xFFC1_2345)], canonical);
    assert_dot("NaN past a zero", &[0.0, 1.0], &[f32::NAN, 1.0], canonical);
    let max = f32::MAX;
    assert_dot("overflow", &[max, max], &[1.0, 1.0], inf);
    assert_dot("overflow is not undone", &[max, max, -max], &[1.0; 3], inf);
    assert_dot("no overflow inside a term", &[-max, max], &[1.0, 2.0], max);
    // Opposite overflows in two chunks meet in the sum.
    let r = 2 * CHUNK;
    let values = [(0, max), (1, max), (CHUNK, -max), (CHUNK + 1, -max)];
    assert_dot(
        "chunks of opposite overflow",
        &sparse(r, &values),
        &vec![1.0; r],
        canonical,
    );
}

#[test]
fn bias_gradients_by_hand() {
    let big = bf16::from_f32(BIG);
    let one = bf16::ONE;
    let mut column = vec![bf16::ZERO; CHUNK + 2];
    column[0] = big;
    column[1] = one;
    column[CHUNK] = one;
    column[CHUNK + 1] = one;
    let cases: [(&str, &[bf16], f32, f32); 5] = [
        ("a chunk of its own", &column, 0.0, BIG + 2.0),
        ("-0.0 added to +0.0", &[-bf16::ZERO], -0.0, 0.0),
        ("no row", &[], -0.0, 0.0),
        ("256 + 1 in f32", &[bf16::from_f32(256.0), one], 0.0, 257.0),
        ("NaN", &[bf16::from_bits(0xFF81)], 0.0, CANONICAL_NAN),
    ];
    everywhere(|engine| {
        for (what, column, start, expected) in &cases {
            let problem = BiasGradient::new(column.len(), 1, Dtype::BF16).accumulating();
            let mut db = [*start];
            let result = engine.bias_gradient(&problem, (*column).into(), (&mut db).into());
            result.unwrap();
            assert_f32_bits(&format!("{what}: {}", engine.name()), &db, &[*expected]);
        }
    });
}
