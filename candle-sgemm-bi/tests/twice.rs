//! Second derivatives. Candle keeps the graph of a backward pass only when
//! `CANDLE_GRAD_DO_NOT_DETACH` is set, which each thread reads once: so this binary sets it first.

mod common;

use candle_core::{DType, Tensor, Var};
use candle_sgemm_bi::{Tier, WeightLayout, functional, matmul};
use common::*;

fn keep_graphs() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: every test of this binary calls this first, and its threads read no variable before
    // the one call has returned.
    ONCE.call_once(|| unsafe { std::env::set_var("CANDLE_GRAD_DO_NOT_DETACH", "1") });
}

/// For L = Σ f(vars)·c, compares the derivatives of S = Σᵢ ∂L/∂varᵢ·uᵢ with central differences of
/// Σ ∂L/∂varᵢ·uᵢ along random directions.
fn check_second(what: &str, vars: &[Var], f: impl Fn(&[Tensor]) -> Tensor) {
    let first = |at: &[Var]| {
        let tensors: Vec<Tensor> = at.iter().map(|var| var.as_tensor().clone()).collect();
        let y = f(&tensors);
        let c = random(77, y.dims(), y.dtype());
        // The square makes every first derivative depend on every argument.
        let grads = ((&y * &y).unwrap() * c)
            .unwrap()
            .sum_all()
            .unwrap()
            .backward()
            .unwrap();
        let terms = at.iter().enumerate().map(|(i, var)| {
            let u = random(100 + i as u64, var.dims(), var.dtype());
            let grad = grads.get(var).unwrap();
            (grad * u)
                .unwrap()
                .to_dtype(DType::F32)
                .unwrap()
                .sum_all()
                .unwrap()
        });
        terms.reduce(|a, b| (a + b).unwrap()).unwrap()
    };
    let grads = first(vars).backward().unwrap();
    for (i, var) in vars.iter().enumerate() {
        let second = grads
            .get(var)
            .unwrap_or_else(|| panic!("{what}: argument {i}: none"));
        assert_eq!(second.dims(), var.dims(), "{what}: argument {i}");
        assert_eq!(second.dtype(), var.dtype(), "{what}: argument {i}");
        let direction = random(200 + i as u64, var.dims(), var.dtype());
        let along = values(&(second * &direction).unwrap()).iter().sum::<f32>();
        let step = 1.0 / 64.0;
        let moved = |sign: f64| {
            let moved: Vec<Var> = vars
                .iter()
                .enumerate()
                .map(|(j, other)| {
                    let by = (&direction * (sign * step)).unwrap();
                    let at = if i == j {
                        (var.as_tensor() + by).unwrap()
                    } else {
                        other.copy().unwrap()
                    };
                    Var::from_tensor(&at.detach()).unwrap()
                })
                .collect();
            first(&moved).to_scalar::<f32>().unwrap()
        };
        let difference = (moved(1.0) - moved(-1.0)) / (2.0 * step as f32);
        let bound = 2e-3 * (1.0 + difference.abs());
        assert!(
            (along - difference).abs() < bound,
            "{what}: argument {i}: {along} is not near {difference}"
        );
    }
}

#[test]
fn linear_is_differentiable_twice() {
    keep_graphs();
    let shapes: [&[usize]; 3] = [&[3], &[4, 3], &[2, 3, 3]];
    for shape in shapes {
        for layout in [WeightLayout::OutIn, WeightLayout::InOut] {
            let weight = match layout {
                WeightLayout::OutIn => (2, 3),
                WeightLayout::InOut => (3, 2),
            };
            let vars = [
                variable(1, shape, DType::F32),
                variable(2, weight, DType::F32),
                variable(3, 2, DType::F32),
            ];
            check_second(&format!("{shape:?} {layout:?}"), &vars, |v| {
                functional::linear(&v[0], &v[1], Some(&v[2]), layout, Tier::Scalar).unwrap()
            });
            check_second(&format!("{shape:?} {layout:?} no bias"), &vars[..2], |v| {
                functional::linear(&v[0], &v[1], None, layout, Tier::Scalar).unwrap()
            });
        }
    }
}

#[test]
fn matmul_is_differentiable_twice() {
    keep_graphs();
    let pairs: [(&[usize], &[usize]); 5] = [
        (&[3], &[3]),
        (&[2, 3], &[3, 2]),
        (&[2, 2, 3], &[3, 2]),
        (&[2, 1, 2, 3], &[1, 2, 3, 2]),
        (&[3], &[2, 3, 2]),
    ];
    for (a, b) in pairs {
        let vars = [variable(1, a, DType::F32), variable(2, b, DType::F32)];
        check_second(&format!("{a:?} x {b:?}"), &vars, |v| {
            matmul(&v[0], &v[1]).unwrap()
        });
    }
}

#[test]
fn second_derivatives_of_16_bit_layers_keep_their_dtypes() {
    keep_graphs();
    let vars = [
        variable(1, (4, 3), DType::BF16),
        variable(2, (2, 3), DType::BF16),
        variable(3, 2, DType::F32),
    ];
    let [x, w, b] = &vars;
    let layout = WeightLayout::OutIn;
    let y = functional::linear(x, w, Some(b), layout, Tier::Scalar).unwrap();
    let grads = (&y * &y).unwrap().sum_all().unwrap().backward().unwrap();
    let sums = vars.iter().map(|var| {
        let grad = grads.get(var).unwrap().to_dtype(DType::F32).unwrap();
        grad.sum_all().unwrap()
    });
    let second = sums
        .reduce(|a, b| (a + b).unwrap())
        .unwrap()
        .backward()
        .unwrap();
    for var in &vars {
        let grad = second.get(var).unwrap();
        assert_eq!((grad.dims(), grad.dtype()), (var.dims(), var.dtype()));
    }
}

#[test]
fn the_third_derivative_exists() {
    keep_graphs();
    // y = (x·w)³ summed; the third derivative along w alone is 6·x³.
    let (x, w) = (random(1, 1, DType::F32), variable(2, (1, 1), DType::F32));
    let y = functional::linear(&x, &w, None, WeightLayout::OutIn, Tier::Scalar).unwrap();
    let mut at = (&y * (&y * &y).unwrap()).unwrap().sum_all().unwrap();
    for _ in 0..3 {
        at = at.backward().unwrap().get(&w).unwrap().sum_all().unwrap();
    }
    let x = values(&x)[0];
    let expected = 6.0 * x * x * x;
    let got = at.to_scalar::<f32>().unwrap();
    assert!(
        (got - expected).abs() < 1e-5,
        "{got} is not near {expected}"
    );
}
