//! `loss::cross_entropy` against the core's naive reference bit for bit, against f64 mathematics
//! within its error bound, and its refusals.

mod common;

use candle_core::{DType, Device, Tensor, Var};
use candle_sgemm_bi::loss::cross_entropy;
use common::*;
use sgemm_bi_core::{Rows, reference};

/// The loss, and the gradient of the logits for a gradient `grad` of the loss, as bits.
fn expected(logits: &Tensor, targets: &[i64], grad: f32) -> (u32, Vec<u32>) {
    let (n, classes) = logits.dims2().unwrap();
    let rows = Rows::new(n, classes);
    macro_rules! of {
        ($element:ty) => {{
            let flat = logits.contiguous().unwrap().flatten_all().unwrap();
            let logits = flat.to_vec1::<$element>().unwrap();
            let mut out = logits.clone();
            let loss = reference::cross_entropy(&rows, &logits, targets).unwrap();
            reference::cross_entropy_backward(&rows, &logits, targets, grad, &mut out).unwrap();
            let out = out.into_iter().map(sgemm_bi_core::Element::bits).collect();
            (rounded_bits(flat.dtype(), loss), out)
        }};
    }
    match logits.dtype() {
        DType::F32 => of!(f32),
        DType::BF16 => of!(half::bf16),
        DType::F16 => of!(half::f16),
        other => panic!("no reference for {other:?}"),
    }
}

fn targets(n: usize, classes: usize) -> Vec<i64> {
    (0..n).map(|i| (i * 7 % classes) as i64).collect()
}

/// A vector whose elements lie two apart, starting at the second.
fn strided(values: &[i64], dtype: DType) -> Tensor {
    let spread: Vec<i64> = values.iter().flat_map(|&v| [0, v]).collect();
    let table = Tensor::from_vec(spread, (values.len(), 2), &Device::Cpu).unwrap();
    let column = table.to_dtype(dtype).unwrap().narrow(1, 1, 1).unwrap();
    let column = column.squeeze(1).unwrap();
    assert!(values.len() < 2 || !column.is_contiguous());
    column
}

#[test]
fn every_layout_and_dtype_has_the_references_bits() {
    for dtype in DTYPES {
        let all = random(1, (40, 60), dtype);
        for (what, logits) in [
            ("dense", all.clone()),
            ("transposed", all.t().unwrap()),
            ("columns", all.narrow(1, 5, 10).unwrap()),
            ("one row", all.narrow(0, 7, 1).unwrap()),
            ("one class", all.narrow(1, 3, 1).unwrap()),
            (
                "broadcast",
                random(2, (1, 10), dtype).broadcast_as((6, 10)).unwrap(),
            ),
            ("long", random(3, (4_100, 3), dtype)),
        ] {
            let (n, classes) = logits.dims2().unwrap();
            let index = targets(n, classes);
            for target_dtype in [DType::U32, DType::I64, DType::U8] {
                let what = format!("{what} {dtype:?} {target_dtype:?}");
                let logits = Var::from_tensor(&logits).unwrap();
                let loss = cross_entropy(&logits, &strided(&index, target_dtype)).unwrap();
                assert_eq!((loss.dims(), loss.dtype()), (&[][..], dtype), "{what}");

                // A gradient of the loss other than one.
                let grad = Tensor::new(0.75f32, &Device::Cpu)
                    .unwrap()
                    .to_dtype(dtype)
                    .unwrap();
                let dlogits = backward(&loss, &grad).remove(logits.as_tensor()).unwrap();
                assert_eq!(
                    (dlogits.dims(), dlogits.dtype()),
                    (logits.dims(), dtype),
                    "{what}"
                );
                let (want_loss, want_gradient) = expected(&logits, &index, 0.75);
                assert_same_words(&what, &bits(&loss), &[want_loss]);
                assert_same_words(
                    &format!("{what}: gradient"),
                    &bits(&dlogits),
                    &want_gradient,
                );
            }
        }
    }
}

/// A gradient check: central differences of the loss in f64, and its value.
#[test]
fn values_and_gradients_are_those_of_the_mathematics() {
    let (n, classes) = (6, 9);
    let logits = variable(3, (n, classes), DType::F32);
    let index = targets(n, classes);
    let loss = cross_entropy(&logits, &strided(&index, DType::U32)).unwrap();
    let dlogits = loss.backward().unwrap().remove(logits.as_tensor()).unwrap();

    let exact: Vec<f64> = values(&logits).into_iter().map(f64::from).collect();
    let mean = |x: &[f64]| {
        let row = |(row, &t): (&[f64], &i64)| {
            row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[t as usize]
        };
        x.chunks(classes).zip(&index).map(row).sum::<f64>() / n as f64
    };
    let got = f64::from(values(&loss)[0]);
    assert!((got - mean(&exact)).abs() < 5e-7, "{got} {}", mean(&exact));
    for (j, &got) in values(&dlogits).iter().enumerate() {
        let at = |step: f64| {
            let mut moved = exact.clone();
            moved[j] += step;
            mean(&moved)
        };
        let want = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!(
            (f64::from(got) - want).abs() < 1e-7,
            "element {j}: {got} {want}"
        );
    }
}

/// 4,096 equal rows in bf16: the mean is the loss of one row. Candle's own adds up in bf16.
#[test]
fn long_batches_do_not_saturate_in_16_bits() {
    let row = Tensor::new(&[0f32, 1., 2.], &Device::Cpu).unwrap();
    let row = row.to_dtype(DType::BF16).unwrap();
    let logits = row.broadcast_as((4_096, 3)).unwrap().contiguous().unwrap();
    let index = Tensor::zeros(4_096, DType::U32, &Device::Cpu).unwrap();
    let ours = values(&cross_entropy(&logits, &index).unwrap())[0];
    let one = cross_entropy(
        &logits.narrow(0, 0, 1).unwrap(),
        &index.narrow(0, 0, 1).unwrap(),
    );
    assert_eq!(ours.to_bits(), values(&one.unwrap())[0].to_bits());
    assert!((ours - 2.4076).abs() < 0.01, "{ours}");
    let theirs = values(&candle_nn::loss::cross_entropy(&logits, &index).unwrap())[0];
    assert!(
        (theirs - 2.4076).abs() > 0.1,
        "Candle's {theirs} has become exact"
    );
}

#[test]
fn agrees_with_candle() {
    let logits = random(5, (32, 10), DType::F32);
    let index = strided(&targets(32, 10), DType::U32).contiguous().unwrap();
    let ours = values(&cross_entropy(&logits, &index).unwrap())[0];
    let theirs = values(&candle_nn::loss::cross_entropy(&logits, &index).unwrap())[0];
    assert!((ours - theirs).abs() < 1e-6, "{ours} {theirs}");
}

#[test]
fn no_rows_give_nan_and_an_empty_gradient() {
    let logits = variable(1, (0, 4), DType::F32);
    let loss = cross_entropy(&logits, &strided(&[], DType::I64)).unwrap();
    assert_same_words("loss", &bits(&loss), &[0x7FFF_FFFF]);
    let dlogits = loss.backward().unwrap().remove(logits.as_tensor()).unwrap();
    assert_eq!(dlogits.dims(), [0, 4]);
}

/// Targets that were computed from a variable are data, not something to differentiate.
#[test]
fn targets_need_no_gradient() {
    let index = Var::new(&[1f32, 0.], &Device::Cpu).unwrap();
    let index = index.sqr().unwrap().to_dtype(DType::U32).unwrap();
    let logits = variable(1, (2, 3), DType::F32);
    let loss = cross_entropy(&logits, &index).unwrap();
    assert!(loss.backward().unwrap().get(&logits).is_some());
}

#[test]
fn refusals() {
    let logits = random(1, (2, 3), DType::F32);
    let index = |values: &[i64]| Tensor::new(values, &Device::Cpu).unwrap();
    for (logits, targets, message) in [
        (
            &logits,
            index(&[0, 3]),
            "cross_entropy: target 3 of row 1 is out of range: expected 0 to 3 (exclusive)",
        ),
        (
            &logits,
            index(&[-100, 0]),
            "cross_entropy: target -100 of row 0 is out of range: expected 0 to 3 (exclusive)",
        ),
        (
            &logits,
            index(&[0]),
            "cross_entropy: targets has the wrong shape: expected [2], one for each row of logits \
             [2, 3], got [1]",
        ),
        (
            &logits,
            index(&[0, 1]).unsqueeze(1).unwrap(),
            "cross_entropy: targets has the wrong rank: expected 1, got shape [2, 1]",
        ),
        (
            &logits,
            index(&[0, 1]).to_dtype(DType::F32).unwrap(),
            "cross_entropy: targets has the wrong dtype: expected u32, i64 or u8, got f32",
        ),
        (
            &logits.unsqueeze(0).unwrap(),
            index(&[0]),
            "cross_entropy: logits has the wrong rank: expected 2, got shape [1, 2, 3]",
        ),
        (
            &logits.to_dtype(DType::F64).unwrap(),
            index(&[0, 1]),
            "cross_entropy: logits has the wrong dtype: expected f32, bf16 or f16, got f64",
        ),
    ] {
        assert_error(cross_entropy(logits, &targets), &[message]);
    }
    let no_class = random(1, (1, 0), DType::F32);
    let message = "target 0 of row 0 is out of range: expected 0 to 0 (exclusive)";
    assert_error(cross_entropy(&no_class, &index(&[0])), &[message]);

    // A second derivative is refused by name, not silently zero.
    let logits = Var::from_tensor(&logits).unwrap();
    let loss = cross_entropy(&logits, &index(&[0, 1])).unwrap();
    let dlogits = loss.backward().unwrap().remove(logits.as_tensor()).unwrap();
    let twice = dlogits
        .sqr()
        .unwrap()
        .sum_all()
        .unwrap()
        .backward()
        .map(|_| loss);
    assert_error(twice, &["cross_entropy backward"]);
}
