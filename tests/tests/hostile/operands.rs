//! Every other error, and its message: operands that do not fit the description, descriptions that
//! no engine computes.

use half::{bf16, f16};
use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{
    BiasGradient, CpuEngine, Dtype, Error, Gemm, Operands, Shape, SliceMut, TensorCoreModel, Tier,
    View, WeightLayout,
};

use crate::{CANARY, MAX, accepted, batch, everywhere, matmul, refusal, refusal_with};

#[test]
fn slices_one_element_too_short() {
    // [3, 4] · [4, 3]: 12, 12 and 9 elements.
    let gemm = matmul(3, 4, 3);
    accepted(&gemm, 9);
    let short: &'static [f32] = &[0.0; 11];
    assert_eq!(
        refusal_with(&gemm, |operands| operands.lhs = short.into()),
        "matmul: lhs is too short: its view addresses 12 elements, the slice has 11"
    );
    assert_eq!(
        refusal_with(&gemm, |operands| operands.rhs = short.into()),
        "matmul: rhs is too short: its view addresses 12 elements, the slice has 11"
    );
    let gemm = matmul(1, 12, 1);
    accepted(&gemm, 1);
    let (lhs, rhs) = (gemm.lhs(), gemm.rhs());
    for (offset, argument) in [(12, "out"), (MAX - 1, "out")] {
        let gemm = gemm
            .clone()
            .with_views(lhs, rhs, View::row_major(1).at(offset));
        let expected = offset + 1;
        assert_eq!(
            refusal(&gemm),
            format!(
                "matmul: {argument} is too short: its view addresses {expected} elements, \
                 the slice has 12"
            )
        );
    }
    accepted(
        &gemm.clone().with_views(lhs, rhs, View::row_major(1).at(11)),
        1,
    );
    let gemm = gemm.with_batch(batch(2, [1, 0, 1]));
    assert!(refusal(&gemm).starts_with("matmul: lhs is too short: its view addresses 13"));
}

#[test]
fn a_bias_gradient_too_short_or_of_the_wrong_length() {
    let refusal = |problem: BiasGradient, dy: &[f32], len: usize| {
        let mut messages = Vec::new();
        everywhere(|engine| {
            let mut db = vec![CANARY; len];
            let result = engine.bias_gradient(&problem, dy.into(), (&mut db).into());
            messages.push(result.expect_err("it is wrong").to_string());
            assert_eq!(db, vec![CANARY; len]);
        });
        messages.swap_remove(0)
    };
    let sum = BiasGradient::new(3, 4, Dtype::F32);
    assert_eq!(
        refusal(sum, &[0.0; 11], 4),
        "bias gradient: dy is too short: its view addresses 12 elements, the slice has 11"
    );
    for len in [3, 5, 0] {
        assert_eq!(
            refusal(sum, &[0.0; 12], len),
            format!("bias gradient: db has the wrong length: expected 4 elements, got {len}")
        );
    }
    assert_eq!(
        refusal(
            BiasGradient {
                dtype: Dtype::BF16,
                ..sum
            },
            &[0.0; 12],
            4
        ),
        "bias gradient: dy has the wrong dtype: expected bf16, got f32"
    );
    let view = View {
        offset: 0,
        row_stride: MAX,
        col_stride: 1,
    };
    let message = refusal(sum.with_view(view), &[0.0; 12], 4);
    assert!(
        message.starts_with("bias gradient: dy: offset 0 with"),
        "{message}"
    );
    let message = refusal(BiasGradient::new(MAX, 4, Dtype::F32), &[0.0; 12], 4);
    assert!(
        message.ends_with("overflows the address space"),
        "{message}"
    );
    // One row seen again and again: every index is inside, the number of terms overflows.
    let again = View {
        offset: 0,
        row_stride: 0,
        col_stride: 1,
    };
    let message = refusal(
        BiasGradient::new(MAX, 4, Dtype::F32).with_view(again),
        &[0.0; 12],
        4,
    );
    assert_eq!(
        message,
        format!("bias gradient: dy: rows × cols = {MAX} × 4 overflows the address space")
    );
    let mut half = [f16::ZERO; 4];
    let error = CpuEngine::new()
        .and_then(|engine| engine.bias_gradient(&sum, &[0.0f32; 12], &mut half))
        .expect_err("db is f32");
    let expected = "bias gradient: db has the wrong dtype: expected f32, got f16";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn outputs_that_overlap_themselves() {
    let view = |row_stride, col_stride| View {
        offset: 0,
        row_stride,
        col_stride,
    };
    let dense = view(3, 1);
    let out = |out| matmul(2, 3, 3).with_views(dense, dense, out);
    assert_eq!(
        refusal(&out(view(2, 1))),
        "matmul: out may overlap itself: with sizes [2, 3] and strides [2, 1] a dimension does \
         not step over what those of smaller stride span"
    );
    for overlapping in [view(0, 1), view(1, 0), view(0, 0), view(1, 1), view(3, 2)] {
        let message = refusal(&out(overlapping));
        assert!(
            message.starts_with("matmul: out may overlap itself"),
            "{message}"
        );
    }
    // Stride 1 along rows and 2 along columns interleaves the rows: 0, 2, 4 and 1, 3, 5.
    for fine in [view(3, 1), view(1, 2), view(1, 4), view(5, 2)] {
        accepted(&out(fine), 6);
    }
    let broadcast = matmul(2, 2, 2).with_batch(batch(2, [0, 0, 0]));
    let message = refusal(&broadcast);
    assert!(
        message.contains("sizes [2, 2, 2] and strides [0, 2, 1]"),
        "{message}"
    );
    let message = refusal(&matmul(2, 2, 2).with_batch(batch(2, [0, 0, 3])));
    assert!(
        message.contains("sizes [2, 2, 2] and strides [3, 2, 1]"),
        "{message}"
    );
    // A dimension of one element steps nowhere.
    accepted(&matmul(1, 3, 3).with_views(dense, dense, view(0, 1)), 3);
    accepted(&matmul(2, 2, 2).with_batch(batch(1, [MAX, MAX, MAX])), 4);
}

#[test]
fn wrong_dtypes() {
    let gemm = matmul(2, 2, 2);
    let half: &'static [bf16] = &[bf16::ZERO; 12];
    assert_eq!(
        refusal_with(&gemm, |operands| operands.lhs = half.into()),
        "matmul: lhs has the wrong dtype: expected f32, got bf16"
    );
    assert_eq!(
        refusal_with(&gemm, |operands| operands.rhs = half.into()),
        "matmul: rhs has the wrong dtype: expected f32, got bf16"
    );
    assert_eq!(
        refusal(&gemm.clone().with_out_dtype(Dtype::F16)),
        "matmul: out has the wrong dtype: expected f16, got f32"
    );
    let shape = Shape { m: 2, k: 2, n: 2 };
    assert_eq!(
        refusal(&Gemm::weight_gradient(
            shape,
            Dtype::BF16,
            WeightLayout::InOut
        )),
        "weight gradient: lhs has the wrong dtype: expected bf16, got f32"
    );
    // A dtype is checked even when the slices are empty.
    let none: &'static [f16] = &[];
    assert_eq!(
        refusal_with(&matmul(0, 0, 0), |operands| operands.lhs = none.into()),
        "matmul: lhs has the wrong dtype: expected f32, got f16"
    );
}

#[test]
fn biases_missing_superfluous_or_wrong() {
    let gemm = matmul(2, 2, 3);
    let with_bias = gemm.clone().with_bias(Dtype::F32);
    let bias: &'static [f32] = &[0.0; 4];
    let half: &'static [f16] = &[f16::ZERO; 3];
    assert_eq!(
        refusal(&with_bias),
        "matmul: bias: expected a bias, got none"
    );
    assert_eq!(
        refusal_with(&gemm, |operands| operands.bias = Some(bias[..3].into())),
        "matmul: bias: expected none, got a bias"
    );
    for len in [0, 2, 4] {
        assert_eq!(
            refusal_with(&with_bias, |operands| operands.bias =
                Some(bias[..len].into())),
            format!("matmul: bias has the wrong length: expected 3 elements, got {len}")
        );
    }
    assert_eq!(
        refusal_with(&with_bias, |operands| operands.bias = Some(half.into())),
        "matmul: bias has the wrong dtype: expected f32, got f16"
    );
    assert_eq!(
        refusal_with(&gemm.with_bias(Dtype::F16), |operands| {
            operands.bias = Some(half.into());
        }),
        "matmul: bias has an unsupported dtype: expected f32 or the operands' f32, got f16"
    );
}

#[test]
fn accumulation_into_16_bits() {
    let shape = Shape { m: 2, k: 2, n: 2 };
    for (dtype, name) in [(Dtype::BF16, "bf16"), (Dtype::F16, "f16")] {
        let gemm = Gemm::forward(shape, dtype, WeightLayout::InOut).accumulating();
        everywhere(|engine| {
            let half = [bf16::ONE; 4];
            let other = [f16::ONE; 4];
            let (mut out, mut out16) = (half, other);
            let operands = match dtype {
                Dtype::BF16 => Operands::new(&half, &half, &mut out),
                _ => Operands::new(&other, &other, &mut out16),
            };
            let error = engine
                .gemm(&gemm, operands)
                .expect_err("it cannot accumulate");
            let expected = format!("forward: out: accumulation needs an f32 output, got {name}");
            assert_eq!(error.to_string(), expected);
            assert!(matches!(error, Error::AccumulateDtype { .. }));
            assert_eq!((out, out16), (half, other));
        });
    }
}

#[test]
fn a_tensor_core_tier_for_f32() {
    for (model, name) in [
        (TensorCoreModel::Ampere, "Ampere"),
        (TensorCoreModel::Hopper, "Hopper"),
    ] {
        let message = refusal(&matmul(2, 2, 2).with_tier(Tier::TensorCore(model)));
        let tier = format!("has no tensor-core ({name}) tier for f32 operands");
        assert!(
            message.starts_with("matmul: the ") && message.ends_with(&tier),
            "{message}"
        );
    }
}

/// A level that this processor lacks; a processor with all of them has nothing to refuse.
#[test]
fn a_simd_level_that_the_processor_lacks() {
    let best = Simd::detect();
    let lacking = [Simd::Avx2, Simd::Avx512]
        .into_iter()
        .find(|&simd| simd > best);
    let Some(lacking) = lacking else {
        println!("skipped: this processor has every SIMD level, so none can be refused");
        return;
    };
    let engine = CpuEngine::new().expect("no level is forced");
    let error = engine.with_simd(lacking).expect_err("it is lacking");
    assert_eq!(
        error.to_string(),
        format!("this processor has no {lacking}: the best level it has is {best}")
    );
}

/// The message itself, where no processor can be found to give it.
#[test]
fn the_message_for_a_lacking_simd_level() {
    let error = Error::SimdUnavailable {
        requested: Simd::Avx512,
        available: Simd::Avx2,
    };
    assert_eq!(
        error.to_string(),
        "this processor has no avx512: the best level it has is avx2"
    );
}

/// The debug form of every part of a call: what a caller prints when something is refused.
#[test]
fn a_call_can_be_printed() {
    let (lhs, rhs, mut out) = ([1.0f32], [2.0f32], [3.0f32]);
    let operands = Operands::new(&lhs, &rhs, &mut out);
    assert!(format!("{operands:?}").contains("lhs: F32([1.0])"));
    assert!(matches!(operands.out, SliceMut::F32(_)));
}
