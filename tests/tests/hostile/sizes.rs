//! Sizes, strides and offsets that overflow whatever is computed from them carelessly.

use sgemm_bi_core::{BiasGradient, Dtype, Gemm, Operands, Shape, View, WeightLayout};

use crate::{CANARY, MAX, accepted, batch, everywhere, matmul, refusal};

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
