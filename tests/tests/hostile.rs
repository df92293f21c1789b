//! Hostile input: every error, its message, and an output that is untouched after it; and sizes,
//! strides and offsets that overflow whatever is computed from them carelessly.

use half::{bf16, f16};
use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{
    BatchDim, BiasGradient, CpuEngine, Dtype, Error, Gemm, Operands, Shape, SliceMut,
    TensorCoreModel, Tier, View, WeightLayout,
};
use sgemm_bi_tests::engine::Cpu;
use sgemm_bi_tests::{Engine, Reference};

const MAX: usize = usize::MAX;
const CANARY: f32 = 123.5;

/// The reference, and the CPU engine alone and on two threads.
fn everywhere(mut check: impl FnMut(&dyn Engine)) {
    check(&Reference);
    for simd in Simd::available() {
        check(&Cpu::new(simd, 1));
        check(&Cpu::new(simd, 2));
    }
}

fn matmul(m: usize, k: usize, n: usize) -> Gemm {
    Gemm::matmul(Shape { m, k, n }, Dtype::F32)
}

/// The refusal of an f32 product of 12 zeros by 12 zeros into 12 canaries, which stay.
#[track_caller]
fn refusal(gemm: &Gemm) -> String {
    refusal_with(gemm, |_| {})
}

#[track_caller]
fn refusal_with(gemm: &Gemm, change: impl Fn(&mut Operands<'_>)) -> String {
    let mut messages = Vec::new();
    everywhere(|engine| {
        let (lhs, rhs, mut out) = ([0.0f32; 12], [0.0f32; 12], [CANARY; 12]);
        let mut operands = Operands::new(&lhs, &rhs, &mut out);
        change(&mut operands);
        let error = match engine.gemm(gemm, operands) {
            Err(error) => error,
            Ok(()) => panic!("{} accepted {gemm:?}", engine.name()),
        };
        assert_eq!(out, [CANARY; 12], "{} wrote before {error}", engine.name());
        messages.push(error.to_string());
    });
    assert!(
        messages.iter().all(|message| *message == messages[0]),
        "{messages:?}"
    );
    messages.swap_remove(0)
}

/// The product is accepted, and its output of zeros written.
#[track_caller]
fn accepted(gemm: &Gemm, written: usize) {
    everywhere(|engine| {
        let (lhs, rhs, mut out) = ([0.0f32; 12], [0.0f32; 12], [CANARY; 12]);
        if let Err(error) = engine.gemm(gemm, Operands::new(&lhs, &rhs, &mut out)) {
            panic!("{}: {error}", engine.name());
        }
        let zeros = out.iter().filter(|value| value.to_bits() == 0).count();
        assert_eq!(zeros, written, "{}: {out:?}", engine.name());
    });
}

#[test]
fn sizes_whose_product_overflows() {
    let message = refusal(&matmul(1 << 32, 1, 1 << 32));
    assert_eq!(
        message,
        "matmul: shape: batch × rows × cols × reduction = [4294967296, 4294967296, 1] \
         overflows the address space"
    );
    // A zero does not hide an overflow of the others, whatever the order.
    for [a, b, c] in [[MAX, 0, MAX], [0, MAX, MAX], [MAX, MAX, 0], [MAX, MAX, MAX]] {
        let message = refusal(&matmul(a, b, c));
        assert!(message.contains("overflows the address space"), "{message}");
    }
    let shape = Shape {
        m: 1 << 31,
        k: 1 << 31,
        n: 4,
    };
    let forward = refusal(&Gemm::forward(shape, Dtype::F32, WeightLayout::OutIn));
    assert!(
        forward.starts_with("forward: shape: batch × rows"),
        "{forward}"
    );
    let gradient = refusal(&Gemm::weight_gradient(
        shape,
        Dtype::F32,
        WeightLayout::InOut,
    ));
    assert!(
        gradient.starts_with("weight gradient: shape: batch"),
        "{gradient}"
    );
    let gradient = refusal(&Gemm::input_gradient(
        shape,
        Dtype::F32,
        WeightLayout::InOut,
    ));
    assert!(
        gradient.starts_with("input gradient: shape: batch"),
        "{gradient}"
    );
}

fn batch(len: usize, strides: [usize; 3]) -> BatchDim {
    let [lhs_stride, rhs_stride, out_stride] = strides;
    BatchDim {
        len,
        lhs_stride,
        rhs_stride,
        out_stride,
    }
}

#[test]
fn batches_whose_size_overflows() {
    let gemm = matmul(2, 2, 2)
        .with_batch(batch(MAX, [0, 0, 4]))
        .with_batch(batch(3, [0, 0, 4]));
    let message = refusal(&gemm);
    assert!(
        message.starts_with("matmul: shape: batch × rows × cols × reduction = [18"),
        "{message}"
    );
    let gemm = matmul(2, 2, 2)
        .with_batch(batch(0, [1; 3]))
        .with_batch(batch(MAX, [1; 3]));
    assert!(refusal(&gemm).contains("overflows the address space"));
}

#[test]
fn strides_and_offsets_that_overflow() {
    let [lhs, rhs, out] = [View::row_major(2); 3];
    let huge = |view: View| {
        [
            View {
                row_stride: MAX,
                ..view
            },
            View {
                row_stride: MAX,
                col_stride: MAX,
                ..view
            },
            View {
                col_stride: MAX,
                ..view
            },
            view.at(MAX),
            view.at(MAX - 2),
        ]
    };
    for (argument, views) in [
        ("lhs", huge(lhs).map(|lhs| (lhs, rhs, out))),
        ("rhs", huge(rhs).map(|rhs| (lhs, rhs, out))),
        ("out", huge(out).map(|out| (lhs, rhs, out))),
    ] {
        for (lhs, rhs, out) in views {
            let message = refusal(&matmul(2, 2, 2).with_views(lhs, rhs, out));
            assert!(
                message.starts_with(&format!("matmul: {argument}: offset")),
                "{message}"
            );
            assert!(
                message.ends_with("overflows the address space"),
                "{message}"
            );
        }
    }
    let gemm = matmul(2, 2, 2).with_batch(batch(3, [MAX / 2 + 1, 0, 4]));
    assert!(refusal(&gemm).starts_with("matmul: lhs: offset 0 with (size, stride) [(3, 92"));
}

/// Nothing is read of an operand with a size of zero, and no more may its offsets overflow.
#[test]
fn strides_and_offsets_that_overflow_with_nothing_to_read() {
    let dense = View::row_major(3);
    let all = [
        View {
            row_stride: MAX,
            ..dense
        },
        View {
            col_stride: MAX,
            ..dense
        },
        View {
            offset: MAX,
            row_stride: MAX,
            col_stride: MAX,
        },
        dense.at(MAX),
    ];
    for view in all {
        for (m, k, n) in [(3, 0, 3), (0, 3, 3), (3, 3, 0), (0, 0, 0), (3, 0, 0)] {
            for gemm in [
                matmul(m, k, n).with_views(view, dense, dense),
                matmul(m, k, n).with_views(dense, view, dense),
            ] {
                // Refused or accepted, but never a panic and never a write in the wrong place.
                everywhere(|engine| {
                    let (lhs, rhs, mut out) = ([0.0f32; 12], [0.0f32; 12], [CANARY; 12]);
                    let result = engine.gemm(&gemm, Operands::new(&lhs, &rhs, &mut out));
                    let written = if result.is_ok() && k == 0 { m * n } else { 0 };
                    assert_eq!(out[..written], vec![0.0; written], "{}", engine.name());
                    assert_eq!(
                        out[written..],
                        vec![CANARY; 12 - written],
                        "{}",
                        engine.name()
                    );
                });
            }
        }
    }
    for strides in [[MAX, 0, 9], [0, MAX, 9]] {
        for (m, k, n) in [(3, 0, 3), (0, 3, 3), (3, 3, 0)] {
            let gemm = matmul(m, k, n).with_batch(batch(3, strides));
            assert!(refusal(&gemm).ends_with("overflows the address space"));
        }
    }
}

/// The largest strides that do not overflow, where nothing is read: a product of a stride and a
/// whole size, or an offset in bytes, would.
#[test]
fn the_largest_strides_with_nothing_to_read() {
    let view = View {
        offset: 0,
        row_stride: MAX - 1,
        col_stride: MAX - 1,
    };
    for (m, n) in [(1, 3), (2, 3), (2, 1), (1, 1)] {
        let lhs = View {
            col_stride: 0,
            ..view
        };
        let rhs = View {
            row_stride: 0,
            col_stride: (MAX - 1) / 2,
            offset: 0,
        };
        let gemm = matmul(m, 0, n).with_views(lhs, rhs, View::row_major(n));
        accepted(&gemm, m * n);
        let gemm = gemm.with_batch(batch(2, [0, 0, m * n]));
        accepted(&gemm, 2 * m * n);
        let far = View {
            offset: MAX - 1,
            row_stride: 0,
            col_stride: 0,
        };
        let gemm = matmul(m, 0, n).with_views(far, far, View::row_major(n));
        accepted(&gemm.with_batch(batch(2, [0, 0, m * n])), 2 * m * n);
        let gemm = matmul(m, 0, n).with_batch(batch(2, [MAX / 2, MAX / 2, m * n]));
        accepted(&gemm, 2 * m * n);
    }
}

/// The stride of a dimension of one element steps nowhere, however large it is.
#[test]
fn the_largest_strides_of_single_elements() {
    let view = |row_stride, col_stride| View {
        offset: 0,
        row_stride,
        col_stride,
    };
    let single = view(MAX, MAX);
    for batch_len in [1, 2] {
        let dim = batch(batch_len, [1, 1, 5]);
        let accepted = |gemm: Gemm, written| accepted(&gemm.with_batch(dim), batch_len * written);
        accepted(matmul(1, 1, 1).with_views(single, single, single), 1);
        let (row, column) = (view(MAX, 1), view(1, MAX));
        accepted(matmul(1, 5, 1).with_views(row, column, single), 1);
        accepted(matmul(1, 5, 5).with_views(row, view(1, 1), row), 5);
        accepted(matmul(5, 5, 1).with_views(view(1, 1), column, column), 5);
        accepted(matmul(2, 1, 2).with_views(column, row, view(2, 1)), 4);
    }
}

/// A batch of nothing may be as long as it likes, and takes no time.
#[test]
fn huge_sizes_beside_a_zero() {
    accepted(&matmul(0, 1, 1).with_batch(batch(MAX, [0, 0, 0])), 0);
    accepted(&matmul(1, 1, 0).with_batch(batch(MAX, [0, 0, 0])), 0);
    accepted(
        &matmul(1, 1, 1)
            .with_batch(batch(MAX, [0; 3]))
            .with_batch(batch(0, [1; 3])),
        0,
    );
    accepted(&matmul(1, 1, 1).with_batch(batch(0, [MAX; 3])), 0);
    accepted(&matmul(MAX, 0, 0), 0);
    accepted(&matmul(0, MAX, 0), 0);
    accepted(&matmul(0, 0, MAX), 0);
    let stretched = View {
        offset: 0,
        row_stride: 0,
        col_stride: 0,
    };
    accepted(
        &matmul(0, MAX, 1).with_views(stretched, stretched, stretched),
        0,
    );
    let sum = BiasGradient::new(MAX, 0, Dtype::F32);
    everywhere(|engine| {
        let (dy, mut db): ([f32; 0], [f32; 0]) = ([], []);
        engine
            .bias_gradient(&sum, (&dy).into(), (&mut db).into())
            .unwrap();
    });
}

/// Offsets are a plain function of a description that nothing has checked: they wrap.
#[test]
fn batch_offsets_never_panic() {
    let gemm = matmul(1, 1, 1)
        .with_batch(batch(0, [MAX; 3]))
        .with_batch(batch(MAX, [MAX; 3]));
    for index in [0, 1, MAX / 2, MAX] {
        gemm.batch_offsets(index);
    }
    assert_eq!(gemm.batch_len(), 0);
    let gemm = matmul(1, 1, 1)
        .with_batch(batch(MAX, [1; 3]))
        .with_batch(batch(2, [7; 3]));
    assert_eq!(gemm.batch_len(), MAX);
    assert_eq!(gemm.batch_offsets(5), (9, 9, 9));
}

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
