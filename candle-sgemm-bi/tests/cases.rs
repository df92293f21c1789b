//! Inputs on which Candle's own operations fail, with the right value from this crate and what
//! Candle does with the same input, so that what the documentation says of it stays true.

mod common;

use candle_core::{DType, Device, Module, Tensor, Var};
use candle_sgemm_bi::matmul;
use common::*;

/// A transposed 3-D input through a Linear: wrong in Candle, forward and backward.
#[test]
fn transposed_input() {
    let storage = random(1, (4, 8, 3), DType::F32);
    let x = storage.transpose(1, 2).unwrap();
    let w = variable(2, (5, 8), DType::F32);
    let dy = random(3, (4, 3, 5), DType::F32);
    let (ours, theirs) = layers(&w, None);

    let size = Sizes { m: 12, k: 8, n: 5 };
    let expected = expected(size, &values(&x), &values(&w), None, &values(&dy));
    let y = ours.forward(&x).unwrap();
    assert_rounded("y", &y, &[4, 3, 5], &expected.y);
    let dw = backward(&y, &dy).remove(w.as_tensor()).unwrap();
    assert_rounded("dw", &dw, &[5, 8], &expected.dw);

    let their_y = theirs.forward(&x).unwrap();
    assert!(largest_difference(&their_y, &y) > 0.1, "Candle's y");
    // A loss that depends on y carries the fault into the gradient.
    let of_square = |y: Tensor| {
        let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        grads.get(&w).unwrap().clone()
    };
    let (dw, their_dw) = (of_square(y), of_square(their_y));
    assert!(largest_difference(&their_dw, &dw) > 1.0, "Candle's dw");
}

/// No rows in the middle of the shape: an error in Candle.
#[test]
fn no_rows() {
    let x = variable(1, (2, 0, 8), DType::F32);
    let (w, b) = (variable(2, (5, 8), DType::F32), variable(3, 5, DType::F32));
    let (ours, theirs) = layers(&w, Some(&b));
    assert!(theirs.forward(&x).is_err());
    let y = ours.forward(&x).unwrap();
    assert_eq!(y.dims(), [2, 0, 5]);
    let grads = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(grads.get(&x).unwrap().dims(), [2, 0, 8]);
    assert_eq!(bits(grads.get(&w).unwrap()), [0; 40]);
    assert_eq!(bits(grads.get(&b).unwrap()), [0; 5]);
}

/// No inputs: every row is the bias.
#[test]
fn no_inputs() {
    for dtype in DTYPES {
        let bias = random(1, 3, dtype);
        let empty = |dims: &[usize]| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
        let (ours, _) = layers(&empty(&[3, 0]), Some(&bias));
        let y = ours.forward(&empty(&[2, 2, 0])).unwrap();
        let expected = bias.broadcast_as((2, 2, 3)).unwrap();
        assert_same("bias rows", &y, &expected.contiguous().unwrap());
    }
}

/// Rank 1 and rank 5, documented by Candle and refused by it.
#[test]
fn ranks_one_and_five() {
    let (ours, theirs) = layers(&random(1, (5, 8), DType::F32), None);
    let flat = random(2, (12, 8), DType::F32);
    let expected = ours.forward(&flat).unwrap();
    let vector = flat.get(7).unwrap();
    assert!(theirs.forward(&vector).is_err());
    let y = ours.forward(&vector).unwrap();
    assert_same("rank 1", &y, &expected.get(7).unwrap());
    let deep = flat.reshape((2, 1, 3, 2, 8)).unwrap();
    assert!(theirs.forward(&deep).is_err());
    let y = ours.forward(&deep).unwrap();
    assert_same("rank 5", &y, &expected.reshape((2, 1, 3, 2, 5)).unwrap());
}

/// Size-1 dimensions with strides of no meaning, which must not be read.
#[test]
fn odd_strides_of_unit_dimensions() {
    let square = random(1, (13, 13), DType::F32);
    let odd = square.broadcast_as((1, 1, 13, 13)).unwrap();
    assert_eq!(odd.stride(), [0, 0, 13, 1]);
    let expected = matmul(&square, &square)
        .unwrap()
        .reshape((1, 1, 13, 13))
        .unwrap();
    assert_same("odd x odd", &matmul(&odd, &odd).unwrap(), &expected);
    let (ours, _) = layers(&square, None);
    let rows = ours
        .forward(&square)
        .unwrap()
        .reshape((1, 1, 13, 13))
        .unwrap();
    assert_same("odd through Linear", &ours.forward(&odd).unwrap(), &rows);

    // Single rows, columns and reductions cut out of a wide matrix keep its strides.
    let wide = random(2, (9, 31), DType::F32);
    let cut = |rows, cols| wide.narrow(0, 2, rows).unwrap().narrow(1, 3, cols).unwrap();
    for (m, k, n) in [
        (1, 4, 5),
        (4, 1, 5),
        (4, 5, 1),
        (1, 1, 5),
        (1, 5, 1),
        (5, 1, 1),
        (1, 1, 1),
    ] {
        let (a, b) = (cut(m, k), cut(k, n));
        for (at, bt) in [(false, false), (true, false), (false, true), (true, true)] {
            let seen = |t: &Tensor, transposed| match transposed {
                true => t.t().unwrap().contiguous().unwrap().t().unwrap(),
                false => t.clone(),
            };
            let got = matmul(&seen(&a, at), &seen(&b, bt)).unwrap();
            let dense = matmul(&a.contiguous().unwrap(), &b.contiguous().unwrap()).unwrap();
            assert_same(&format!("{m} {k} {n}"), &got, &dense);
        }
    }
}

/// An operand broadcast with strides of zero.
#[test]
fn broadcast_operand() {
    for dtype in DTYPES {
        let a = random(1, (1, 8, 1, 2, 128), dtype)
            .broadcast_as((1, 8, 2, 2, 128))
            .unwrap();
        let b = random(2, (1, 8, 1, 128, 2), dtype);
        assert_eq!(a.stride()[2], 0);
        let c = matmul(&a, &b).unwrap();
        let (av, bv) = (values(&a), values(&b));
        let entry = |i: usize| {
            let (head, row, col) = (i / 8, i / 2 % 4, i % 2);
            dot(128, |r| {
                (
                    av[(head * 4 + row) * 128 + r],
                    bv[(head * 128 + r) * 2 + col],
                )
            })
        };
        let expected: Vec<f32> = (0..64).map(entry).collect();
        assert_rounded("c", &c, &[1, 8, 2, 2, 2], &expected);
        assert!(
            a.broadcast_matmul(&b).is_err(),
            "Candle asks for dense operands"
        );
    }
}

/// 16-bit bias gradients: Candle's sum stops where adding one no longer changes it.
#[test]
fn bias_gradients_do_not_saturate() {
    for (dtype, stops_at) in [(DType::BF16, 256.0), (DType::F16, 2048.0)] {
        for (m, n) in [(1024, 1), (4096, 2)] {
            let one = Tensor::ones((m, 1), dtype, &Device::Cpu).unwrap();
            let w = Tensor::ones((n, 1), dtype, &Device::Cpu).unwrap();
            let b = Var::zeros(n, dtype, &Device::Cpu).unwrap();
            let (ours, theirs) = layers(&w, Some(&b));
            let gradient = |y: Tensor| {
                let grads = y.sum_all().unwrap().backward().unwrap();
                values(grads.get(&b).unwrap())
            };
            let got = gradient(ours.forward(&one).unwrap());
            assert_eq!(got, vec![m as f32; n], "{dtype:?}");
            let theirs = gradient(theirs.forward(&one).unwrap());
            assert_eq!(
                theirs,
                vec![f32::min(m as f32, stops_at); n],
                "Candle's {dtype:?}"
            );
        }
    }
}

/// Sums of the same kind that are weight gradients.
#[test]
fn weight_gradients_do_not_saturate() {
    for dtype in [DType::BF16, DType::F16] {
        let x = Tensor::ones((4096, 2), dtype, &Device::Cpu).unwrap();
        let w = Var::ones((3, 2), dtype, &Device::Cpu).unwrap();
        let (ours, _) = layers(&w, None);
        let grads = ours
            .forward(&x)
            .unwrap()
            .sum_all()
            .unwrap()
            .backward()
            .unwrap();
        assert_eq!(values(grads.get(&w).unwrap()), [4096.0; 6], "{dtype:?}");
    }
}

/// An f16 row whose partial sums leave f16's range and return: Candle sums in f16 where there is
/// more than one output.
#[test]
fn partial_sums_beyond_f16() {
    let a = filled(DType::F16, &[1, 4096], |_| 8.0);
    for n in [1, 2, 5] {
        let b = filled(DType::F16, &[4096, n], |i| {
            if i / n < 2048 { 8.0 } else { -8.0 }
        });
        assert_eq!(bits(&matmul(&a, &b).unwrap()), vec![0; n]);
        let (ours, _) = layers(&b.t().unwrap(), None);
        assert_eq!(bits(&ours.forward(&a).unwrap()), vec![0; n]);
        if n > 1 {
            assert_eq!(
                values(&a.matmul(&b).unwrap()),
                vec![f32::INFINITY; n],
                "Candle's"
            );
        }
    }
}

/// Linear, LayerNorm, Linear: Candle's fused LayerNorm has no backward pass, so the first layer
/// gets no gradient, whichever Linear it is; the unfused one passes it on.
#[test]
fn gradients_through_layer_norm() {
    let w = variable(1, (8, 8), DType::F32);
    let (first, their_first) = layers(&w, None);
    let (second, _) = layers(&random(2, (8, 8), DType::F32), None);
    let (scale, shift) = (random(3, 8, DType::F32), random(4, 8, DType::F32));
    let x = random(5, (4, 8), DType::F32);
    let fused = candle_nn::LayerNorm::new(scale.clone(), shift.clone(), 1e-5);
    for hidden in [first.forward(&x).unwrap(), their_first.forward(&x).unwrap()] {
        let y = second.forward(&fused.forward(&hidden).unwrap()).unwrap();
        let grads = y.sum_all().unwrap().backward().unwrap();
        assert!(
            grads.get(&w).is_none(),
            "Candle's fused LayerNorm has learnt to differentiate"
        );
    }
    let hidden = first.forward(&x).unwrap();
    let normed = candle_nn::ops::layer_norm_slow(&hidden, &scale, &shift, 1e-5).unwrap();
    let y = second.forward(&normed).unwrap();
    let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    assert!(values(grads.get(&w).unwrap()).iter().any(|&g| g != 0.0));
}

/// The same fault in Candle's other fused operations, and their unfused forms, which pass
/// gradients on.
#[test]
fn gradients_through_fused_softmax_and_rms_norm() {
    use candle_nn::ops::{rms_norm, rms_norm_slow, softmax, softmax_last_dim};
    let w = variable(1, (8, 8), DType::F32);
    let (first, _) = layers(&w, None);
    let scale = random(3, 8, DType::F32);
    let hidden = first.forward(&random(5, (4, 8), DType::F32)).unwrap();
    let reaches = |y: Tensor| {
        let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        grads
            .get(&w)
            .is_some_and(|grad| values(grad).iter().any(|&g| g != 0.0))
    };
    assert!(
        !reaches(softmax_last_dim(&hidden).unwrap()),
        "Candle's softmax_last_dim"
    );
    assert!(
        !reaches(rms_norm(&hidden, &scale, 1e-5).unwrap()),
        "Candle's rms_norm"
    );
    assert!(reaches(softmax(&hidden, candle_core::D::Minus1).unwrap()));
    assert!(reaches(rms_norm_slow(&hidden, &scale, 1e-5).unwrap()));
}
