//! The blocked path, which takes what the others leave: more rows and columns than the path for few
//! rows has, a reduction that is not short.

use super::{Case, DTYPES, LAYOUTS, check_special_values, engines};
use crate::cpu::small_m::MOST_ROWS;
use crate::{Dtype, Gemm, Shape, View};

/// Rows and columns that no other path takes, and that fill no tile.
const M: usize = MOST_ROWS + 5;
const N: usize = MOST_ROWS + 15;

/// Chains that go on from block to block, and sums of several chunks: in the output where it is f32,
/// beside it where it is not.
#[test]
fn blocks_and_chunks_of_the_reduction() {
    let engines = engines(&[1, 3]);
    for r in [511, 513, 1030, 4096, 4097, 8200] {
        for dtype in DTYPES {
            let shape = Shape { m: M, k: r, n: N };
            let lengths = (M * r, r * N, M * N);
            let forward = Gemm::forward(shape, dtype, LAYOUTS[1]).with_bias(dtype);
            Case::random(forward, lengths).check(&engines);
            let shape = Shape { m: r, k: M, n: N };
            let dw = Gemm::weight_gradient(shape, dtype, LAYOUTS[0]).accumulating();
            Case::random(dw, (r * M, r * N, M * N)).check(&engines);
        }
    }
}

/// More rows and columns than a block of the output has.
#[test]
fn blocks_of_the_output() {
    let engines = engines(&[1, 2]);
    for (m, n) in [(2100, N), (M, 2100), (600, 1100)] {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let gemm = Gemm::matmul(Shape { m, k: 19, n }, dtype).with_bias(dtype);
            Case::random(gemm, (m * 19, 19 * n, m * n)).check(&engines);
        }
    }
}

/// Every dtype of the output and of the bias, along rows and columns of what is computed.
#[test]
fn output_dtypes_and_bias_dtypes() {
    let engines = engines(&[1]);
    let k = 30;
    for dtype in DTYPES {
        for out_dtype in DTYPES {
            for bias in [Dtype::F32, dtype] {
                let gemm = Gemm::matmul(Shape { m: M, k, n: N }, dtype)
                    .with_out_dtype(out_dtype)
                    .with_bias(bias);
                Case::random(gemm.clone(), (M * k, k * N, M * N)).check(&engines);
                let turned =
                    gemm.with_views(View::row_major(k), View::row_major(N), View::col_major(M));
                Case::random(turned, (M * k, k * N, M * N)).check(&engines);
            }
        }
    }
}

/// Operands and outputs with and without a contiguous direction, and broadcast ones.
#[test]
fn strides() {
    let engines = engines(&[1, 2]);
    let k = 37;
    let view = |offset, row_stride, col_stride| View {
        offset,
        row_stride,
        col_stride,
    };
    let inputs = |rows: usize, cols: usize| {
        [
            view(3, cols + 5, 1),
            view(1, 1, rows + 2),
            view(2, 3 * cols, 3),
            view(0, 0, 1),
            view(4, 1, 0),
        ]
    };
    for dtype in DTYPES {
        for lhs in inputs(M, k) {
            for rhs in inputs(k, N) {
                for out in [view(3, N + 5, 1), view(1, 1, M + 2), view(2, 3 * N, 3)] {
                    let shape = Shape { m: M, k, n: N };
                    let gemm = Gemm::matmul(shape, dtype).with_views(lhs, rhs, out);
                    let len = 4 + 3 * (M + 2) * (N + 5);
                    Case::random(gemm, (len, len, len)).check(&engines);
                }
            }
        }
    }
}

#[test]
fn special_values() {
    check_special_values((M, 17, N));
}

/// The same for the path of short reductions, which has these sides too.
#[test]
fn special_values_in_short_reductions() {
    check_special_values((M, 3, N));
}
