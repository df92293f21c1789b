//! Tensors on a GPU against the same tensors on the CPU, bit for bit, forward and backward, through
//! layers, losses and the optimiser. Every test says that it is skipped where there is no GPU, and
//! fails instead if `SGEMM_BI_REQUIRE_GPU` is set.
#![cfg(feature = "cuda")]

mod common;

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::Optimizer;
use candle_sgemm_bi::{Linear, Module, Sgd, log_softmax, loss::cross_entropy, matmul};
use common::*;

fn gpu() -> Option<Device> {
    match Device::new_cuda(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var_os("SGEMM_BI_REQUIRE_GPU").is_some_and(|v| !v.is_empty());
            assert!(!required, "SGEMM_BI_REQUIRE_GPU is set: {error}");
            println!("skipped: {error}");
            None
        }
    }
}

/// Computes on both devices and compares every tensor that comes out.
#[track_caller]
fn compare(
    what: &str,
    inputs: &[Tensor],
    compute: impl Fn(&[Var]) -> Result<Vec<Tensor>>,
    gpu: &Device,
) {
    let on = |device: &Device| {
        let vars: Result<Vec<Var>> = inputs
            .iter()
            .map(|input| Var::from_tensor(&input.to_device(device)?))
            .collect();
        compute(&vars?)
    };
    let expected = on(&Device::Cpu).unwrap();
    let got = on(gpu).unwrap_or_else(|error| panic!("{what}: {error}"));
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert!(
            got.device().is_cuda(),
            "{what}: result {i} is not on the GPU"
        );
        assert_eq!(got.dims(), expected.dims(), "{what}: result {i}");
        let got = bits(&got.to_device(&Device::Cpu).unwrap());
        assert_same_words(&format!("{what}: result {i}"), &got, &bits(expected));
    }
}

/// The result and the gradients of the variables, from a sum that weighs the results unequally.
fn with_gradients(vars: &[Var], out: Tensor) -> Result<Vec<Tensor>> {
    // A gradient that is the same on both devices: the weights' own.
    let weights = random(99, out.shape().clone(), out.dtype()).to_device(out.device())?;
    let n = out.elem_count();
    let total = matmul(&out.reshape((1, n))?, &weights.reshape((n, 1))?)?;
    let grads = total.sum_all()?.backward()?;
    let of = |var: &Var| grads.get(var).cloned();
    Ok([out]
        .into_iter()
        .chain(vars.iter().filter_map(of))
        .collect())
}

#[test]
fn linear_layers_and_their_gradients() {
    let Some(gpu) = gpu() else { return };
    for dtype in DTYPES {
        for (batch, inputs, outputs) in [(1, 7, 5), (33, 64, 128), (300, 65, 10), (3, 5000, 17)] {
            let what = format!("{dtype:?} {batch}x{inputs}x{outputs}");
            let tensors = [
                random(1, (batch, inputs), dtype),
                random(2, (outputs, inputs), dtype),
                random(3, outputs, dtype),
            ];
            let forward = |vars: &[Var]| {
                let [x, w, b] = vars else {
                    unreachable!("three inputs")
                };
                let layer = Linear::new(w.as_tensor().clone(), Some(b.as_tensor().clone()));
                with_gradients(vars, layer.forward(x)?)
            };
            compare(&what, &tensors, forward, &gpu);
        }
    }
}

#[test]
fn products_of_any_layout() {
    let Some(gpu) = gpu() else { return };
    for dtype in DTYPES {
        let (a, b) = (
            random(4, (3, 2, 9, 20), dtype),
            random(5, (2, 20, 11), dtype),
        );
        let product = |vars: &[Var]| with_gradients(vars, matmul(&vars[0], &vars[1])?);
        compare(&format!("broadcast {dtype:?}"), &[a, b], product, &gpu);

        let (a, b) = (random(6, (4, 20, 9), dtype), random(7, (11, 4, 25), dtype));
        let product = |vars: &[Var]| {
            let a = vars[0].transpose(1, 2)?;
            let b = vars[1].narrow(2, 3, 20)?.permute((1, 2, 0))?;
            with_gradients(vars, matmul(&a, &b)?)
        };
        compare(&format!("strided {dtype:?}"), &[a, b], product, &gpu);
    }
}

#[test]
fn log_softmax_and_its_gradient() {
    let Some(gpu) = gpu() else { return };
    for dtype in DTYPES {
        for shape in [(1, 1), (5, 10), (40, 300), (2, 9000)] {
            let x = random(8, shape, dtype);
            let last = |vars: &[Var]| with_gradients(vars, log_softmax(&vars[0], D::Minus1)?);
            compare(
                &format!("{dtype:?} {shape:?}"),
                std::slice::from_ref(&x),
                last,
                &gpu,
            );
            let first = |vars: &[Var]| with_gradients(vars, log_softmax(&vars[0], 0)?);
            compare(&format!("{dtype:?} {shape:?}, first"), &[x], first, &gpu);
        }
    }
}

#[test]
fn cross_entropy_and_its_gradient() {
    let Some(gpu) = gpu() else { return };
    for dtype in DTYPES {
        for targets in [DType::U8, DType::U32, DType::I64] {
            let classes: Vec<u32> = (0..70).map(|i| i * 7 % 30).collect();
            let of = |vars: &[Var]| {
                let classes = Tensor::new(&classes[..], vars[0].device())?.to_dtype(targets)?;
                let loss = cross_entropy(&vars[0].t()?, &classes)?;
                let grads = loss.backward()?;
                Ok(vec![loss, grads.get(&vars[0]).expect("a gradient").clone()])
            };
            let what = format!("{dtype:?} {targets:?}");
            compare(&what, &[random(9, (30, 70), dtype)], of, &gpu);
        }
    }
    let logits = random(9, (3, 4), DType::F32).to_device(&gpu).unwrap();
    let wrong = Tensor::new(&[0i64, 4, -1], &gpu).unwrap();
    let refused = cross_entropy(&logits, &wrong).unwrap_err().to_string();
    assert!(
        refused.contains("target 4 of row 1 is out of range"),
        "{refused}"
    );
}

#[test]
fn a_training_step_updates_to_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    for dtype in DTYPES {
        let tensors = [
            random(10, (20, 12), dtype),
            random(11, (16, 12), dtype),
            random(12, 16, dtype),
            random(13, (5, 16), dtype),
        ];
        let train = |vars: &[Var]| {
            let [x, first, bias, second] = vars else {
                unreachable!("four inputs")
            };
            let classes: Vec<u32> = (0..20).map(|i| i % 5).collect();
            let classes = Tensor::new(&classes[..], x.device())?;
            let trained = vec![first.clone(), bias.clone(), second.clone()];
            let mut sgd = Sgd::new(trained, 0.3)?;
            for _ in 0..5 {
                let (w, b) = (first.as_tensor().clone(), bias.as_tensor().clone());
                let hidden = Linear::new(w, Some(b)).forward(x)?.relu()?;
                let logits = Linear::new(second.as_tensor().clone(), None).forward(&hidden)?;
                sgd.backward_step(&cross_entropy(&logits, &classes)?)?;
            }
            Ok(vars[1..]
                .iter()
                .map(|var| var.as_tensor().clone())
                .collect())
        };
        compare(&format!("{dtype:?}"), &tensors, train, &gpu);
    }
}

#[test]
fn tensors_of_nothing() {
    let Some(gpu) = gpu() else { return };
    let x = random(14, (2, 6), DType::F32).to_device(&gpu).unwrap();
    let w = random(15, (6, 3), DType::F32).to_device(&gpu).unwrap();
    let none = x.narrow(0, 0, 0).unwrap();
    assert_eq!(matmul(&none, &w).unwrap().dims(), [0, 3]);
    assert_eq!(log_softmax(&none, D::Minus1).unwrap().dims(), [0, 6]);
    let nothing = x.narrow(1, 0, 0).unwrap();
    let sum = matmul(&nothing, &w.narrow(0, 0, 0).unwrap()).unwrap();
    assert_eq!(sum.to_vec2::<f32>().unwrap(), [[0.0; 3]; 2]);
    let classes = Tensor::new(&[0u32], &gpu).unwrap().narrow(0, 0, 0).unwrap();
    assert!(
        cross_entropy(&none, &classes)
            .unwrap()
            .to_scalar::<f32>()
            .unwrap()
            .is_nan()
    );
}
