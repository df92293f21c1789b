//! The reference against exact integer arithmetic: its chain, its sums and its roundings.

use half::{bf16, f16};
use sgemm_bi_core::contract::CHUNK;
use sgemm_bi_core::{BiasGradient, Dtype, Element, Gemm, Shape, WeightLayout};
use sgemm_bi_tests::compare::assert_bits;
use sgemm_bi_tests::data::special_values;
use sgemm_bi_tests::{Buffer, Data, Engine, Format, Problem, Reference, SplitMix64, exact};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

/// The processor's own fused multiply-add and the exact one agree: each guards the other.
#[test]
fn the_exact_fma_is_that_of_ieee_754() {
    let mut generator = SplitMix64(1);
    let special = special_values(Format::F32);
    let check = |a: u32, b: u32, c: u32| {
        let value = f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c));
        let (got, expected) = (exact::fma(a, b, c), canonical(value).to_bits());
        assert_eq!(got, expected, "fma({a:#010x}, {b:#010x}, {c:#010x})");
        let value = f32::from_bits(a) + f32::from_bits(b);
        let (got, expected) = (exact::add(a, b), canonical(value).to_bits());
        assert_eq!(got, expected, "{a:#010x} + {b:#010x}");
    };
    for a in special {
        for b in special {
            special.iter().for_each(|&c| check(a, b, c));
        }
    }
    for _ in 0..100_000 {
        // Any bits; then exponents so close that the addend meets the product.
        let [a, b, c] = [(); 3].map(|()| generator.next() as u32);
        check(a, b, c);
        let near = |word: u32, exponent: u32| word & 0x807F_FFFF | exponent << 23;
        let jitter = generator.below(60) as u32;
        check(near(a, 127), near(b, 120 + c % 8), near(c, 100 + jitter));
        check(near(a, 50), near(b, 50 + c % 8), near(c, jitter / 2)); // a subnormal result
    }
}

/// Every 16-bit value widens exactly and comes back; rounding is right on either side of every
/// tie between two neighbours, at it, and anywhere.
#[test]
fn widening_and_rounding_are_exact() {
    for word in 0..=u16::MAX {
        let bits = u32::from(word);
        check_element(bf16::from_bits(word), Format::BF16, bits);
        check_element(f16::from_bits(word), Format::F16, bits);
    }
    let mut generator = SplitMix64(2);
    for _ in 0..200_000 {
        check_rounding(generator.next() as u32);
    }
    for word in special_values(Format::F32) {
        check_rounding(word);
    }
}

fn check_element<T: Element>(value: T, format: Format, bits: u32) {
    let widened = value.widen();
    let expected = format.to_f32(bits);
    let got = canonical(widened).to_bits();
    assert_eq!(got, expected, "{value:?} ({bits:#06x}) widened");
    assert_eq!(
        T::round(widened).bits(),
        format.from_f32(expected),
        "{value:?} back"
    );
    // Halfway to the next larger magnitude, and one unit of f32 on either side.
    if !widened.is_finite() {
        return;
    }
    let next = f32::from_bits(format.to_f32(bits + 1));
    if !next.is_finite() {
        return;
    }
    let halfway = (widened / 2.0 + next / 2.0).to_bits();
    (halfway - 1..=halfway + 1).for_each(check_rounding);
}

fn check_rounding(word: u32) {
    let value = f32::from_bits(word);
    let (got, expected) = (bf16::round(value).bits(), Format::BF16.from_f32(word));
    assert_eq!(got, expected, "{value:e} ({word:#010x}) to bf16");
    let (got, expected) = (f16::round(value).bits(), Format::F16.from_f32(word));
    assert_eq!(got, expected, "{value:e} ({word:#010x}) to f16");
    let (got, expected) = (canonical(value).bits(), Format::F32.from_f32(word));
    assert_eq!(got, expected, "{value:e} ({word:#010x}) to f32");
}

/// The row-major matrix's row or column as binary32 bits.
fn vector(matrix: &Buffer, at: impl Fn(usize) -> usize, len: usize) -> Vec<u32> {
    let format = Format::of(matrix.dtype());
    (0..len)
        .map(|i| format.to_f32(matrix.bits(at(i))))
        .collect()
}

/// Contract sections 3, 4 and 7 for one product, in exact arithmetic.
fn expected(problem: &Problem) -> Vec<u32> {
    let gemm = &problem.gemm;
    let (rows, cols, r) = (gemm.rows(), gemm.cols(), gemm.reduction());
    let element = |i: usize| {
        let (row, col) = (i / cols, i % cols);
        let a = vector(&problem.lhs, |at| row * r + at, r);
        let b = vector(&problem.rhs, |at| at * cols + col, r);
        let start = problem.start.as_ref().map_or(0, |start| start.bits(i));
        let mut total = exact::product(&a, &b, start, CHUNK);
        if let Some(bias) = &problem.bias {
            total = exact::add(total, Format::of(bias.dtype()).to_f32(bias.bits(col)));
        }
        Format::of(gemm.out_dtype()).from_f32(total)
    };
    (0..rows * cols).map(element).collect()
}

#[test]
fn the_reference_is_the_exact_chain() {
    let small = Shape { m: 9, k: 37, n: 11 };
    let two_chunks = Shape {
        m: 2,
        k: CHUNK + 5,
        n: 3,
    };
    for dtype in DTYPES {
        for data in Data::ALL {
            let forward = |shape| Gemm::forward(shape, dtype, WeightLayout::InOut);
            let problems = [
                forward(small),
                forward(small).with_bias(dtype),
                forward(small)
                    .with_bias(Dtype::F32)
                    .with_out_dtype(Dtype::F32),
                forward(two_chunks).with_bias(Dtype::F32),
                Gemm::input_gradient(small, dtype, WeightLayout::OutIn),
                Gemm::weight_gradient(small, dtype, WeightLayout::OutIn),
                Gemm::weight_gradient(small, dtype, WeightLayout::InOut).accumulating(),
            ];
            for (seed, gemm) in problems.into_iter().enumerate() {
                let what = format!("{data:?}, {gemm:?}");
                let problem = Problem::seeded(gemm, data, seed as u64);
                let got = problem.run(&Reference);
                let out = problem.gemm.out_dtype();
                assert_bits(&what, out, &problem.shape(), &got, &expected(&problem));
            }
        }
    }
}

#[test]
fn the_reference_is_the_exact_column_sum() {
    for dtype in DTYPES {
        for data in Data::ALL {
            for (rows, cols) in [(37, 11), (2 * CHUNK + 1, 3)] {
                let dy = data.fill(dtype, rows * cols, 1);
                let mut db = data.fill(Dtype::F32, cols, 2);
                let start = db.clone();
                let problem = BiasGradient::new(rows, cols, dtype).accumulating();
                Reference
                    .bias_gradient(&problem, dy.as_ref(), db.as_mut())
                    .unwrap();
                let expected: Vec<_> = (0..cols)
                    .map(|col| {
                        let column = vector(&dy, |row| row * cols + col, rows);
                        exact::column_sum(&column, start.bits(col), CHUNK)
                    })
                    .collect();
                let what = format!("{dtype} {data:?}, {rows} rows");
                assert_bits(&what, Dtype::F32, &[cols], &db.all_bits(), &expected);
            }
        }
    }
}

/// The value with the contract's NaN. (`f32::round` is Rust's own rounding to an integer.)
fn canonical(value: f32) -> f32 {
    <f32 as Element>::round(value)
}
