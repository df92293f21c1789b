//! `functional::linear` and `Linear` against the contract written naively: every rank, dtype,
//! layout and stride, zero sizes, gradients.

mod common;

use candle_core::{DType, Module, Tensor, Var};
use candle_sgemm_bi::{Linear, Tier, WeightLayout, functional};
use common::*;

const LAYOUTS: [WeightLayout; 2] = [WeightLayout::OutIn, WeightLayout::InOut];

/// Runs forward and backward and compares y, dx, dw and db with the naive contract. `x` may have
/// any strides; `x_of` says how it is made from the variable.
fn check(what: &str, x_var: &Var, x_of: impl Fn(&Tensor) -> Tensor, bias_dtype: Option<DType>) {
    let dtype = x_var.dtype();
    let x = x_of(x_var.as_tensor());
    let (&k, leading) = x.dims().split_last().unwrap();
    let n = 5;
    let size = Sizes {
        m: leading.iter().product(),
        k,
        n,
    };
    let w = variable(2, (n, k), dtype);
    let bias = bias_dtype.map(|dtype| variable(3, n, dtype));
    let out_dims = [leading, &[n]].concat();
    let dy = random(4, out_dims.clone(), dtype);
    let bias_values = bias.as_ref().map(|b| values(b));
    let expected = expected(
        size,
        &values(&x),
        &values(&w),
        bias_values.as_deref(),
        &values(&dy),
    );

    for layout in LAYOUTS {
        let what = format!("{what} {dtype:?} bias {bias_dtype:?} {layout:?}");
        let weight = match layout {
            WeightLayout::OutIn => w.as_tensor().clone(),
            WeightLayout::InOut => w.t().unwrap(),
        };
        let bias = bias.as_ref().map(|b| b.as_tensor());
        let y = functional::linear(&x, &weight, bias, layout, Tier::Scalar).unwrap();
        assert_eq!(y.dtype(), dtype, "{what}");
        assert!(
            y.is_contiguous() && y.layout().start_offset() == 0,
            "{what}: dense"
        );
        assert_rounded(&format!("{what}: y"), &y, &out_dims, &expected.y);

        // The gradient of x itself: through a detached leaf with the same strides.
        let leaf = Var::from_tensor(&x.detach()).unwrap();
        let y = functional::linear(&leaf, &weight, bias, layout, Tier::Scalar).unwrap();
        let dx = backward(&y, &dy).remove(leaf.as_tensor()).unwrap();
        assert_eq!(dx.dtype(), dtype);
        assert_rounded(&format!("{what}: dx"), &dx, x.dims(), &expected.dx);

        let y = functional::linear(&x, &weight, bias, layout, Tier::Scalar).unwrap();
        let grads = backward(&y, &dy);
        // Through the view: Candle's own adjoint of it, applied to dx.
        let adjoint = backward(&x, &dx).remove(x_var.as_tensor()).unwrap();
        assert_same(
            &format!("{what}: dx through the view"),
            grads.get(x_var).unwrap(),
            &adjoint,
        );
        let dw = grads.get(&w).unwrap();
        assert_eq!(dw.dtype(), dtype);
        assert_rounded(&format!("{what}: dw"), dw, &[n, k], &expected.dw);
        if let Some(bias) = bias {
            let db = grads.get(bias).unwrap();
            assert_eq!(db.dtype(), bias.dtype());
            assert_rounded(&format!("{what}: db"), db, &[n], &expected.db);
        }
    }
}

#[test]
fn every_rank_and_dtype() {
    let shapes: [&[usize]; 6] = [
        &[7],
        &[3, 7],
        &[2, 3, 7],
        &[2, 1, 3, 7],
        &[2, 3, 1, 2, 7],
        &[2, 1, 2, 1, 2, 7],
    ];
    for shape in shapes {
        for dtype in DTYPES {
            for bias in [None, Some(DType::F32), Some(dtype)] {
                let x = variable(1, shape, dtype);
                check(&format!("{shape:?}"), &x, Tensor::clone, bias);
            }
        }
    }
}

#[test]
fn any_stride_and_offset() {
    type Make = fn(&Tensor) -> Tensor;
    let makes: [(&str, &[usize], Make); 10] = [
        ("transposed 2-D", &[7, 3], |x| x.t().unwrap()),
        ("transposed 3-D", &[4, 8, 3], |x| x.transpose(1, 2).unwrap()),
        ("leading swapped", &[4, 3, 8], |x| {
            x.transpose(0, 1).unwrap()
        }),
        ("permuted 4-D", &[2, 3, 4, 5], |x| {
            x.permute((2, 0, 3, 1)).unwrap()
        }),
        ("permuted 5-D", &[2, 3, 2, 2, 5], |x| {
            x.permute((4, 2, 0, 3, 1)).unwrap()
        }),
        ("narrowed rows", &[9, 7], |x| x.narrow(0, 4, 3).unwrap()),
        ("narrowed columns", &[4, 9], |x| x.narrow(1, 2, 5).unwrap()),
        ("narrowed middle", &[3, 6, 4], |x| {
            x.narrow(1, 1, 3).unwrap()
        }),
        ("broadcast rows", &[1, 7], |x| {
            x.broadcast_as((4, 7)).unwrap()
        }),
        ("broadcast columns", &[2, 3, 1], |x| {
            x.broadcast_as((2, 3, 6)).unwrap()
        }),
    ];
    for (what, shape, make) in makes {
        for dtype in DTYPES {
            check(what, &variable(1, shape, dtype), make, Some(DType::F32));
        }
    }
}

#[test]
fn zero_sizes_give_empty_results_and_bias_rows() {
    let shapes: [&[usize]; 6] = [
        &[0],
        &[0, 7],
        &[3, 0],
        &[2, 0, 8],
        &[0, 3, 0],
        &[2, 0, 1, 3, 4],
    ];
    for shape in shapes {
        for dtype in DTYPES {
            for bias in [None, Some(dtype)] {
                check(
                    &format!("{shape:?}"),
                    &variable(1, shape, dtype),
                    Tensor::clone,
                    bias,
                );
            }
        }
    }
    // Nothing, cut out at the end of something.
    let x = variable(1, (3, 7), DType::F32);
    check(
        "no columns",
        &x,
        |x| x.narrow(1, 7, 0).unwrap(),
        Some(DType::F32),
    );
    check(
        "no rows",
        &x,
        |x| x.narrow(0, 3, 0).unwrap(),
        Some(DType::F32),
    );
    // No outputs.
    let (x, w, b) = (
        variable(1, (2, 3), DType::F32),
        variable(2, (0, 3), DType::F32),
        variable(3, 0, DType::F32),
    );
    let layer = Linear::new(w.as_tensor().clone(), Some(b.as_tensor().clone()));
    let y = layer.forward(&x).unwrap();
    assert_eq!(y.dims(), [2, 0]);
    let grads = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(bits(grads.get(&x).unwrap()), [0; 6]);
    assert_eq!(grads.get(&w).unwrap().dims(), [0, 3]);
    assert_eq!(grads.get(&b).unwrap().dims(), [0]);
}

#[test]
fn strided_weights_and_biases() {
    let x = random(1, (4, 6), DType::F32);
    let table = random(2, (12, 20), DType::F32);
    let weight = table.narrow(0, 3, 5).unwrap().narrow(1, 7, 6).unwrap(); // [out, in]
    let bias = table
        .narrow(1, 19, 1)
        .unwrap()
        .squeeze(1)
        .unwrap()
        .narrow(0, 2, 5)
        .unwrap();
    assert!(!bias.is_contiguous());
    let dense = [weight.contiguous().unwrap(), bias.contiguous().unwrap()];
    let run = |w: &Tensor, b: &Tensor, layout| {
        functional::linear(&x, w, Some(b), layout, Tier::Scalar).unwrap()
    };
    let expected = run(&dense[0], &dense[1], WeightLayout::OutIn);
    assert_same(
        "slices",
        &run(&weight, &bias, WeightLayout::OutIn),
        &expected,
    );
    let in_out = weight.t().unwrap();
    assert_same(
        "transposed",
        &run(&in_out, &bias, WeightLayout::InOut),
        &expected,
    );
    let in_out = in_out.contiguous().unwrap();
    assert_same(
        "[in, out]",
        &run(&in_out, &bias, WeightLayout::InOut),
        &expected,
    );
    let one = table
        .narrow(0, 0, 1)
        .unwrap()
        .narrow(1, 0, 1)
        .unwrap()
        .squeeze(1)
        .unwrap();
    let everywhere = one.broadcast_as(5).unwrap();
    let same = everywhere.contiguous().unwrap();
    assert_same(
        "broadcast bias",
        &run(&weight, &everywhere, WeightLayout::OutIn),
        &run(&weight, &same, WeightLayout::OutIn),
    );
}

#[test]
fn rows_do_not_depend_on_the_batch() {
    for dtype in DTYPES {
        let layer = Linear::new(random(1, (33, 65), dtype), Some(random(2, 33, dtype)));
        let x = random(3, (40, 65), dtype);
        let whole = layer.forward(&x).unwrap();
        for len in [1, 2, 3, 7, 16, 17, 33, 40] {
            for start in [0, 40 - len] {
                let part = layer.forward(&x.narrow(0, start, len).unwrap()).unwrap();
                let rows = whole.narrow(0, start, len).unwrap();
                assert_same(&format!("{dtype:?} rows {start}+{len}"), &part, &rows);
            }
        }
        let vector = layer.forward(&x.get(9).unwrap()).unwrap();
        assert_same("rank 1", &vector, &whole.get(9).unwrap());
        let deep = layer
            .forward(&x.reshape((2, 4, 1, 5, 65)).unwrap())
            .unwrap();
        assert_same("rank 5", &deep.reshape((40, 33)).unwrap(), &whole);
    }
}

#[test]
fn long_reductions_are_chunked() {
    let (m, k) = (2, 4096 * 2 + 5);
    let x = variable(1, (m, k), DType::F32);
    check("K of three chunks", &x, Tensor::clone, Some(DType::F32));
    let x = variable(1, (4096 + 3, 2), DType::BF16);
    check("M of two chunks", &x, Tensor::clone, Some(DType::F32));
}

#[test]
fn gradients_are_near_an_f64_reference() {
    let (m, k, n) = (300, 20, 10);
    for (dtype, unit) in [
        (DType::F32, 2f64.powi(-24)),
        (DType::BF16, 2f64.powi(-8)),
        (DType::F16, 2f64.powi(-11)),
    ] {
        let (x, w) = (variable(1, (m, k), dtype), variable(2, (n, k), dtype));
        let (b, dy) = (variable(3, n, dtype), random(4, (m, n), dtype));
        let layer = Linear::new(w.as_tensor().clone(), Some(b.as_tensor().clone()));
        let grads = backward(&layer.forward(&x).unwrap(), &dy);
        let wide = |t: &Tensor| values(t).into_iter().map(f64::from).collect::<Vec<_>>();
        let (xs, ws, dys) = (wide(&x), wide(&w), wide(&dy));

        let near = |what: &str, got: &Tensor, len: usize, term: &dyn Fn(usize, usize) -> f64| {
            for (i, got) in wide(got).into_iter().enumerate() {
                let terms = (0..len).map(|r| term(i, r));
                let (exact, magnitude) =
                    terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + f64::abs(t)));
                // One rounding to the dtype, and f32 roundings of partial sums below `magnitude`.
                let bound = unit * exact.abs() * 1.01
                    + (len as f64 + 1.0) * 2f64.powi(-24) * magnitude * 1.01
                    + 2f64.powi(-24);
                let error = (got - exact).abs();
                assert!(
                    error <= bound,
                    "{what} {dtype:?} {i}: {got} is not near {exact}"
                );
            }
        };
        near("dx", grads.get(&x).unwrap(), n, &|i, r| {
            dys[i / k * n + r] * ws[r * k + i % k]
        });
        near("dw", grads.get(&w).unwrap(), m, &|i, r| {
            xs[r * k + i % k] * dys[r * n + i / k]
        });
        near("db", grads.get(&b).unwrap(), m, &|i, r| dys[r * n + i]);
    }
}

#[test]
fn a_gradient_may_arrive_with_any_strides() {
    let (x, w, b) = (
        variable(1, (2, 3, 4), DType::BF16),
        variable(2, (5, 4), DType::BF16),
        variable(3, 5, DType::BF16),
    );
    let layer = Linear::new(w.as_tensor().clone(), Some(b.as_tensor().clone()));
    let dy = random(4, (2, 3, 5), DType::BF16);
    let expected = backward(&layer.forward(&x).unwrap(), &dy);

    let permuted = |t: &Tensor| t.permute((2, 0, 1)).unwrap();
    let y = permuted(&layer.forward(&x).unwrap());
    let got = backward(&y, &permuted(&dy).contiguous().unwrap());
    for var in [&x, &w, &b] {
        assert_same(
            "permuted",
            got.get(var).unwrap(),
            expected.get(var).unwrap(),
        );
    }

    // A sum's gradient is one value seen with strides of zero.
    let ones = dy.ones_like().unwrap();
    let expected = backward(&layer.forward(&x).unwrap(), &ones);
    let got = layer
        .forward(&x)
        .unwrap()
        .sum_all()
        .unwrap()
        .backward()
        .unwrap();
    for var in [&x, &w, &b] {
        assert_same(
            "broadcast",
            got.get(var).unwrap(),
            expected.get(var).unwrap(),
        );
    }
}

#[test]
fn untracked_arguments_get_no_gradient() {
    let (x, w) = (
        random(1, (3, 4), DType::F32),
        variable(2, (5, 4), DType::F32),
    );
    let layer = Linear::new(w.as_tensor().clone(), Some(random(3, 5, DType::F32)));
    let grads = layer
        .forward(&x)
        .unwrap()
        .sum_all()
        .unwrap()
        .backward()
        .unwrap();
    assert!(grads.get(&x).is_none());
    assert!(grads.get(layer.bias().unwrap()).is_none());
    assert_eq!(grads.get(&w).unwrap().dims(), [5, 4]);
}
