//! Products that other libraries got wrong in public bug reports, with the right value.

use half::{bf16, f16};
use sgemm_bi_core::{BiasGradient, Dtype, Gemm, Operands, Shape, View, WeightLayout};
use sgemm_bi_tests::compare::{assert_bits, assert_f32_bits};
use sgemm_bi_tests::{Buffer, Data, Engine, Format, Problem, Reference, engines};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];
const LAYOUTS: [WeightLayout; 2] = [WeightLayout::InOut, WeightLayout::OutIn];

fn everywhere(mut check: impl FnMut(&dyn Engine)) {
    check(&Reference);
    engines().iter().for_each(|engine| check(engine));
}

/// The bias is added to the f32 total and rounded once with it: not after a rounding to bf16.
#[test]
fn a_bias_is_fused() {
    let shape = Shape {
        m: 100,
        k: 100,
        n: 100,
    };
    for dtype in [Dtype::BF16, Dtype::F16] {
        let forward = Gemm::forward(shape, dtype, WeightLayout::OutIn);
        let fused = Problem::seeded(forward.clone().with_bias(dtype), Data::Normal, 13);
        let without_bias = |gemm: Gemm| Problem {
            gemm,
            bias: None,
            ..fused.clone()
        };
        let total = without_bias(forward.clone().with_out_dtype(Dtype::F32));
        let rounded = without_bias(forward);
        let format = Format::of(dtype);
        let bias = fused.bias.as_ref().expect("it has one");
        let add_bias = |total: u32, i: usize| {
            let bias = format.to_f32(bias.bits(i % shape.n));
            let sum = f32::from_bits(total) + f32::from_bits(bias);
            format.from_f32(sum.to_bits())
        };
        everywhere(|engine| {
            let got = fused.run(engine);
            let once = total.run(engine).into_iter().enumerate();
            let expected: Vec<_> = once.map(|(i, total)| add_bias(total, i)).collect();
            assert_bits(&engine.name(), dtype, &fused.shape(), &got, &expected);
            let twice = rounded.run(engine).into_iter().enumerate();
            let twice: Vec<_> = twice
                .map(|(i, total)| add_bias(format.to_f32(total), i))
                .collect();
            assert_ne!(
                got, twice,
                "a bias added afterwards should differ somewhere"
            );
        });
    }
}

/// Products of integers are exact while they and their sums have at most 24 bits: no engine may
/// quietly compute with fewer.
#[test]
fn f32_keeps_24_bits() {
    const N: usize = 8192;
    let multiples = |factor: f32| (0..N).map(|i| i as f32 * factor).collect::<Vec<_>>();
    let outer = |factor: f32| Problem {
        gemm: Gemm::matmul(Shape { m: 1, k: 1, n: N }, Dtype::F32),
        lhs: vec![factor].into(),
        rhs: multiples(1.0).into(),
        bias: None,
        start: None,
    };
    let (m, k, n) = (5, 3, 64);
    let left = |i: usize| 2047 + i as i32;
    let right = |i: usize| 2049 - i as i32;
    let floats = |len: usize, value: &dyn Fn(usize) -> i32| {
        Buffer::from((0..len).map(|i| value(i) as f32).collect::<Vec<_>>())
    };
    let dense = Problem {
        gemm: Gemm::matmul(Shape { m, k, n }, Dtype::F32),
        lhs: floats(m * k, &left),
        rhs: floats(k * n, &right),
        bias: None,
        start: None,
    };
    let exact = |i: usize| {
        let (row, col) = (i / n, i % n);
        (0..k)
            .map(|r| left(row * k + r) * right(r * n + col))
            .sum::<i32>()
    };
    let expected = floats(m * n, &exact);
    everywhere(|engine| {
        let name = engine.name();
        for factor in [1.0, 2047.0] {
            let got = Buffer::from_bits(Dtype::F32, N, {
                let bits = outer(factor).run(engine);
                move |i| bits[i]
            });
            let expected = Buffer::from(multiples(factor));
            assert_bits(
                &name,
                Dtype::F32,
                &[N],
                &got.all_bits(),
                &expected.all_bits(),
            );
        }
        let got = dense.run(engine);
        assert_bits(&name, Dtype::F32, &[m, n], &got, &expected.all_bits());
    });
}

#[test]
fn infinities_of_both_signs_in_a_row() {
    let inf = f32::INFINITY;
    let nan = f32::from_bits(0x7FFF_FFFF);
    let cases: [([f32; 3], f32); 6] = [
        ([1.0, 1.0, 1.0], nan),
        ([1.0, 1.0, -1.0], inf),
        ([-1.0, 1.0, 1.0], -inf),
        ([-1.0, 1.0, -1.0], nan),
        ([0.0, 1.0, -1.0], nan),
        ([1.0, f32::NAN, -1.0], nan),
    ];
    for dtype in DTYPES {
        let format = Format::of(dtype);
        let buffer = |values: &[f32]| {
            Buffer::from_bits(dtype, values.len(), |i| {
                format.from_f32(values[i].to_bits())
            })
        };
        for m in [1, 2, 17] {
            // [3, 6]: one column for each case, next to each other, so none may disturb another.
            let columns: Vec<f32> = (0..18).map(|i| cases[i % 6].0[i / 6]).collect();
            let row = if m == 1 {
                [inf, 0.0, -inf]
            } else {
                [inf, -0.0, -inf]
            };
            let problem = Problem {
                gemm: Gemm::matmul(Shape { m, k: 3, n: 6 }, dtype),
                lhs: buffer(&row.repeat(m)),
                rhs: buffer(&columns),
                bias: None,
                start: None,
            };
            let expected = buffer(&cases.map(|(_, value)| value).repeat(m)).all_bits();
            everywhere(|engine| {
                let got = problem.run(engine);
                assert_bits(&engine.name(), dtype, &[m, 6], &got, &expected);
            });
        }
    }
}

/// 8·[8 × 2048 then −8 × 2048]: the partial sum of 131072 is no f16, the result is 0. Every
/// product and sum holds its partial results in f32.
#[test]
fn partial_results_beyond_f16() {
    const R: usize = 4096;
    let halves = |value: f32| {
        let value = f16::from_f32(value);
        let signed = |i| if i < R / 2 { value } else { -value };
        (0..R).map(signed).collect::<Vec<_>>()
    };
    let [m, n] = [1, 1];
    let problem = |gemm: Gemm| Problem {
        gemm,
        lhs: vec![f16::from_f32(8.0); R].into(),
        rhs: halves(8.0).into(),
        bias: None,
        start: None,
    };
    let products = LAYOUTS.map(|layout| {
        [
            Gemm::forward(Shape { m, k: R, n }, Dtype::F16, layout),
            Gemm::input_gradient(Shape { m, k: n, n: R }, Dtype::F16, layout),
            Gemm::weight_gradient(Shape { m: R, k: m, n }, Dtype::F16, layout),
        ]
        .map(problem)
    });
    let bias = BiasGradient::new(R, 1, Dtype::F16);
    let column = halves(60_000.0);
    everywhere(|engine| {
        let name = engine.name();
        for problem in products.as_flattened() {
            assert_eq!(problem.run(engine), [0], "{name}: {:?}", problem.gemm);
        }
        let mut db = [f32::NAN];
        engine
            .bias_gradient(&bias, (&column).into(), (&mut db).into())
            .expect("a valid problem");
        assert_f32_bits(&name, &db, &[0.0]);
    });
}

/// Sums of 16-bit ones: in 16 bits they stick at 256 (bf16) or 2048 (f16).
#[test]
fn sums_of_ones_do_not_saturate() {
    let ones = |dtype, len| {
        let one = Format::of(dtype).from_f32(1.0f32.to_bits());
        Buffer::from_bits(dtype, len, |_| one)
    };
    for dtype in DTYPES {
        for (rows, cols) in [(1024, 1), (4096, 2), (8193, 3)] {
            let (dy, x) = (ones(dtype, rows * cols), ones(dtype, rows));
            let shape = Shape {
                m: rows,
                k: 1,
                n: cols,
            };
            let gemm = Gemm::weight_gradient(shape, dtype, WeightLayout::OutIn);
            let sum = BiasGradient::new(rows, cols, dtype);
            let expected = vec![rows as f32; cols];
            everywhere(|engine| {
                let (mut dw, mut db) = (vec![f32::NAN; cols], vec![f32::NAN; cols]);
                let operands = Operands::new(x.as_ref(), dy.as_ref(), &mut dw);
                engine.gemm(&gemm, operands).expect("a valid problem");
                engine
                    .bias_gradient(&sum, dy.as_ref(), (&mut db).into())
                    .expect("a valid problem");
                assert_f32_bits(&engine.name(), &dw, &expected);
                assert_f32_bits(&engine.name(), &db, &expected);
            });
        }
    }
}

/// 256, then ones, across micro-batches of one row: bf16 gradients are accumulated in f32.
#[test]
fn micro_batches_accumulate_in_f32() {
    let shape = Shape { m: 1, k: 1, n: 1 };
    let gemm = Gemm::weight_gradient(shape, Dtype::BF16, WeightLayout::OutIn).accumulating();
    let sum = BiasGradient::new(1, 1, Dtype::BF16).accumulating();
    let one = [bf16::ONE];
    everywhere(|engine| {
        let (mut dw, mut db) = ([256.0f32], [256.0f32]);
        for step in 1..=300 {
            engine
                .gemm(&gemm, Operands::new(&one, &one, &mut dw))
                .expect("a valid problem");
            engine
                .bias_gradient(&sum, (&one).into(), (&mut db).into())
                .expect("a valid problem");
            let expected = 256.0 + step as f32;
            assert_eq!((dw[0], db[0]), (expected, expected), "{}", engine.name());
        }
    });
}

/// Every way in which M, K or N can be zero, with and without bias, overwriting and accumulating.
#[test]
fn zero_sizes() {
    let sizes = [0usize, 1, 3];
    let mut shapes = Vec::new();
    for m in sizes {
        for k in sizes {
            shapes.extend(sizes.map(|n| Shape { m, k, n }));
        }
    }
    shapes.retain(|shape| shape.m * shape.k * shape.n == 0);
    everywhere(|engine| {
        for &shape in &shapes {
            for dtype in DTYPES {
                for layout in LAYOUTS {
                    check_zero_sizes(engine, shape, dtype, layout);
                }
            }
        }
    });
}

/// With R = 0 the output is +0.0, its bias, or what it held; with another size 0 it is empty.
fn check_zero_sizes(engine: &dyn Engine, shape: Shape, dtype: Dtype, layout: WeightLayout) {
    let name = engine.name();
    let forward = Gemm::forward(shape, dtype, layout);
    let gradient = Gemm::weight_gradient(shape, dtype, layout);
    let products = [
        forward.clone(),
        forward.clone().with_bias(dtype),
        forward.with_out_dtype(Dtype::F32).accumulating(),
        Gemm::input_gradient(shape, dtype, layout),
        gradient.clone(),
        gradient.accumulating(),
    ];
    for gemm in products {
        if gemm.reduction() > 0 && !gemm.is_empty() {
            continue; // In this orientation no size of the product is zero.
        }
        let problem = Problem::seeded(gemm, Data::Normal, 1);
        let [rows, cols] = problem.shape();
        let expected = match (&problem.bias, &problem.start) {
            (Some(bias), _) => bias.all_bits().repeat(rows),
            (_, Some(start)) => start.all_bits(),
            _ => vec![0; rows * cols],
        };
        let what = format!("{name}: {:?}", problem.gemm);
        let (dtype, got) = (problem.gemm.out_dtype(), problem.run(engine));
        assert_bits(&what, dtype, &[rows, cols], &got, &expected);
    }

    let Shape { m, n, .. } = shape;
    if m == 0 || n == 0 {
        let dy = Buffer::from_bits(dtype, 0, |_| 0);
        let mut db = Buffer::from(vec![f32::NAN; n]);
        engine
            .bias_gradient(&BiasGradient::new(m, n, dtype), dy.as_ref(), db.as_mut())
            .expect("a valid problem");
        assert_bits(&name, Dtype::F32, &[n], &db.all_bits(), &vec![0; n]);
    }
}

/// Views that begin past the end of a slice are fine as long as nothing is read through them.
#[test]
fn nothing_is_read_when_there_is_nothing_to_reduce() {
    let far = View {
        offset: 1 << 40,
        row_stride: 1 << 20,
        col_stride: 1 << 10,
    };
    let gemm = Gemm::matmul(Shape { m: 2, k: 0, n: 3 }, Dtype::F32);
    let gemm = gemm.with_views(far, far, View::row_major(3));
    let sum = BiasGradient::new(0, 3, Dtype::F32).with_view(far);
    let none: [f32; 0] = [];
    everywhere(|engine| {
        let (mut out, mut db) = ([f32::NAN; 6], [f32::NAN; 3]);
        engine
            .gemm(&gemm, Operands::new(&none, &none, &mut out))
            .expect("a valid problem");
        engine
            .bias_gradient(&sum, (&none).into(), (&mut db).into())
            .expect("a valid problem");
        assert_f32_bits(&engine.name(), &out, &[0.0; 6]);
        assert_f32_bits(&engine.name(), &db, &[0.0; 3]);
    });
}
