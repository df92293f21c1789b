//! The engine against the reference, bit for bit: ragged shapes, dtypes, layouts, strides, SIMD
//! levels, threads.

mod blocked;
mod few_rows;

use half::{bf16, f16};

use super::{CpuEngine, Simd};
use crate::operands::with_slice;
use crate::{
    BatchDim, Dtype, Element, Gemm, Operands, Shape, SliceMut, SliceRef, View, WeightLayout,
    reference,
};

/// A vector of any element type.
#[derive(Clone)]
enum Data {
    F32(Vec<f32>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Data {
    fn from_f32(dtype: Dtype, values: impl Iterator<Item = f32>) -> Self {
        match dtype {
            Dtype::F32 => Data::F32(values.collect()),
            Dtype::BF16 => Data::BF16(values.map(bf16::round).collect()),
            Dtype::F16 => Data::F16(values.map(f16::round).collect()),
        }
    }

    fn random(dtype: Dtype, len: usize, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let values = (0..len).map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        });
        Data::from_f32(dtype, values)
    }

    fn slice(&self) -> SliceRef<'_> {
        match self {
            Data::F32(v) => v.into(),
            Data::BF16(v) => v.into(),
            Data::F16(v) => v.into(),
        }
    }

    fn slice_mut(&mut self) -> SliceMut<'_> {
        match self {
            Data::F32(v) => v.into(),
            Data::BF16(v) => v.into(),
            Data::F16(v) => v.into(),
        }
    }

    fn bits(&self) -> Vec<u32> {
        fn bits<T: Element>(slice: &[T]) -> Vec<u32> {
            slice.iter().map(|x| x.bits()).collect()
        }
        with_slice!(SliceRef, self.slice(), s => bits(s))
    }
}

/// A problem with its data.
struct Case {
    gemm: Gemm,
    lhs: Data,
    rhs: Data,
    bias: Option<Data>,
    out: Data,
}

impl Case {
    /// Random data in slices of these lengths.
    fn random(gemm: Gemm, (lhs, rhs, out): (usize, usize, usize)) -> Self {
        Case {
            lhs: Data::random(gemm.dtype(), lhs, 1),
            rhs: Data::random(gemm.dtype(), rhs, 2),
            bias: gemm.bias().map(|dtype| Data::random(dtype, gemm.cols(), 3)),
            out: Data::random(gemm.out_dtype(), out, 4),
            gemm,
        }
    }

    fn run(&self, compute: impl FnOnce(&Gemm, Operands<'_>) -> crate::Result<()>) -> Vec<u32> {
        let mut out = self.out.clone();
        let operands = Operands {
            lhs: self.lhs.slice(),
            rhs: self.rhs.slice(),
            bias: self.bias.as_ref().map(Data::slice),
            out: out.slice_mut(),
        };
        compute(&self.gemm, operands).expect("a valid problem");
        out.bits()
    }

    /// Compares with the reference at every level and with these numbers of threads. Elements
    /// outside the output's view are compared too: nobody may touch them.
    fn check(&self, engines: &[CpuEngine]) {
        let expected = self.run(reference::gemm);
        for engine in engines {
            let got = self.run(|gemm, operands| engine.gemm(gemm, operands));
            if let Some(at) = (0..got.len()).find(|&i| got[i] != expected[i]) {
                panic!(
                    "{engine:?}, {:?}: element {at} of out is {:#010x}, the contract's is {:#010x}",
                    self.gemm, got[at], expected[at],
                );
            }
        }
    }
}

fn engines(threads: &[usize]) -> Vec<CpuEngine> {
    let engine = |simd, threads| {
        let engine = CpuEngine::new().and_then(|engine| engine.with_simd(simd));
        engine
            .and_then(|engine| engine.with_threads(threads))
            .expect("an available level")
    };
    Simd::available()
        .flat_map(|simd| threads.iter().map(move |&threads| engine(simd, threads)))
        .collect()
}

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];
const LAYOUTS: [WeightLayout; 2] = [WeightLayout::InOut, WeightLayout::OutIn];

#[test]
fn ragged_layers() {
    let engines = engines(&[1, 2, 3]);
    let shapes = [
        (1, 1, 1),
        (1, 7, 33),
        (2, 16, 16),
        (13, 5, 31),
        (14, 40, 32),
        (15, 17, 65),
        (29, 300, 1),
        (33, 2, 47),
        (64, 65, 66),
        (70, 520, 95),
        (65, 17, 67),
        (97, 33, 79),
        (131, 70, 66),
        (97, 0, 12),
        (3, 9, 0),
        (0, 4, 5),
    ];
    for (m, k, n) in shapes {
        let shape = Shape { m, k, n };
        let lengths = (m * k, k * n, m * n);
        for dtype in DTYPES {
            for layout in LAYOUTS {
                let forward = Gemm::forward(shape, dtype, layout);
                Case::random(forward.clone(), lengths).check(&engines);
                let bias = forward.with_bias(dtype);
                Case::random(bias, lengths).check(&engines);
                let dx = Gemm::input_gradient(shape, dtype, layout);
                Case::random(dx, (m * n, k * n, m * k)).check(&engines);
                let dw = Gemm::weight_gradient(shape, dtype, layout).accumulating();
                Case::random(dw, (m * k, m * n, k * n)).check(&engines);
            }
        }
    }
}

#[test]
fn output_dtypes_and_bias_dtypes() {
    let engines = engines(&[1]);
    let (m, k, n) = (17, 30, 37);
    for dtype in DTYPES {
        for out_dtype in DTYPES {
            for bias in [Dtype::F32, dtype] {
                let gemm = Gemm::matmul(Shape { m, k, n }, dtype)
                    .with_out_dtype(out_dtype)
                    .with_bias(bias);
                Case::random(gemm.clone(), (m * k, k * n, m * n)).check(&engines);
                let views = (View::row_major(k), View::row_major(n), View::col_major(m));
                let turned = gemm.with_views(views.0, views.1, views.2);
                Case::random(turned, (m * k, k * n, m * n)).check(&engines);
            }
        }
    }
}

#[test]
fn reductions_of_several_chunks() {
    let engines = engines(&[1, 2]);
    for r in [4095, 4096, 4097, 8192, 9000] {
        for dtype in DTYPES {
            let (m, n) = (15, 18);
            let shape = Shape { m, k: r, n };
            let lengths = (m * r, r * n, m * n);
            let forward = Gemm::forward(shape, dtype, WeightLayout::OutIn).with_bias(Dtype::F32);
            Case::random(forward, lengths).check(&engines);
            let shape = Shape { m: r, k: m, n };
            let dw = Gemm::weight_gradient(shape, dtype, WeightLayout::OutIn);
            Case::random(dw.clone(), (r * m, r * n, m * n)).check(&engines);
            Case::random(dw.accumulating(), (r * m, r * n, m * n)).check(&engines);
        }
    }
}

#[test]
fn several_output_blocks() {
    let engines = engines(&[1, 2]);
    for (m, n) in [(2100, 3), (5, 2100), (2049, 40)] {
        let gemm = Gemm::matmul(Shape { m, k: 6, n }, Dtype::F32);
        Case::random(gemm, (m * 6, 6 * n, m * n)).check(&engines);
    }
}

#[test]
fn strides() {
    let engines = engines(&[1, 2]);
    let (m, k, n) = (21, 37, 43);
    let view = |offset, row_stride, col_stride| View {
        offset,
        row_stride,
        col_stride,
    };
    let inputs = |rows, cols: usize| {
        [
            view(3, cols + 5, 1),
            view(1, 1, rows + 2),
            view(2, 3 * cols, 3),
            view(0, 2, 2 * rows + 1),
            view(0, 0, 1),
            view(4, 1, 0),
        ]
    };
    for dtype in DTYPES {
        for lhs in inputs(m, k) {
            for rhs in inputs(k, n) {
                for out in [view(3, n + 5, 1), view(1, 1, m + 2), view(2, 3 * n, 3)] {
                    let gemm = Gemm::matmul(Shape { m, k, n }, dtype).with_views(lhs, rhs, out);
                    Case::random(gemm, (8000, 8000, 8000)).check(&engines[..]);
                }
            }
        }
    }
}

/// Values whose products and sums are special: zeros, infinities, NaN, subnormals, the largest.
const SPECIALS: [f32; 18] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    f32::from_bits(0xFFC0_1234),
    f32::from_bits(0x7F80_0001),
    f32::from_bits(1),
    f32::from_bits(0x807F_FFFF),
    f32::MIN_POSITIVE,
    f32::MAX,
    -f32::MAX,
    1e-30,
    -3e-25,
    6e-8,
    65504.0,
];

#[test]
fn special_values() {
    check_special_values((19, 3, 35));
}

/// Special values in operands and in what is accumulated into, everywhere and here and there.
fn check_special_values((m, k, n): (usize, usize, usize)) {
    let engines = engines(&[1]);
    for dtype in DTYPES {
        for out_dtype in DTYPES {
            for rare in [1, 7] {
                let pick = |len: usize, step: usize| {
                    Data::from_f32(
                        dtype,
                        (0..len).map(|i| match i % rare {
                            0 => SPECIALS[i * step / rare % SPECIALS.len()],
                            _ => 1.5e-22,
                        }),
                    )
                };
                let gemm = Gemm::matmul(Shape { m, k, n }, dtype).with_out_dtype(out_dtype);
                let case = Case {
                    lhs: pick(m * k, 5),
                    rhs: pick(k * n, 7),
                    bias: None,
                    out: Data::random(out_dtype, m * n, 1),
                    gemm: gemm.clone(),
                };
                case.check(&engines);
                if out_dtype == Dtype::F32 {
                    let out = (0..m * n).map(|i| SPECIALS[i % SPECIALS.len()]);
                    let case = Case {
                        gemm: gemm.accumulating(),
                        out: Data::from_f32(Dtype::F32, out),
                        ..case
                    };
                    case.check(&engines);
                }
            }
        }
    }
}

#[test]
fn batches() {
    let engines = engines(&[1, 3]);
    let (m, k, n) = (5, 11, 19);
    let dim = |len, lhs_stride, rhs_stride, out_stride| BatchDim {
        len,
        lhs_stride,
        rhs_stride,
        out_stride,
    };
    let batches = [
        vec![dim(7, m * k, k * n, m * n)],
        vec![dim(4, m * k, 0, m * n)],
        vec![dim(3, 4 * m * k, 0, 4 * m * n), dim(4, m * k, 0, m * n)],
        vec![dim(3, m * k, 0, m * n), dim(4, 0, k * n, 3 * m * n)],
        vec![
            dim(3, 0, k * n, m * n),
            dim(1, 9, 9, 9),
            dim(2, m * k, 0, 3 * m * n),
        ],
        vec![dim(0, m * k, k * n, m * n)],
    ];
    for dtype in DTYPES {
        for batch in &batches {
            let gemm = Gemm::matmul(Shape { m, k, n }, dtype).with_bias(Dtype::F32);
            let gemm = batch.iter().fold(gemm, |gemm, &dim| gemm.with_batch(dim));
            Case::random(gemm, (2000, 2000, 2000)).check(&engines);
        }
        // Rows of one: the batch dimension becomes the rows.
        let gemm = Gemm::matmul(Shape { m: 1, k, n }, dtype).with_batch(dim(9, 2 * k, 0, n));
        Case::random(gemm, (300, 300, 300)).check(&engines);
    }
    // Enough work for threads.
    let (m, k, n) = (40, 64, 48);
    for len in [3, 30] {
        let gemm = Gemm::matmul(Shape { m, k, n }, Dtype::F32);
        let gemm = gemm.with_batch(dim(len, m * k, k * n, m * n));
        let lengths = (len * m * k, len * k * n, len * m * n);
        Case::random(gemm, lengths).check(&engines);
    }
}
