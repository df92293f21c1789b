//! A row's bits do not depend on how many rows there are, nor on the layout.

use sgemm_bi_core::{Dtype, Gemm, Shape, WeightLayout};
use sgemm_bi_tests::compare::compare_bits;
use sgemm_bi_tests::{Buffer, Cuda, Data, Problem, SplitMix64};

/// The first rows of a problem's operands, as a problem of their own.
fn rows(whole: &Problem, gemm: Gemm) -> Problem {
    Problem {
        lhs: whole.lhs.slice(0..gemm.rows() * gemm.reduction()),
        gemm,
        ..whole.clone()
    }
}

#[test]
fn every_batch_size_from_1_to_300_has_the_rows_of_the_largest() {
    let Some(cuda) = Cuda::new() else { return };
    const MOST: usize = 300;
    for (dtype, k, n) in [
        (Dtype::F32, 768, 130),
        (Dtype::F32, 5000, 96),
        (Dtype::BF16, 4608, 70),
        (Dtype::F16, 513, 257),
    ] {
        let forward = |m, layout| Gemm::forward(Shape { m, k, n }, dtype, layout).with_bias(dtype);
        let whole = Problem::seeded(forward(MOST, WeightLayout::InOut), Data::Normal, 11);
        let expected = whole.run(&cuda);
        for layout in [WeightLayout::InOut, WeightLayout::OutIn] {
            for m in 1..=MOST {
                let got = rows(&whole, forward(m, layout)).run(&cuda);
                if let Err(message) = compare_bits(dtype, &[m, n], &got, &expected[..m * n]) {
                    panic!("{dtype}, K = {k}, {layout:?}, M = {m}: {message}");
                }
            }
        }
    }
}

#[test]
fn both_layouts_of_a_weight_have_the_same_bits() {
    let Some(cuda) = Cuda::new() else { return };
    let mut random = SplitMix64(3);
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
        for _ in 0..20 {
            let mut size = |most| random.below(most) as usize + 1;
            let shape = Shape {
                m: size(200),
                k: size(6000),
                n: size(200),
            };
            let of = |gemm: fn(Shape, Dtype, WeightLayout) -> Gemm, layout| {
                Problem::seeded(gemm(shape, dtype, layout), Data::Normal, 4).run(&cuda)
            };
            for gemm in [Gemm::forward, Gemm::input_gradient, Gemm::weight_gradient] {
                let (a, b) = (of(gemm, WeightLayout::InOut), of(gemm, WeightLayout::OutIn));
                assert!(a == b, "{dtype}, {shape:?}");
            }
        }
    }
}

#[test]
fn batches_split_at_chunk_boundaries_accumulate_to_the_whole() {
    let Some(cuda) = Cuda::new() else { return };
    let (k, n, first, second) = (40, 33, 2 * 4096, 5000);
    let all = Shape {
        m: first + second,
        k,
        n,
    };
    let gradient = |m| Gemm::weight_gradient(Shape { m, k, n }, Dtype::F32, WeightLayout::InOut);
    let whole = Problem::seeded(gradient(all.m), Data::Normal, 9);
    let expected = whole.run(&cuda);
    // The problem's elements are those of Xᵀ, row by row: a batch is some of its columns.
    let columns = |from: usize, count: usize| {
        Buffer::from_bits(Dtype::F32, k * count, |i| {
            whole.lhs.bits(i / count * all.m + from + i % count)
        })
    };
    let part = |from: usize, count: usize, start: Option<Buffer>| {
        let gemm = gradient(count);
        let gemm = if start.is_some() {
            gemm.accumulating()
        } else {
            gemm
        };
        let rhs = whole.rhs.slice(from * n..(from + count) * n);
        let problem = Problem {
            gemm,
            lhs: columns(from, count),
            rhs,
            bias: None,
            start,
        };
        let bits = problem.run(&cuda);
        Buffer::from_bits(Dtype::F32, bits.len(), |i| bits[i])
    };
    let total = part(first, second, Some(part(0, first, None)));
    assert!(total.all_bits() == expected);
}
