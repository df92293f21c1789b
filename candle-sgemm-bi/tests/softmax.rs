//! `log_softmax` against the core's naive reference bit for bit, against f64 mathematics within
//! its error bound, and its refusals.

mod common;

use candle_core::{D, DType, Device, Tensor, Var};
use candle_sgemm_bi::log_softmax;
use common::*;
use sgemm_bi_core::{Rows, reference};

/// log-softmax or its gradient (given y and dy) of the rows along the last dimension, from the
/// reference, in f32 before the rounding to 16 bits unless an input was rounded.
fn expected(x: &Tensor, gradient_from: Option<&Tensor>) -> Vec<u32> {
    let (&cols, leading) = x.dims().split_last().unwrap();
    let rows = Rows::new(leading.iter().product(), cols);
    macro_rules! of {
        ($element:ty) => {{
            let values = |t: &Tensor| {
                let flat = t.contiguous().unwrap().flatten_all().unwrap();
                flat.to_vec1::<$element>().unwrap()
            };
            let mut out = values(x);
            match gradient_from {
                None => reference::log_softmax(&rows, &values(x), &mut out).unwrap(),
                Some(dy) => {
                    let (y, dy) = (values(x), values(dy));
                    reference::log_softmax_backward(&rows, &y, &dy, &mut out).unwrap();
                }
            }
            out.into_iter().map(sgemm_bi_core::Element::bits).collect()
        }};
    }
    match x.dtype() {
        DType::F32 => of!(f32),
        DType::BF16 => of!(half::bf16),
        DType::F16 => of!(half::f16),
        other => panic!("no reference for {other:?}"),
    }
}

/// Tensors of rank 1 to 5 with dense, transposed, sliced and broadcast layouts, made from a
/// variable.
fn layouts(dtype: DType) -> Vec<(Var, Tensor)> {
    let from = |seed, shape: &[usize], view: &dyn Fn(&Tensor) -> candle_core::Result<Tensor>| {
        let scale = Tensor::new(8f32, &Device::Cpu)
            .unwrap()
            .to_dtype(dtype)
            .unwrap();
        let wide = random(seed, shape, dtype).broadcast_mul(&scale).unwrap();
        let var = Var::from_tensor(&wide).unwrap();
        let viewed = view(&var).unwrap();
        (var, viewed)
    };
    vec![
        from(1, &[7], &|t| Ok(t.clone())),
        from(2, &[5, 9], &|t| t.t()),
        from(3, &[4, 8, 3], &|t| t.transpose(1, 2)),
        from(4, &[6, 10, 5], &|t| t.narrow(1, 3, 4)?.narrow(2, 1, 3)),
        from(5, &[2, 3, 1, 5], &|t| t.broadcast_as((2, 3, 4, 5))),
        from(6, &[2, 3, 2, 4, 3], &|t| t.permute((4, 1, 0, 3, 2))),
        from(7, &[1, 5000], &|t| Ok(t.clone())),
        from(8, &[2, 0, 8], &|t| Ok(t.clone())),
        from(9, &[2, 8, 0], &|t| Ok(t.clone())),
        // Nothing, starting past the storage's end.
        from(10, &[3, 4], &|t| t.narrow(1, 4, 0)?.narrow(0, 2, 1)),
    ]
}

#[test]
fn every_dimension_layout_and_dtype_has_the_references_bits() {
    for dtype in DTYPES {
        for (var, x) in layouts(dtype) {
            for dim in 0..x.rank() {
                let what = format!("{dtype:?} {:?} dim {dim}", x.layout());
                let last = x.rank() - 1;
                let y = log_softmax(&x, dim).unwrap();
                assert_eq!((y.dims(), y.dtype()), (x.dims(), dtype), "{what}");
                assert!(y.is_contiguous(), "{what}");
                let moved = |t: &Tensor| t.transpose(dim, last).unwrap();
                assert_same_words(&what, &bits(&moved(&y)), &expected(&moved(&x), None));

                // The gradient, through a leaf with the same strides.
                let leaf = Var::from_tensor(&x.detach()).unwrap();
                let y = log_softmax(&leaf, dim).unwrap();
                let dy = random(20, x.dims(), dtype);
                let dx = backward(&y, &dy).remove(leaf.as_tensor()).unwrap();
                assert_eq!((dx.dims(), dx.dtype()), (x.dims(), dtype), "{what}");
                let want = expected(&moved(&y), Some(&moved(&dy)));
                assert_same_words(&format!("{what}: dx"), &bits(&moved(&dx)), &want);

                // It reaches the variable behind the view.
                let y = log_softmax(&x, dim).unwrap();
                assert!(backward(&y, &dy).get(&var).is_some(), "{what}");
            }
        }
    }
}

#[test]
fn a_row_is_the_same_in_every_batch() {
    let x = random(1, (67, 1003), DType::F32);
    let all = log_softmax(&x, D::Minus1).unwrap();
    for (start, len) in [(0, 1), (66, 1), (3, 17), (30, 37)] {
        let part = log_softmax(&x.narrow(0, start, len).unwrap(), D::Minus1).unwrap();
        let want = all.narrow(0, start, len).unwrap();
        assert_same("part of the batch", &part, &want);
    }
}

/// Against f64 mathematics: y within an ulp of its largest part, dx within the sum's rounding.
#[test]
fn values_and_gradients_are_those_of_the_mathematics() {
    let (n, c) = (5, 37);
    let x = variable(3, (n, c), DType::F32);
    let dy = random(4, (n, c), DType::F32);
    let y = log_softmax(&x, 1).unwrap();
    let dx = backward(&y, &dy).remove(x.as_tensor()).unwrap();
    let (y, dx, x, dy) = (values(&y), values(&dx), values(&x), values(&dy));
    for i in 0..n {
        let row = i * c..(i + 1) * c;
        let total: f64 = x[row.clone()].iter().map(|&x| f64::from(x).exp()).sum();
        let dy_total: f64 = dy[row.clone()].iter().map(|&dy| f64::from(dy)).sum();
        for j in row {
            let want = f64::from(x[j]) - total.ln();
            assert!(
                (f64::from(y[j]) - want).abs() < 6e-7,
                "y[{j}]: {} {want}",
                y[j]
            );
            let want = f64::from(dy[j]) - want.exp() * dy_total;
            assert!(
                (f64::from(dx[j]) - want).abs() < 6e-7,
                "dx[{j}]: {} {want}",
                dx[j]
            );
        }
    }
}

#[test]
fn agrees_with_candle() {
    let x = random(5, (3, 11, 4), DType::F32);
    for dim in 0..3 {
        let ours = values(&log_softmax(&x, dim).unwrap());
        let theirs = values(&candle_nn::ops::log_softmax(&x, dim).unwrap());
        for (a, b) in ours.iter().zip(theirs) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
    }
}

#[test]
fn nan_and_infinities() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let x = [[1.0, -inf], [inf, 0.0], [-inf, -inf], [nan, 0.0]];
    let y = log_softmax(&Tensor::new(&x, &Device::Cpu).unwrap(), 1).unwrap();
    let (minus_inf, nan) = ((-inf).to_bits(), 0x7FFF_FFFF);
    let want = [0, minus_inf, nan, nan, nan, nan, nan, nan];
    assert_same_words("special rows", &bits(&y), &want);
}

#[test]
fn refusals() {
    let x = random(1, (2, 3), DType::F32);
    assert_error(log_softmax(&x, 2), &["log_softmax", "2", "[2, 3]"]);
    let scalar = Tensor::new(1f32, &Device::Cpu).unwrap();
    assert_error(log_softmax(&scalar, 0), &["log_softmax"]);
    let wide = x.to_dtype(DType::F64).unwrap();
    let message = "log_softmax: xs has the wrong dtype: expected f32, bf16 or f16, got f64";
    assert_error(log_softmax(&wide, 1), &[message]);

    // A second derivative is refused by name, not silently zero.
    let x = Var::from_tensor(&x).unwrap();
    let y = log_softmax(&x, 1)
        .unwrap()
        .sqr()
        .unwrap()
        .sum_all()
        .unwrap();
    let dx = y.backward().unwrap().remove(x.as_tensor()).unwrap();
    let twice = dx.sum_all().unwrap().backward().map(|_| dx);
    assert_error(twice, &["log_softmax backward"]);
}
