//! The tensor-core tiers through `Linear` and `matmul`, forward and backward, against the core's
//! reference of the contract.

mod common;

use candle_core::{DType, Module, Tensor};
use candle_sgemm_bi::{Linear, TensorCoreModel, Tier, WeightLayout, functional};
use common::*;
use half::{bf16, f16};
use sgemm_bi_core::{Dtype, Element, Gemm, Operands, Shape, SliceMut, SliceRef, reference};

const SIZE: Shape = Shape { m: 5, k: 37, n: 19 };

fn tiers() -> impl Iterator<Item = Tier> {
    [TensorCoreModel::Ampere, TensorCoreModel::Hopper]
        .into_iter()
        .map(Tier::TensorCore)
}

/// Computes a dense product of 16-bit operands with the reference; the output's bits.
fn by_reference<T: Element + candle_core::WithDType>(
    gemm: Gemm,
    operands: [&Tensor; 2],
    bias: Option<&Tensor>,
    len: usize,
) -> Vec<u32>
where
    for<'a> SliceRef<'a>: From<&'a Vec<T>>,
    for<'a> SliceMut<'a>: From<&'a mut Vec<T>>,
{
    let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<T>().unwrap();
    let [a, b] = operands.map(flat);
    let bias = bias.map(flat);
    let gemm = gemm.with_out_dtype(<T as Element>::DTYPE);
    let mut out = vec![<T as Element>::round(0.0); len];
    let operands = Operands::new(&a, &b, &mut out);
    match &bias {
        None => reference::gemm(&gemm, operands),
        Some(bias) => reference::gemm(
            &gemm.with_bias(<T as Element>::DTYPE),
            operands.with_bias(bias),
        ),
    }
    .unwrap();
    out.into_iter().map(Element::bits).collect()
}

fn check<T: Element + candle_core::WithDType>(dtype: DType)
where
    for<'a> SliceRef<'a>: From<&'a Vec<T>>,
    for<'a> SliceMut<'a>: From<&'a mut Vec<T>>,
{
    let Shape { m, k, n } = SIZE;
    let (x, w) = (variable(1, (m, k), dtype), variable(2, (n, k), dtype));
    let (b, dy) = (variable(3, n, dtype), random(4, (m, n), dtype));
    let layer = Linear::new(w.as_tensor().clone(), Some(b.as_tensor().clone()));
    let scalar = backward(&layer.forward(&x).unwrap(), &dy);
    for tier in tiers() {
        let layer = layer.clone().with_tier(tier);
        let y = layer.forward(&x).unwrap();
        let grads = backward(&y, &dy);
        let layout = WeightLayout::OutIn;
        let gemm = |of: fn(Shape, Dtype, WeightLayout) -> Gemm| {
            of(SIZE, <T as Element>::DTYPE, layout).with_tier(tier)
        };
        let what = |name: &str| format!("{name} {dtype:?} {tier}");
        let expected = by_reference::<T>(gemm(Gemm::forward), [&x, &w], Some(&b), m * n);
        assert_same_words(&what("y"), &bits(&y), &expected);
        let expected = by_reference::<T>(gemm(Gemm::input_gradient), [&dy, &w], None, m * k);
        assert_same_words(&what("dx"), &bits(grads.get(&x).unwrap()), &expected);
        let expected = by_reference::<T>(gemm(Gemm::weight_gradient), [&x, &dy], None, n * k);
        assert_same_words(&what("dw"), &bits(grads.get(&w).unwrap()), &expected);
        assert_same(&what("db"), grads.get(&b).unwrap(), scalar.get(&b).unwrap());

        let in_out = w.t().unwrap();
        let same = functional::linear(&x, &in_out, Some(&b), WeightLayout::InOut, tier).unwrap();
        assert_same(&what("[in, out]"), &same, &y);
        let c = functional::matmul(&x, &in_out, tier).unwrap();
        let bare = functional::linear(&x, &w, None, layout, tier).unwrap();
        assert_same(&what("matmul"), &c, &bare);
        for row in 0..m {
            let alone = layer.forward(&x.get(row).unwrap()).unwrap();
            assert_same(&what("row alone"), &alone, &y.get(row).unwrap());
        }
    }
}

#[test]
fn tensor_core_tiers_are_the_references() {
    check::<bf16>(DType::BF16);
    check::<f16>(DType::F16);
}

#[test]
fn a_tier_names_other_bits() {
    let (x, w) = (
        random(1, (8, 512), DType::F16),
        random(2, (64, 512), DType::F16),
    );
    let of = |tier| functional::linear(&x, &w, None, WeightLayout::OutIn, tier).unwrap();
    let scalar = bits(&of(Tier::Scalar));
    for tier in tiers() {
        assert_ne!(bits(&of(tier)), scalar, "{tier}");
    }
}
