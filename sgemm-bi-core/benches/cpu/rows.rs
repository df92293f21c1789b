//! The rows of the table: which products are measured, with which operands.

use half::{bf16, f16};
use sgemm_bi_core::{Dtype, Element, Gemm, Shape, SliceMut, SliceRef, WeightLayout};

/// The operation of a row, as a layer names it.
#[derive(Clone, Copy, PartialEq)]
pub enum Operation {
    Forward(WeightLayout),
    InputGradient(WeightLayout),
    WeightGradient(WeightLayout),
}

/// One row: a product and its dtype.
#[derive(Clone, Copy)]
pub struct Row {
    pub shape: Shape,
    pub operation: Operation,
    pub dtype: Dtype,
}

/// Bytes that rotating copies of a weight exceed together: more than any cache.
const ROTATED_BYTES: usize = 640 << 20;

/// Every row, in the table's order: f32 against other libraries, then 16 bits against our own f32.
pub fn all() -> Vec<Row> {
    use Operation::*;
    use WeightLayout::{InOut, OutIn};
    let shape = |m, k, n| Shape { m, k, n };
    let cubes = [512, 1024, 2048, 4096].map(|size| shape(size, size, size));
    let layers = [
        shape(2048, 768, 3072),
        shape(64, 4096, 4096),
        shape(16, 4096, 4096),
        shape(1, 4096, 4096),
    ];
    let operations = [
        Forward(OutIn),
        Forward(InOut),
        InputGradient(OutIn),
        WeightGradient(OutIn),
    ];
    let mut rows = Vec::new();
    let mut add = |shape, dtype, operations: &[Operation]| {
        rows.extend(operations.iter().map(|&operation| Row {
            shape,
            operation,
            dtype,
        }));
    };
    for shape in cubes.into_iter().chain(layers) {
        add(shape, Dtype::F32, &operations);
    }
    for shape in [cubes[1], cubes[2]].into_iter().chain(layers) {
        for dtype in [Dtype::BF16, Dtype::F16] {
            add(shape, dtype, &operations);
        }
    }
    rows
}

impl Row {
    /// The name that `--filter` searches.
    pub fn name(&self) -> String {
        let Shape { m, k, n } = self.shape;
        format!("{m}x{k}x{n} {}", self.operation_name())
    }

    pub fn shape_name(&self) -> String {
        let Shape { m, k, n } = self.shape;
        format!("{m}×{k}×{n}")
    }

    pub fn operation_name(&self) -> String {
        let (name, layout) = match self.operation {
            Operation::Forward(layout) => ("fwd", layout),
            Operation::InputGradient(layout) => ("dX", layout),
            Operation::WeightGradient(layout) => ("dW", layout),
        };
        let layout = match layout {
            WeightLayout::InOut => "[in,out]",
            WeightLayout::OutIn => "[out,in]",
        };
        format!("{name} {layout} {}", self.dtype)
    }

    /// The product; the same one in another dtype when `dtype` differs from the row's.
    pub fn gemm(&self, dtype: Dtype) -> Gemm {
        match self.operation {
            Operation::Forward(layout) => Gemm::forward(self.shape, dtype, layout),
            Operation::InputGradient(layout) => Gemm::input_gradient(self.shape, dtype, layout),
            Operation::WeightGradient(layout) => Gemm::weight_gradient(self.shape, dtype, layout),
        }
    }

    /// Floating-point operations, a fused multiply-add counted as two.
    pub fn flops(&self) -> f64 {
        let Shape { m, k, n } = self.shape;
        2.0 * m as f64 * k as f64 * n as f64
    }

    /// Bytes of the three matrices.
    pub fn bytes(&self) -> f64 {
        let product = self.gemm(self.dtype);
        let (rows, cols, r) = (product.rows(), product.cols(), product.reduction());
        let inputs = (rows * r + r * cols) * product.dtype().size_in_bytes();
        (inputs + rows * cols * product.out_dtype().size_in_bytes()) as f64
    }

    /// How many copies of the weight (or of its gradient) a turn rotates over.
    pub fn weight_copies(&self, dtype: Dtype) -> usize {
        let Shape { m, k, n } = self.shape;
        let element = match self.writes_weight() {
            true => Dtype::F32.size_in_bytes(),
            false => dtype.size_in_bytes(),
        };
        match m {
            0..=16 => ROTATED_BYTES / (k * n * element) + 1,
            _ => 1,
        }
    }

    /// True when the output is the weight-sized matrix.
    pub fn writes_weight(&self) -> bool {
        matches!(self.operation, Operation::WeightGradient(_))
    }
}

/// A matrix's elements in some dtype.
#[derive(Clone)]
pub enum Data {
    F32(Vec<f32>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Data {
    /// `len` random elements, uniform in ±1.
    pub fn random(len: usize, dtype: Dtype, seed: u64) -> Self {
        fn fill<T: Element>(len: usize, seed: u64) -> Vec<T> {
            // SplitMix64: one multiply-xorshift chain on a counter.
            let value = |i: usize| {
                let mut z = (i as u64 + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                ((z >> 40) as f32) * (2.0 / (1u64 << 24) as f32) - 1.0
            };
            (0..len).map(|i| T::round(value(i))).collect()
        }
        match dtype {
            Dtype::BF16 => Data::BF16(fill(len, seed)),
            Dtype::F16 => Data::F16(fill(len, seed)),
            _ => Data::F32(fill(len, seed)),
        }
    }

    /// The elements.
    pub fn as_slice(&self) -> SliceRef<'_> {
        match self {
            Data::F32(v) => v.into(),
            Data::BF16(v) => v.into(),
            Data::F16(v) => v.into(),
        }
    }

    /// The elements, to write.
    pub fn as_mut_slice(&mut self) -> SliceMut<'_> {
        match self {
            Data::F32(v) => v.into(),
            Data::BF16(v) => v.into(),
            Data::F16(v) => v.into(),
        }
    }
}
