//! Products with few rows, few columns or a short reduction, and bias gradients: layouts, strides,
//! several chunks, chunks side by side, special values.

use super::{Case, DTYPES, Data, LAYOUTS, engines};
use crate::{BiasGradient, Dtype, Gemm, Shape, SliceMut, View, reference};

/// Rows around the vectors of weights that a pass takes, columns around tiles, reductions around
/// passes and cache lines.
#[test]
fn layers() {
    let engines = engines(&[1, 2]);
    let shapes = [
        (1, 64, 64),
        (2, 7, 33),
        (3, 8, 95),
        (4, 31, 32),
        (5, 65, 17),
        (8, 33, 100),
        (15, 40, 31),
        (16, 1, 70),
        (16, 129, 48),
        (64, 66, 37),
        (200, 30, 1),
        (70, 50, 16),
        (1, 0, 5),
    ];
    for (m, k, n) in shapes {
        let shape = Shape { m, k, n };
        for dtype in DTYPES {
            for layout in LAYOUTS {
                let forward = Gemm::forward(shape, dtype, layout);
                let lengths = (m * k, k * n, m * n);
                Case::random(forward.clone(), lengths).check(&engines);
                Case::random(forward.with_bias(Dtype::F32), lengths).check(&engines);
                let dx = Gemm::input_gradient(shape, dtype, layout);
                Case::random(dx, (m * n, k * n, m * k)).check(&engines);
                let dw = Gemm::weight_gradient(shape, dtype, layout);
                Case::random(dw.clone(), (m * k, m * n, k * n)).check(&engines);
                Case::random(dw.accumulating(), (m * k, m * n, k * n)).check(&engines);
            }
        }
    }
}

/// Chunks in sequence and, where blocks of columns are fewer than the threads, side by side
/// (small products stay on one thread).
#[test]
fn several_chunks() {
    let engines = engines(&[1, 2, 3]);
    for (m, k, n) in [(1, 4096, 40), (3, 4097, 50), (16, 9000, 5), (1, 20_000, 30)] {
        let shape = Shape { m, k, n };
        for dtype in DTYPES {
            for layout in LAYOUTS {
                let lengths = (m * k, k * n, m * n);
                let forward = Gemm::forward(shape, dtype, layout).with_bias(dtype);
                Case::random(forward.clone(), lengths).check(&engines);
                let into_f32 = forward.with_out_dtype(Dtype::F32).accumulating();
                Case::random(into_f32, lengths).check(&engines);
            }
        }
    }
}

/// Blocks of columns on several threads.
#[test]
fn many_columns() {
    let engines = engines(&[1, 2, 3]);
    for (m, k, n) in [(1, 120, 5000), (16, 9, 4200), (2, 60, 9001)] {
        for dtype in DTYPES {
            for layout in LAYOUTS {
                let forward = Gemm::forward(Shape { m, k, n }, dtype, layout);
                Case::random(forward, (m * k, k * n, m * n)).check(&engines);
            }
        }
    }
}

/// Reductions that are a small part of the traffic: the second operand held in one piece or several,
/// rows shared out among threads.
#[test]
fn short_reductions() {
    let engines = engines(&[1, 2, 3]);
    for (m, k, n) in [(1, 300, 9000), (2, 17, 19), (7, 70, 90), (16, 150, 1100)] {
        let shape = Shape { m, k, n };
        for dtype in DTYPES {
            for layout in LAYOUTS {
                let dw = Gemm::weight_gradient(shape, dtype, layout);
                let lengths = (m * k, m * n, k * n);
                Case::random(dw.clone(), lengths).check(&engines);
                Case::random(dw.clone().with_out_dtype(dtype), lengths).check(&engines);
                Case::random(dw.accumulating(), lengths).check(&engines);
            }
        }
    }
    // Operands with other strides, and a bias.
    let shape = Shape { m: 40, k: 9, n: 50 };
    let lhs = View {
        offset: 2,
        row_stride: 3,
        col_stride: 130,
    };
    let rhs = View {
        offset: 1,
        row_stride: 2,
        col_stride: 19,
    };
    let out = View {
        offset: 3,
        row_stride: 53,
        col_stride: 1,
    };
    for dtype in DTYPES {
        let product = Gemm::matmul(shape, dtype).with_views(lhs, rhs, out);
        Case::random(product.clone(), (1300, 1000, 2200)).check(&engines);
        Case::random(product.with_bias(dtype), (1300, 1000, 2200)).check(&engines);
    }
}

/// Outputs so large that they are written past the caches, at several alignments.
#[test]
fn short_reductions_into_large_outputs() {
    let engines = engines(&[1, 3]);
    let (m, k, n) = (2, 1100, 2000);
    for dtype in [Dtype::F32, Dtype::BF16] {
        for offset in [0, 1, 8] {
            let dw = Gemm::weight_gradient(Shape { m, k, n }, dtype, LAYOUTS[0]);
            let dw = dw
                .clone()
                .with_views(dw.lhs(), dw.rhs(), dw.out().at(offset));
            Case::random(dw, (m * k, m * n, k * n + offset)).check(&engines);
        }
    }
}

/// Weights, first operands and outputs without a contiguous direction, and broadcast ones.
#[test]
fn strides() {
    let engines = engines(&[1, 2]);
    let (m, k, n) = (5, 41, 70);
    let view = |offset, row_stride, col_stride| View {
        offset,
        row_stride,
        col_stride,
    };
    let lhs = [view(3, 90, 2), view(0, 1, 7), view(1, 0, 1), view(2, 1, 0)];
    let rhs = [
        view(1, 150, 2),
        view(5, 3, 130),
        view(0, 0, 1),
        view(4, 1, 0),
    ];
    let out = [view(2, 71, 1), view(0, 1, 6), view(1, 150, 2)];
    for dtype in DTYPES {
        for lhs in lhs {
            for rhs in rhs {
                for out in out {
                    let product = Gemm::matmul(Shape { m, k, n }, dtype);
                    let product = product.with_views(lhs, rhs, out);
                    Case::random(product, (500, 9_200, 900)).check(&engines);
                }
            }
        }
    }
}

fn check_bias_gradient(problem: &BiasGradient, dy: &Data) {
    let start = Data::random(Dtype::F32, problem.cols, 5);
    let run = |compute: &dyn Fn(SliceMut<'_>) -> crate::Result<()>| {
        let mut db = start.clone();
        compute(db.slice_mut()).expect("a valid problem");
        db.bits()
    };
    let expected = run(&|db| reference::bias_gradient(problem, dy.slice(), db));
    for engine in engines(&[1, 2, 3]) {
        let got = run(&|db| engine.bias_gradient(problem, dy.slice(), db));
        if let Some(at) = (0..got.len()).find(|&i| got[i] != expected[i]) {
            panic!(
                "{engine:?}, {problem:?}: db[{at}] is {:#010x}, the contract's is {:#010x}",
                got[at], expected[at],
            );
        }
    }
}

#[test]
fn bias_gradients() {
    let sizes = [
        (1, 1),
        (7, 33),
        (0, 9),
        (8, 1000),
        (65, 70),
        (4096, 5),
        (4097, 40),
        (9000, 3),
        (20_000, 1),
        (20_000, 40),
        (300, 2000),
        (3, 0),
    ];
    for (rows, cols) in sizes {
        for dtype in DTYPES {
            let dense = BiasGradient::new(rows, cols, dtype);
            let views = [
                dense.view,
                View::col_major(rows),
                View {
                    offset: 3,
                    row_stride: 2 * cols + 1,
                    col_stride: 2,
                },
                View {
                    offset: 1,
                    row_stride: 0,
                    col_stride: 1,
                },
            ];
            let dy = Data::random(dtype, 4 + rows.max(1) * (2 * cols + 1), 6);
            for view in views {
                let problem = dense.with_view(view);
                check_bias_gradient(&problem, &dy);
                check_bias_gradient(&problem.accumulating(), &dy);
            }
        }
    }
}

/// Infinities of both signs, NaN, subnormals, signed zeros, overflow.
#[test]
fn bias_gradients_of_special_values() {
    let specials = [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        0.0,
        -0.0,
        1e-40,
        -3e-39,
        1e-30,
        f32::MAX,
        -1.0,
        3.3,
    ];
    let (rows, cols) = (4, 500);
    for dtype in DTYPES {
        let mut state = 1u32;
        let values = (0..rows * cols).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            specials[(state >> 16) as usize % specials.len()]
        });
        let dy = Data::from_f32(dtype, values);
        let problem = BiasGradient::new(rows, cols, dtype);
        check_bias_gradient(&problem, &dy);
        check_bias_gradient(&problem.accumulating(), &dy);
    }
}
