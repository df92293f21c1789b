//! Shared by the tests: data, the contract's arithmetic written naively, and bit comparison.
#![allow(dead_code, missing_docs)]

use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_sgemm_bi::Linear;
use half::{bf16, f16};
use sgemm_bi_core::Element;
use sgemm_bi_core::contract::CHUNK;

pub const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Reproducible values in [−1, 1) with 24 significant bits, rounded to `dtype`.
pub fn random(seed: u64, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let shape = shape.into();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values: Vec<f32> = (0..shape.elem_count())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect();
    let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
    tensor.to_dtype(dtype).unwrap()
}

/// A variable holding [`random`] values.
pub fn variable(seed: u64, shape: impl Into<Shape>, dtype: DType) -> Var {
    Var::from_tensor(&random(seed, shape, dtype)).unwrap()
}

/// The elements in row-major order, widened.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    let flat = tensor.contiguous().unwrap().flatten_all().unwrap();
    flat.to_dtype(DType::F32).unwrap().to_vec1().unwrap()
}

/// The bits of the elements in row-major order.
pub fn bits(tensor: &Tensor) -> Vec<u32> {
    let flat = tensor.contiguous().unwrap().flatten_all().unwrap();
    fn of<T: Element>(elements: Vec<T>) -> Vec<u32> {
        elements.into_iter().map(Element::bits).collect()
    }
    match flat.dtype() {
        DType::F32 => of(flat.to_vec1::<f32>().unwrap()),
        DType::BF16 => of(flat.to_vec1::<bf16>().unwrap()),
        DType::F16 => of(flat.to_vec1::<f16>().unwrap()),
        other => panic!("no bits of {other:?}"),
    }
}

/// The bits of `value` rounded once to `dtype`.
pub fn rounded_bits(dtype: DType, value: f32) -> u32 {
    match dtype {
        DType::F32 => <f32 as Element>::round(value).bits(),
        DType::BF16 => <bf16 as Element>::round(value).bits(),
        DType::F16 => <f16 as Element>::round(value).bits(),
        other => panic!("no bits of {other:?}"),
    }
}

#[track_caller]
pub fn assert_same_words(what: &str, got: &[u32], expected: &[u32]) {
    assert_eq!(got.len(), expected.len(), "{what}: number of elements");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            got == expected,
            "{what}: element {i}: got {got:#010x}, expected {expected:#010x}"
        );
    }
}

/// Asserts a shape, and that each element is the expected f32 rounded once to the tensor's dtype.
#[track_caller]
pub fn assert_rounded(what: &str, got: &Tensor, dims: &[usize], expected: &[f32]) {
    assert_eq!(got.dims(), dims, "{what}: shape");
    let dtype = got.dtype();
    let expected: Vec<u32> = expected.iter().map(|&v| rounded_bits(dtype, v)).collect();
    assert_same_words(what, &bits(got), &expected);
}

/// Asserts equal shapes, dtypes and bits.
#[track_caller]
pub fn assert_same(what: &str, got: &Tensor, expected: &Tensor) {
    assert_eq!(got.dims(), expected.dims(), "{what}: shape");
    assert_eq!(got.dtype(), expected.dtype(), "{what}: dtype");
    assert_same_words(what, &bits(got), &bits(expected));
}

/// Asserts an error whose message holds every one of `parts`.
#[track_caller]
pub fn assert_error(result: Result<Tensor>, parts: &[&str]) {
    let message = result.expect_err("should be refused").to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

/// Contract sections 3 and 4: chunks of fused multiply-adds, added in ascending order.
pub fn dot(reduction: usize, term: impl Fn(usize) -> (f32, f32)) -> f32 {
    chunks(reduction, |acc, r| {
        let (a, b) = term(r);
        a.mul_add(b, acc)
    })
}

/// Contract section 3: chunks of additions.
pub fn sum(reduction: usize, term: impl Fn(usize) -> f32) -> f32 {
    chunks(reduction, |acc, r| acc + term(r))
}

fn chunks(reduction: usize, step: impl Fn(f32, usize) -> f32) -> f32 {
    let chunk = |first: usize| (first..reduction.min(first + CHUNK)).fold(0.0, &step);
    (0..reduction)
        .step_by(CHUNK)
        .fold(0.0, |total, first| total + chunk(first))
}

/// The sizes of a linear layer's product, all leading dimensions of x together in `m`.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

/// The contract's values of a layer with weight `[out, in]`, before the one rounding.
pub struct Expected {
    pub y: Vec<f32>,
    pub dx: Vec<f32>,
    pub dw: Vec<f32>,
    pub db: Vec<f32>,
}

/// Computes [`Expected`] from row-major values.
pub fn expected(size: Sizes, x: &[f32], w: &[f32], bias: Option<&[f32]>, dy: &[f32]) -> Expected {
    let Sizes { m, k, n } = size;
    let table = |rows: usize, cols: usize, of: &dyn Fn(usize, usize) -> f32| {
        (0..rows * cols)
            .map(|i| of(i / cols, i % cols))
            .collect::<Vec<f32>>()
    };
    Expected {
        y: table(m, n, &|i, j| {
            let total = dot(k, |r| (x[i * k + r], w[j * k + r]));
            bias.map_or(total, |bias| total + bias[j])
        }),
        dx: table(m, k, &|i, j| dot(n, |r| (dy[i * n + r], w[r * k + j]))),
        dw: table(n, k, &|i, j| dot(m, |r| (x[r * k + j], dy[r * n + i]))),
        db: table(1, n, &|_, j| sum(m, |r| dy[r * n + j])),
    }
}

/// The gradients of Σ y·dy, so that y's gradient is exactly `dy`.
pub fn backward(y: &Tensor, dy: &Tensor) -> candle_core::backprop::GradStore {
    (y * dy).unwrap().sum_all().unwrap().backward().unwrap()
}

/// The same tensors in this crate's layer and in Candle's.
pub fn layers(w: &Tensor, b: Option<&Tensor>) -> (Linear, candle_nn::Linear) {
    let theirs = candle_nn::Linear::new(w.clone(), b.cloned());
    (Linear::from(&theirs), theirs)
}

pub fn largest_difference(a: &Tensor, b: &Tensor) -> f32 {
    let pairs = values(a).into_iter().zip(values(b));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

pub fn different_words(a: &Tensor, b: &Tensor) -> usize {
    bits(a)
        .iter()
        .zip(bits(b))
        .filter(|(a, b)| **a != *b)
        .count()
}

pub fn rows(x: &Tensor, len: usize) -> Tensor {
    x.narrow(0, 0, len).unwrap()
}

pub fn filled(dtype: DType, dims: &[usize], values: impl Fn(usize) -> f32) -> Tensor {
    let len: usize = dims.iter().product();
    let values: Vec<f32> = (0..len).map(values).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)
        .unwrap()
        .to_dtype(dtype)
        .unwrap()
}
