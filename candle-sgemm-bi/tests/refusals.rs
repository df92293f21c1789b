//! What `functional::linear`, `Linear` and `matmul` refuse, and what their messages say.

mod common;

use candle_core::{DType, Device, Module, Tensor};
use candle_sgemm_bi::{Linear, TensorCoreModel, Tier, WeightLayout, functional, matmul};
use common::*;

#[test]
fn linear_names_the_argument_and_both_sides() {
    let of = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    let f32 = |dims: &[usize]| of(dims, DType::F32);
    let run = |x: Tensor, w: Tensor, b: Option<Tensor>| Linear::new(w, b).forward(&x);

    assert_error(
        run(f32(&[]), f32(&[3, 4]), None),
        &["linear: x has the wrong rank", "at least 1", "[]"],
    );
    assert_error(
        run(f32(&[2, 4]), f32(&[4]), None),
        &["linear: weight has the wrong rank", "expected 2", "[4]"],
    );
    assert_error(
        run(f32(&[2, 5]), f32(&[3, 4]), None),
        &[
            "linear: weight has the wrong shape",
            "[out, in] with in = 5",
            "got [3, 4]",
        ],
    );
    let in_out = Linear::new(f32(&[4, 3]), None).with_layout(WeightLayout::InOut);
    assert_error(
        in_out.forward(&f32(&[2, 3])),
        &["[in, out] with in = 3", "got [4, 3]"],
    );
    for bias in [&[4][..], &[1], &[1, 3], &[]] {
        assert_error(
            run(f32(&[2, 4]), f32(&[3, 4]), Some(f32(bias))),
            &[
                "linear: bias has the wrong shape",
                "out = 3",
                &format!("got {bias:?}"),
            ],
        );
    }
    assert_error(
        run(f32(&[2, 4]), of(&[3, 4], DType::BF16), None),
        &["linear: weight has the wrong dtype: expected f32, got bf16"],
    );
    assert_error(
        run(
            of(&[2, 4], DType::F16),
            of(&[3, 4], DType::F16),
            Some(of(&[3], DType::BF16)),
        ),
        &["linear: bias has the wrong dtype: expected f32 or f16, got bf16"],
    );
    for dtype in [DType::F64, DType::U8, DType::I64] {
        assert_error(
            run(of(&[2, 4], dtype), of(&[3, 4], dtype), None),
            &[
                "linear: x has the wrong dtype: expected f32, bf16 or f16",
                dtype.as_str(),
            ],
        );
    }
    let tier = Tier::TensorCore(TensorCoreModel::Hopper);
    let layer = Linear::new(f32(&[3, 4]), None).with_tier(tier);
    assert_eq!(layer.tier(), tier);
    for x in [f32(&[2, 4]), f32(&[0, 4])] {
        assert_error(
            layer.forward(&x),
            &["forward", "tensor-core (Hopper)", "f32"],
        );
    }
}

#[test]
fn sizes_that_overflow_are_refused() {
    let huge = 1 << 40;
    let x = Tensor::zeros((1, 0), DType::F32, &Device::Cpu).unwrap();
    let (x, w) = (
        x.broadcast_as((huge, 0)).unwrap(),
        x.broadcast_as((huge, 0)).unwrap(),
    );
    assert_error(
        Linear::new(w, None).forward(&x),
        &["forward: out", "overflows"],
    );
}

#[test]
fn matmul_names_the_argument_and_both_sides() {
    let of = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    let f32 = |dims: &[usize]| of(dims, DType::F32);
    assert_error(
        matmul(&f32(&[]), &f32(&[3])),
        &["matmul: a has the wrong rank", "[]"],
    );
    assert_error(
        matmul(&f32(&[3]), &f32(&[])),
        &["matmul: b has the wrong rank", "[]"],
    );
    let shapes: [(&[usize], &[usize], &str); 4] = [
        (&[3], &[4], "[k] with k = 3"),
        (&[2, 3], &[4, 3], "[.., k, n] with k = 3"),
        (
            &[2, 2, 3],
            &[3, 3, 4],
            "batch dimensions that broadcast with a's [2]",
        ),
        (&[2, 5, 2, 3], &[0, 3, 4], "broadcast with a's [2, 5]"),
    ];
    for (a, b, expected) in shapes {
        let got = format!("got {b:?}");
        assert_error(
            matmul(&f32(a), &f32(b)),
            &["matmul: b has the wrong shape", expected, &got],
        );
    }
    assert_error(
        matmul(&f32(&[3]), &of(&[3], DType::F16)),
        &["matmul: b has the wrong dtype: expected f32, got f16"],
    );
    assert_error(
        matmul(&of(&[3], DType::U32), &of(&[3], DType::U32)),
        &["matmul: a has the wrong dtype: expected f32, bf16 or f16, got u32"],
    );
    let tier = Tier::TensorCore(TensorCoreModel::Ampere);
    assert_error(
        functional::matmul(&f32(&[2]), &f32(&[2]), tier),
        &["matmul", "tensor-core (Ampere)", "f32"],
    );
}
