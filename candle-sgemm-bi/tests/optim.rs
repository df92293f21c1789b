//! `Sgd`: two roundings, never a fused one, in every dtype.

mod common;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::Optimizer;
use candle_sgemm_bi::Sgd;
use common::*;

/// One step on a variable whose gradient is `g`.
fn step(w: &Var, g: &Tensor, learning_rate: f64) {
    let mut sgd = Sgd::new(vec![w.clone()], learning_rate).unwrap();
    let loss = w.mul(g).unwrap().sum_all().unwrap();
    sgd.backward_step(&loss).unwrap();
}

#[test]
fn rounds_the_product_and_then_the_difference() {
    for dtype in DTYPES {
        let w = variable(1, 1_000, dtype);
        let g = random(2, 1_000, dtype);
        let (before, gradient) = (values(&w), values(&g));
        step(&w, &g, 0.1);
        let mut fused_differs = false;
        let mut want = Vec::new();
        for (w, g) in before.into_iter().zip(gradient) {
            let product = 0.1f32 * g;
            let difference = w - product;
            fused_differs |= (-0.1f32).mul_add(g, w) != difference;
            want.push(difference);
        }
        assert!(
            fused_differs || dtype != DType::F32,
            "the data tells nothing"
        );
        assert_rounded(&format!("{dtype:?}"), &w, &[1_000], &want);
    }
}

/// A host that flushes subnormals (contract section 2).
#[cfg(target_arch = "x86_64")]
#[test]
fn the_callers_floating_point_state_does_not_matter() {
    use std::arch::asm;

    let w = Var::new(&[0f32, 1.0e-38], &Device::Cpu).unwrap();
    let g = Tensor::new(&[1.0e-38f32, 3.0e-36], &Device::Cpu).unwrap();
    let mut sgd = Sgd::new(vec![w.clone()], 1.0e-3).unwrap();
    let grads = w.mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
    let (mut found, flushing) = (0u32, 0x9FC0u32);
    // SAFETY: the two words are live; every exception stays masked, and the state is put back.
    unsafe {
        asm!("stmxcsr [{}]", in(reg) &mut found, options(nostack));
        asm!("ldmxcsr [{}]", in(reg) &flushing, options(nostack));
    }
    let outcome = sgd.step(&grads);
    // SAFETY: as above.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &found, options(nostack)) };
    outcome.unwrap();
    let rate = 1.0e-3f32;
    let want = [-(rate * 1.0e-38f32), 1.0e-38 - rate * 3.0e-36];
    assert!(want.iter().all(|w| w.is_subnormal()));
    let got = w.to_vec1::<f32>().unwrap();
    assert_eq!([got[0], got[1]].map(f32::to_bits), want.map(f32::to_bits));
}

#[test]
fn f64_weights_stay_in_f64() {
    let w = Var::new(&[1f64, 2.], &Device::Cpu).unwrap();
    step(&w, &Tensor::new(&[0.3f64, -7.], &Device::Cpu).unwrap(), 0.1);
    let want = [1.0 - 0.1 * 0.3, 2.0 - 0.1 * -7.0];
    assert_eq!(w.to_vec1::<f64>().unwrap(), want);
}

#[test]
fn behaves_as_candles() {
    let (used, unused) = (variable(1, 3, DType::F32), variable(2, 3, DType::F32));
    let integers = Var::new(&[1u32, 2], &Device::Cpu).unwrap();
    let vars = vec![used.clone(), unused.clone(), integers];
    let mut sgd = Sgd::new(vars, 1.0).unwrap();
    assert_eq!(sgd.learning_rate(), 1.0);
    sgd.set_learning_rate(0.25);
    assert_eq!(sgd.learning_rate(), 0.25);

    let (before, untouched) = (values(&used), values(&unused));
    let loss = used.sum_all().unwrap();
    sgd.step(&loss.backward().unwrap()).unwrap();
    let want: Vec<f32> = before.iter().map(|w| w - 0.25).collect();
    assert_eq!(values(&used), want);
    assert_eq!(values(&unused), untouched);
    assert_eq!(sgd.into_inner().len(), 2);
}
