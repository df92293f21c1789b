//! Random problems of every kind, on the GPU and on the CPU: the same bits, and nothing else
//! written.

use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{BatchDim, BiasGradient, Dtype, Gemm, Operands, Shape, View, WeightLayout};
use sgemm_bi_tests::compare::compare_bits;
use sgemm_bi_tests::engine::Cpu;
use sgemm_bi_tests::{Buffer, Cuda, Data, Engine, SplitMix64};

const PROBLEMS: usize = 1000;
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }

    fn from(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Sizes of every path: few rows, few columns, tiles, several chunks, nothing at all.
    fn shape(&mut self) -> Shape {
        let (m, k, n) = match self.below(7) {
            0 => (self.from(1..=17), self.from(0..=600), self.from(1..=300)),
            1 => (self.from(1..=300), self.from(0..=600), self.from(1..=17)),
            2 => (self.from(17..=260), self.from(1..=200), self.from(17..=260)),
            3 => (self.from(1..=6), self.from(4090..=20000), self.from(1..=90)),
            4 => (
                self.from(17..=140),
                self.from(4090..=12300),
                self.from(17..=140),
            ),
            5 => (
                self.from(300..=700),
                self.from(1..=90),
                self.from(300..=700),
            ),
            _ => (self.from(0..=3), self.from(0..=3), self.from(0..=3)),
        };
        Shape { m, k, n }
    }

    /// A product with dense operands.
    fn product(&mut self) -> Gemm {
        let (shape, dtype) = (self.shape(), self.pick(&DTYPES));
        let layout = self.pick(&[WeightLayout::InOut, WeightLayout::OutIn]);
        let gemm = match self.below(4) {
            0 => Gemm::forward(shape, dtype, layout),
            1 => Gemm::input_gradient(shape, dtype, layout),
            2 => Gemm::weight_gradient(shape, dtype, layout),
            _ => Gemm::matmul(shape, dtype).with_out_dtype(self.pick(&DTYPES)),
        };
        let gemm = match self.below(3) {
            0 => gemm.with_bias(self.pick(&[dtype, Dtype::F32])),
            _ => gemm,
        };
        match gemm.out_dtype() == Dtype::F32 && self.flag() {
            true => gemm.accumulating(),
            false => gemm,
        }
    }

    /// The same product in a batch, with inputs of any strides and an output nested in any order.
    fn scattered(&mut self, gemm: Gemm) -> Gemm {
        let (m, k, n) = (gemm.rows(), gemm.reduction(), gemm.cols());
        let large = m * n > 5000 || k > 1000;
        let dims = self.below(if large { 2 } else { 5 });
        let lens: Vec<usize> = (0..dims).map(|_| self.from(1..=3)).collect();
        let mut order: Vec<usize> = (0..dims + 2).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i + 1));
        }
        let sizes = [&lens[..], &[m, n]].concat();
        let gaps = self.flag();
        let (mut strides, mut step) = (vec![0; sizes.len()], 1);
        for dim in order {
            strides[dim] = step;
            step = step * sizes[dim].max(1) + if gaps { self.below(3) } else { 0 };
        }
        let view = |offset, row_stride, col_stride| View {
            offset,
            row_stride,
            col_stride,
        };
        let mut input = |rows: usize, cols: usize| {
            let (row_stride, col_stride) = match self.below(5) {
                0 => (cols, 1),
                1 => (1, rows),
                2 => (cols.next_multiple_of(8), 1),
                3 => (1, rows.next_multiple_of(8)),
                _ => (self.below(40), self.below(5)),
            };
            view(self.pick(&[0, 8, 3]), row_stride, col_stride)
        };
        let (lhs, rhs) = (input(m, k), input(k, n));
        let out = view(self.below(9), strides[dims], strides[dims + 1]);
        let mut gemm = gemm.with_views(lhs, rhs, out);
        for (i, &len) in lens.iter().enumerate() {
            let whole = m.max(n).max(k) * 8;
            gemm = gemm.with_batch(BatchDim {
                len,
                lhs_stride: self.pick(&[0, 1, 64, whole]),
                rhs_stride: self.pick(&[0, 0, 8, whole]),
                out_stride: strides[i],
            });
        }
        gemm
    }
}

/// Elements that a view addresses in a batch.
fn length(
    gemm: &Gemm,
    view: View,
    (rows, cols): (usize, usize),
    stride: fn(&BatchDim) -> usize,
) -> usize {
    let batch = gemm.batch().iter().map(|dim| (dim.len, stride(dim)));
    let dims = batch.chain([(rows, view.row_stride), (cols, view.col_stride)]);
    let spans = dims.map(|(len, stride)| len.saturating_sub(1) * stride);
    view.offset + spans.sum::<usize>() + 1
}

/// Compares random products on the CPU with an engine that is chosen for each, and says which part.
fn differences(
    count: usize,
    mut engine: impl FnMut(&mut Random) -> Box<dyn Engine>,
) -> Vec<String> {
    let best = Simd::available().last().expect("there is always one");
    let cpu = Cpu::new(best, 4);
    let mut random = Random(SplitMix64(20_261_201));
    let mut wrong = Vec::new();
    for i in 0..count {
        let mut gemm = random.product();
        if random.flag() {
            gemm = random.scattered(gemm);
        }
        let data = random.pick(&Data::ALL);
        let (m, k, n) = (gemm.rows(), gemm.reduction(), gemm.cols());
        let seed = 8 * i as u64;
        let fill = |dtype, len, operand| data.fill(dtype, len, seed + operand);
        let lhs_len = length(&gemm, gemm.lhs(), (m, k), |dim| dim.lhs_stride);
        let rhs_len = length(&gemm, gemm.rhs(), (k, n), |dim| dim.rhs_stride);
        let out_len = length(&gemm, gemm.out(), (m, n), |dim| dim.out_stride) + 5;
        let (lhs, rhs) = (
            fill(gemm.dtype(), lhs_len, 0),
            fill(gemm.dtype(), rhs_len, 1),
        );
        let bias = gemm.bias().map(|dtype| fill(dtype, n, 2));
        let start = fill(gemm.out_dtype(), out_len, 3);
        let run = |engine: &dyn Engine| {
            let mut out = start.clone();
            let mut operands = Operands::new(lhs.as_ref(), rhs.as_ref(), out.as_mut());
            if let Some(bias) = &bias {
                operands = operands.with_bias(bias.as_ref());
            }
            let done = engine.gemm(&gemm, operands);
            done.unwrap_or_else(|error| panic!("{}: {error}: {gemm:?}", engine.name()));
            out.all_bits()
        };
        let engine = engine(&mut random);
        let (got, expected) = (run(&*engine), run(&cpu));
        if let Err(message) = compare_bits(gemm.out_dtype(), &[out_len], &got, &expected) {
            wrong.push(format!(
                "{i}: {}: {message}: {data:?}, {gemm:?}",
                engine.name()
            ));
        }
    }
    wrong
}

fn assert_none(wrong: &[String], count: usize) {
    println!("{count} products compared");
    let shown = wrong[..wrong.len().min(20)].join("\n");
    assert!(
        wrong.is_empty(),
        "{} of {count} differ:\n{shown}",
        wrong.len()
    );
}

#[test]
fn random_products_have_the_bits_of_the_cpu() {
    let Some(cuda) = Cuda::new() else { return };
    let wrong = differences(PROBLEMS, |random| {
        Box::new(cuda.shifted(random.pick(&[0, 0, 1, 8])))
    });
    assert_none(&wrong, PROBLEMS);
}

/// Without a GPU: the random problems are sound.
#[test]
fn two_forms_of_the_cpu_engine_agree_on_some_of_them() {
    let wrong = differences(150, |_| Box::new(Cpu::new(Simd::Portable, 1)));
    assert_none(&wrong, 150);
}

#[test]
fn random_bias_gradients_have_the_bits_of_the_cpu() {
    let Some(cuda) = Cuda::new() else { return };
    let best = Simd::available().last().expect("there is always one");
    let cpu = Cpu::new(best, 4);
    let mut random = Random(SplitMix64(7));
    for i in 0..200 {
        let rows = match random.below(3) {
            0 => random.from(0..=40),
            1 => random.from(4000..=13_000),
            _ => random.from(100..=1000),
        };
        let (cols, dtype, data) = (
            random.from(1..=300),
            random.pick(&DTYPES),
            random.pick(&Data::ALL),
        );
        let view = match random.below(4) {
            0 => View::row_major(cols),
            1 => View::col_major(rows),
            2 => View::row_major(cols + 3).at(1),
            _ => View {
                offset: 2,
                row_stride: random.below(9),
                col_stride: random.below(9),
            },
        };
        let mut problem = BiasGradient::new(rows, cols, dtype).with_view(view);
        if random.flag() {
            problem = problem.accumulating();
        }
        let len = view.offset
            + rows.saturating_sub(1) * view.row_stride
            + cols.saturating_sub(1) * view.col_stride
            + 1;
        let dy = data.fill(dtype, len, 2 * i);
        let start = data.fill(Dtype::F32, cols, 2 * i + 1);
        let run = |engine: &dyn Engine| {
            let mut db = start.clone();
            let done = engine.bias_gradient(&problem, dy.as_ref(), db.as_mut());
            done.unwrap_or_else(|error| panic!("{}: {error}: {problem:?}", engine.name()));
            db.all_bits()
        };
        let expected: Vec<u32> = run(&cpu);
        let got = run(&cuda.shifted(random.pick(&[0, 1])));
        if let Err(message) = compare_bits(Dtype::F32, &[cols], &got, &expected) {
            panic!("{i}: {message}: {data:?}, {problem:?}");
        }
    }
}

#[test]
fn one_buffer_may_be_both_inputs() {
    let Some(cuda) = Cuda::new() else { return };
    let x: Buffer = Data::Normal.fill(Dtype::F32, 70 * 70, 5);
    let gemm = Gemm::matmul(
        Shape {
            m: 70,
            k: 70,
            n: 70,
        },
        Dtype::F32,
    );
    let gemm = gemm.with_views(
        View::row_major(70),
        View::col_major(70),
        View::row_major(70),
    );
    let on_gpu = cuda.upload(x.as_ref()).expect("copied");
    let mut out = Buffer::from_bits(Dtype::F32, 70 * 70, |_| 0);
    let mut result = cuda.upload(out.as_ref()).expect("copied");
    let operands =
        sgemm_bi_core::cuda::CudaOperands::new(on_gpu.as_ref(), on_gpu.as_ref(), result.as_mut());
    cuda.engine.gemm(&gemm, operands).expect("computed");
    cuda.download(&result, out.as_mut()).expect("copied");
    for i in 0..70 {
        for j in 0..i {
            assert_eq!(out.bits(70 * i + j), out.bits(70 * j + i), "{i}, {j}");
        }
    }
}
