//! The replay against the reference, bit for bit.

use half::{bf16, f16};

use crate::TensorCoreModel::{Ampere, Hopper};
use crate::cpu::Simd;
use crate::{
    BatchDim, CpuEngine, Dtype, Element, Gemm, Operands, Shape, SliceMut, SliceRef, Tier, View,
    WeightLayout, reference,
};

/// A 16-bit operand type.
trait Sixteen: Element {
    fn from_bits(bits: u16) -> Self;
    fn slice(values: &[Self]) -> SliceRef<'_>;
    fn slice_mut(values: &mut [Self]) -> SliceMut<'_>;
}

impl Sixteen for bf16 {
    fn from_bits(bits: u16) -> Self {
        bf16::from_bits(bits)
    }

    fn slice(values: &[Self]) -> SliceRef<'_> {
        values.into()
    }

    fn slice_mut(values: &mut [Self]) -> SliceMut<'_> {
        values.into()
    }
}

impl Sixteen for f16 {
    fn from_bits(bits: u16) -> Self {
        f16::from_bits(bits)
    }

    fn slice(values: &[Self]) -> SliceRef<'_> {
        values.into()
    }

    fn slice_mut(values: &mut [Self]) -> SliceMut<'_> {
        values.into()
    }
}

/// What the operands hold.
#[derive(Clone, Copy, Debug)]
enum Values {
    /// Magnitudes from 2^-4 to 4.
    Ordinary,
    /// Any finite bits, so exponents far apart, subnormals, and sums that overflow.
    Finite,
    /// The largest significand and exponent 0, all positive: the largest sums of a block.
    Full,
    /// Finite values of the smallest magnitudes, and zeros.
    Tiny,
    /// Mostly ordinary values, with zeros, infinities and NaN strewn in.
    Special,
    /// Any bits.
    Any,
}

const ALL_VALUES: [Values; 6] = [
    Values::Ordinary,
    Values::Finite,
    Values::Full,
    Values::Tiny,
    Values::Special,
    Values::Any,
];

/// Seeded bits (splitmix64).
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn value<T: Sixteen>(&mut self, values: Values) -> T {
        let bits = self.next() as u16;
        match values {
            Values::Any => T::from_bits(bits),
            Values::Finite => Some(T::from_bits(bits))
                .filter(|value| value.widen().is_finite())
                .unwrap_or(T::from_bits(0)),
            // Just below 2 in bf16 and in f16 alike.
            Values::Full => T::from_bits(0x3fff),
            // In bf16 a product of two of these lies about the smallest subnormal binary32.
            Values::Tiny => match T::DTYPE {
                Dtype::BF16 => T::from_bits((bits & 0x83ff) | 0x1c00),
                _ => T::from_bits(bits & 0x83ff),
            },
            Values::Ordinary => {
                let magnitude = (self.next() >> 40) as f32 / (1u32 << 24) as f32 + 1.0;
                let scale = 2f32.powi((bits >> 1) as i32 % 6 - 4);
                T::round(if bits & 1 == 0 { magnitude } else { -magnitude } * scale)
            }
            Values::Special => match self.next() % 200 {
                0 => T::round(f32::INFINITY),
                1 => T::round(f32::NEG_INFINITY),
                2 => T::round(f32::NAN),
                3..60 => T::round(0.0),
                _ => self.value(Values::Ordinary),
            },
        }
    }

    fn values<T: Sixteen>(&mut self, count: usize, values: Values) -> Vec<T> {
        (0..count).map(|_| self.value(values)).collect()
    }

    /// Values of a binary32 accumulator: any bits of it for `Any`, ordinary ones otherwise.
    fn held(&mut self, count: usize, values: Values) -> Vec<f32> {
        let held = |_| match values {
            Values::Any => f32::from_bits(self.next() as u32),
            _ => self.value::<bf16>(Values::Ordinary).widen(),
        };
        (0..count).map(held).collect()
    }
}

/// An output of a problem's output type.
#[derive(Clone)]
enum Output<T> {
    Single(Vec<f32>),
    Half(Vec<T>),
}

impl<T: Sixteen> Output<T> {
    fn slice_mut(&mut self) -> SliceMut<'_> {
        match self {
            Output::Single(values) => values.into(),
            Output::Half(values) => T::slice_mut(values),
        }
    }

    fn words(&self) -> Vec<u32> {
        match self {
            Output::Single(values) => values.iter().map(|value| value.to_bits()).collect(),
            Output::Half(values) => values.iter().map(|value| value.bits()).collect(),
        }
    }
}

/// Lengths of a problem's slices.
#[derive(Clone, Copy)]
struct Lengths {
    lhs: usize,
    rhs: usize,
    out: usize,
}

impl Lengths {
    fn dense(gemm: &Gemm) -> Self {
        let (rows, cols, r) = (gemm.rows(), gemm.cols(), gemm.reduction());
        Lengths {
            lhs: rows * r,
            rhs: r * cols,
            out: rows * cols,
        }
    }
}

/// Compares engines with the reference on seeded data.
#[track_caller]
fn compare<T: Sixteen>(engines: &[CpuEngine], gemm: &Gemm, lengths: Lengths, values: Values) {
    let mut bits = Bits(gemm.reduction() as u64 ^ (values as u64) << 32);
    let lhs: Vec<T> = bits.values(lengths.lhs, values);
    let rhs: Vec<T> = bits.values(lengths.rhs, values);
    let bias = bits.held(gemm.cols(), values);
    let held = bits.held(lengths.out, values);
    let held = match gemm.out_dtype() {
        Dtype::F32 => Output::Single(held),
        _ => Output::Half(held.into_iter().map(T::round).collect()),
    };
    let result_of = |run: &dyn Fn(Operands<'_>) -> crate::Result<()>| {
        let mut out = held.clone();
        let operands = Operands {
            lhs: T::slice(&lhs),
            rhs: T::slice(&rhs),
            bias: gemm.bias().map(|_| (&bias).into()),
            out: out.slice_mut(),
        };
        run(operands).expect("a valid problem");
        out.words()
    };
    let expected = result_of(&|operands| reference::gemm(gemm, operands));
    for engine in engines {
        let got = result_of(&|operands| engine.gemm(gemm, operands));
        let pairs = got.iter().zip(&expected).enumerate();
        for (index, (got, expected)) in pairs {
            assert!(
                got == expected,
                "element {index}: got {got:08x}, expected {expected:08x}: {values:?}, {engine:?}, \
                 {gemm:?}"
            );
        }
    }
}

/// Compares on dense operands of both dtypes, in both models.
#[track_caller]
fn compare_dense(engines: &[CpuEngine], gemm: impl Fn(Dtype) -> Gemm, values: Values) {
    for model in [Ampere, Hopper] {
        let gemm = |dtype| gemm(dtype).with_tier(Tier::TensorCore(model));
        let (bf16_gemm, f16_gemm) = (gemm(Dtype::BF16), gemm(Dtype::F16));
        compare::<bf16>(engines, &bf16_gemm, Lengths::dense(&bf16_gemm), values);
        compare::<f16>(engines, &f16_gemm, Lengths::dense(&f16_gemm), values);
    }
}

fn engine() -> CpuEngine {
    CpuEngine::new().expect("an engine")
}

/// An engine at every SIMD level.
fn every_level() -> Vec<CpuEngine> {
    let engines = Simd::available().map(|simd| engine().with_simd(simd).expect("available"));
    engines.collect()
}

#[test]
fn every_tail_of_the_reduction() {
    let engines = every_level();
    for k in 1..=64 {
        let shape = Shape { m: 3, k, n: 18 };
        for values in [Values::Ordinary, Values::Any] {
            compare_dense(&engines, |dtype| Gemm::matmul(shape, dtype), values);
        }
    }
}

#[test]
fn every_kind_of_value() {
    let engines = every_level();
    let shape = Shape {
        m: 9,
        k: 200,
        n: 33,
    };
    for values in ALL_VALUES {
        let gemm = |dtype| Gemm::matmul(shape, dtype).with_out_dtype(Dtype::F32);
        compare_dense(&engines, gemm, values);
        compare_dense(&engines, |dtype| Gemm::matmul(shape, dtype), values);
    }
}

#[test]
fn ragged_shapes_on_several_threads() {
    let threads = |count| engine().with_threads(count).expect("threads");
    let engines = [threads(1), threads(2), threads(3)];
    for (m, k, n) in [
        (1, 1, 1),
        (1, 515, 70),
        (70, 40, 1),
        (65, 33, 129),
        (64, 64, 64),
        (130, 17, 66),
        (2, 4096, 17),
        (3, 4097, 16),
        (2, 8208, 5),
    ] {
        let forward = |dtype| {
            let gemm = Gemm::forward(Shape { m, k, n }, dtype, WeightLayout::OutIn);
            gemm.with_bias(Dtype::F32)
        };
        compare_dense(&engines, forward, Values::Ordinary);
    }
}

#[test]
fn every_operation_in_both_layouts() {
    let engines = [engine()];
    let shape = Shape {
        m: 21,
        k: 40,
        n: 35,
    };
    for layout in [WeightLayout::InOut, WeightLayout::OutIn] {
        for values in [Values::Ordinary, Values::Any] {
            let forward = |dtype| Gemm::forward(shape, dtype, layout).with_bias(Dtype::F32);
            compare_dense(&engines, forward, values);
            let input = |dtype| Gemm::input_gradient(shape, dtype, layout);
            compare_dense(&engines, input, values);
            let weight = |dtype| Gemm::weight_gradient(shape, dtype, layout);
            compare_dense(&engines, weight, values);
            let accumulated = |dtype| weight(dtype).accumulating();
            compare_dense(&engines, accumulated, values);
        }
    }
}

#[test]
fn empty_sizes() {
    let engines = [engine()];
    for (m, k, n) in [(0, 5, 3), (4, 0, 3), (4, 5, 0), (0, 0, 0)] {
        let shape = Shape { m, k, n };
        let forward = |dtype| {
            let gemm = Gemm::forward(shape, dtype, WeightLayout::InOut);
            gemm.with_bias(Dtype::F32)
        };
        compare_dense(&engines, forward, Values::Ordinary);
        let accumulated = |dtype| {
            let gemm = Gemm::matmul(shape, dtype).with_out_dtype(Dtype::F32);
            gemm.accumulating()
        };
        compare_dense(&engines, accumulated, Values::Any);
    }
}

#[test]
fn batches_and_strides() {
    let engines = [engine()];
    let view = |offset, row_stride, col_stride| View {
        offset,
        row_stride,
        col_stride,
    };
    // Two batch dimensions, the second operand broadcast over the inner one; every matrix with an
    // offset and odd strides; the output column-major.
    let (outer, inner) = (
        BatchDim {
            len: 2,
            lhs_stride: 2000,
            rhs_stride: 700,
            out_stride: 600,
        },
        BatchDim {
            len: 3,
            lhs_stride: 600,
            rhs_stride: 0,
            out_stride: 180,
        },
    );
    let shape = Shape { m: 7, k: 19, n: 17 };
    let gemm = |dtype, model| {
        Gemm::matmul(shape, dtype)
            .with_views(view(5, 60, 3), view(1, 2, 40), view(11, 1, 9))
            .with_batch(outer)
            .with_batch(inner)
            .with_tier(Tier::TensorCore(model))
    };
    let lengths = Lengths {
        lhs: 4000,
        rhs: 1500,
        out: 1200,
    };
    for model in [Ampere, Hopper] {
        for values in [Values::Ordinary, Values::Any] {
            compare::<bf16>(&engines, &gemm(Dtype::BF16, model), lengths, values);
            compare::<f16>(&engines, &gemm(Dtype::F16, model), lengths, values);
        }
    }
}

#[test]
fn rows_do_not_depend_on_their_neighbours() {
    let (m, k, n) = (100, 300, 80);
    let mut bits = Bits(1);
    let x: Vec<bf16> = bits.values(m * k, Values::Ordinary);
    let w: Vec<bf16> = bits.values(k * n, Values::Ordinary);
    let forward = |x: &[bf16]| {
        let shape = Shape {
            m: x.len() / k,
            k,
            n,
        };
        let gemm = Gemm::forward(shape, Dtype::BF16, WeightLayout::InOut)
            .with_tier(Tier::TensorCore(Hopper));
        let mut y = vec![bf16::from_bits(0); shape.m * n];
        let operands = Operands::new(x, &w, &mut y);
        engine().gemm(&gemm, operands).expect("a valid problem");
        y
    };
    let together = forward(&x);
    for row in [0, 1, 63, 64, 99] {
        let alone = forward(&x[row * k..(row + 1) * k]);
        assert_eq!(alone, together[row * n..(row + 1) * n], "row {row}");
    }
}

#[test]
fn single_precision_operands_are_refused() {
    let shape = Shape { m: 1, k: 1, n: 1 };
    let gemm = Gemm::matmul(shape, Dtype::F32).with_tier(Tier::TensorCore(Hopper));
    let mut out = [7.0f32];
    let operands = Operands::new(&[1.0f32], &[1.0f32], &mut out);
    let error = engine().gemm(&gemm, operands);
    assert!(matches!(error, Err(crate::Error::UnsupportedTier { .. })));
    assert_eq!(out, [7.0]);
}
