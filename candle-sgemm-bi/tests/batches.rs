//! Inputs whose bits changed with the batch in other libraries, or lost precision: the right value
//! from this crate, and where Candle's own operation differs.

mod common;

use candle_core::{DType, Device, Module, Tensor, Var};
use candle_sgemm_bi::{Tier, WeightLayout, functional, matmul};
use common::*;

/// A row alone and the same row in a batch: Candle's product changes with the number of rows.
#[test]
fn rows_alone_and_in_a_batch() {
    let (ours, theirs) = layers(&random(1, (768, 768), DType::F32), None);
    let x = random(2, (64, 768), DType::F32);
    let one = ours.forward(&rows(&x, 1)).unwrap();
    let many = ours.forward(&x).unwrap();
    assert_same("M = 1 and M = 64", &one, &rows(&many, 1));
    let (one, many) = (
        theirs.forward(&rows(&x, 1)).unwrap(),
        theirs.forward(&x).unwrap(),
    );
    assert!(
        different_words(&one, &rows(&many, 1)) > 0,
        "Candle's bits do not change with M here"
    );
}

/// f32, 1000×1000, one row of one and one of two.
#[test]
fn one_row_of_two() {
    let (ours, _) = layers(
        &random(1, (1000, 1000), DType::F32),
        Some(&random(2, 1000, DType::F32)),
    );
    let x = random(3, (2, 1000), DType::F32);
    let both = ours.forward(&x).unwrap();
    assert_same(
        "row 0",
        &ours.forward(&rows(&x, 1)).unwrap(),
        &rows(&both, 1),
    );
}

/// A batch of one and of two, three-dimensional.
#[test]
fn batch_of_one_and_of_two() {
    for dtype in DTYPES {
        let (ours, _) = layers(&random(1, (512, 1024), dtype), None);
        let x = random(2, (2, 100, 1024), dtype);
        let both = ours.forward(&x).unwrap();
        let one = ours.forward(&rows(&x, 1)).unwrap();
        assert_same(&format!("{dtype:?}"), &one, &rows(&both, 1));
    }
}

/// bf16 rows at many batch sizes.
#[test]
fn bf16_rows_at_every_batch_size() {
    let (ours, _) = layers(&random(1, (2048, 2048), DType::BF16), None);
    let x = random(2, (1024, 2048), DType::BF16);
    let all = ours.forward(&x).unwrap();
    for m in [1, 2, 17, 33, 128, 257] {
        let part = ours.forward(&rows(&x, m)).unwrap();
        assert_same(&format!("M = {m}"), &part, &rows(&all, m));
    }
}

/// A batch split at the contract's boundary and accumulated gives the whole batch's gradients.
#[test]
fn accumulated_gradients() {
    let (w, b) = (variable(1, (6, 16), DType::F32), variable(2, 6, DType::F32));
    let (ours, _) = layers(&w, Some(&b));
    let x = random(3, (4, 2048, 16), DType::F32);
    let dy = random(4, (4, 2048, 6), DType::F32);
    let gradients = |x: &Tensor, dy: &Tensor| {
        let grads = backward(&ours.forward(x).unwrap(), dy);
        [&w, &b].map(|var| grads.get(var).unwrap().clone())
    };
    let whole = gradients(&x, &dy);
    let [first, second] =
        [0, 2].map(|at| gradients(&x.narrow(0, at, 2).unwrap(), &dy.narrow(0, at, 2).unwrap()));
    for i in 0..2 {
        // 2·2048 rows are one chunk: the sum of chunks is the sum of gradients.
        let sum = (&first[i] + &second[i]).unwrap();
        assert_same("split at 4,096 rows", &sum, &whole[i]);
    }
    // Elsewhere the sum is another one, which the contract does not promise to be equal.
    let at = |from: usize, len: usize| {
        gradients(
            &x.narrow(0, from, len).unwrap(),
            &dy.narrow(0, from, len).unwrap(),
        )
    };
    let ([a, _], [b, _]) = (at(0, 1), at(1, 3));
    assert!(
        different_words(&(a + b).unwrap(), &whole[0]) > 0,
        "split at 2,048 rows"
    );
}

/// A fused bias is added to the f32 total; Candle adds it to the rounded product.
#[test]
fn bias_is_fused() {
    let (w, b) = (
        random(1, (100, 100), DType::BF16),
        random(2, 100, DType::BF16),
    );
    let (ours, theirs) = layers(&w, Some(&b));
    let x = random(3, (100, 100), DType::BF16);
    let (xs, ws, bs) = (values(&x), values(&w), values(&b));
    let entry = |i: usize| {
        let (row, col) = (i / 100, i % 100);
        dot(100, |r| (xs[row * 100 + r], ws[col * 100 + r])) + bs[col]
    };
    let expected: Vec<f32> = (0..10_000).map(entry).collect();
    let y = ours.forward(&x).unwrap();
    assert_rounded("fused", &y, &[100, 100], &expected);
    assert!(
        different_words(&theirs.forward(&x).unwrap(), &y) > 0,
        "Candle's bias is fused"
    );
}

/// f32 is f32: 2049 does not become 2048.
#[test]
fn f32_keeps_its_bits() {
    let a = filled(DType::F32, &[1, 1], |_| 1.0);
    let b = filled(DType::F32, &[1, 8192], |i| i as f32);
    assert_same("1·b", &matmul(&a, &b).unwrap(), &b);
    let (ours, _) = layers(&b.t().unwrap(), None);
    assert_same("Linear", &ours.forward(&a).unwrap(), &b);
}

/// inf·b + … + (−inf)·b is NaN, the canonical one, in every dtype.
#[test]
fn opposing_infinities_are_the_canonical_nan() {
    for (dtype, nan) in [
        (DType::F32, 0x7FFF_FFFF),
        (DType::BF16, 0x7FFF),
        (DType::F16, 0x7FFF),
    ] {
        let a = filled(dtype, &[1, 3], |i| {
            [f32::INFINITY, 0.0, f32::NEG_INFINITY][i]
        });
        let b = filled(dtype, &[3, 2], |i| [1.0, -2.0, 3.0, 0.5, 0.25, -1.0][i]);
        assert_eq!(bits(&matmul(&a, &b).unwrap()), [nan; 2], "{dtype:?}");
        let (ours, _) = layers(&b.t().unwrap(), Some(&random(1, 2, dtype)));
        assert_eq!(bits(&ours.forward(&a).unwrap()), [nan; 2], "{dtype:?}");
        let zero = filled(dtype, &[3, 1], |_| 0.0);
        assert_eq!(bits(&matmul(&a, &zero).unwrap()), [nan], "{dtype:?} inf·0");
        let only = filled(dtype, &[1, 2], |i| [f32::INFINITY, 1.0][i]);
        let one = filled(dtype, &[2, 1], |_| 1.0);
        assert_eq!(
            values(&matmul(&only, &one).unwrap()),
            [f32::INFINITY],
            "{dtype:?}"
        );
    }
}

/// 256 + 1 in bf16 is 256: a layer's gradients are summed in f32, and an f32 bias keeps them so
/// from one micro-batch to the next.
#[test]
fn micro_batches() {
    let x = |rows: usize| Tensor::ones((rows, 1), DType::BF16, &Device::Cpu).unwrap();
    let w = Var::ones((1, 1), DType::BF16, &Device::Cpu).unwrap();
    let b = Var::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let gradients = |rows: usize| {
        let layout = WeightLayout::OutIn;
        let y = functional::linear(&x(rows), &w, Some(&b), layout, Tier::Scalar).unwrap();
        let grads = y.sum_all().unwrap().backward().unwrap();
        [&w, &b].map(|var| grads.get(var).unwrap().clone())
    };
    let ([w256, b256], [w1, b1]) = (gradients(256), gradients(1));
    assert_eq!(
        values(&(w256 + w1).unwrap()),
        [256.0],
        "bf16 gradients added in bf16"
    );
    assert_eq!(values(&(b256 + b1).unwrap()), [257.0], "f32 gradients");
    let [w258, b258] = gradients(258);
    assert_eq!((values(&w258), values(&b258)), (vec![258.0], vec![258.0]));
}
