//! Properties of contract section 2: what an output element's bits do not depend on.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{FileFailurePersistence, RngSeed};
use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{BatchDim, BiasGradient, Dtype, Gemm, Operands, Shape, View, WeightLayout};
use sgemm_bi_tests::compare::assert_bits;
use sgemm_bi_tests::engine::Cpu;
use sgemm_bi_tests::place::{Place, Placed, Stack};
use sgemm_bi_tests::{Buffer, Data, Engine, Problem, Reference};

/// The same cases on every run and machine.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(20_240_229),
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::default()
    }
}

fn engine() -> impl Strategy<Value = Cpu> {
    let levels: Vec<_> = Simd::available().collect();
    (select(levels), select(vec![1, 2, 8])).prop_map(|(simd, threads)| Cpu::new(simd, threads))
}

fn dtype() -> impl Strategy<Value = Dtype> {
    select(vec![Dtype::F32, Dtype::BF16, Dtype::F16])
}

fn data() -> impl Strategy<Value = Data> {
    select(Data::ALL.to_vec())
}

fn layout() -> impl Strategy<Value = WeightLayout> {
    select(vec![WeightLayout::InOut, WeightLayout::OutIn])
}

/// Sizes of every path: few rows, few columns, squarish, more than one chunk.
fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        (1usize..=17, 0usize..600, 1usize..=300),
        (1usize..=300, 0usize..600, 1usize..=17),
        (1usize..=90, 0usize..200, 1usize..=90),
        (1usize..=4, 4090usize..8200, 1usize..=20),
    ]
    .prop_map(|(m, k, n)| Shape { m, k, n })
}

fn product() -> impl Strategy<Value = Gemm> {
    (0..6, shape(), dtype(), layout()).prop_map(|(op, shape, dtype, layout)| {
        let forward = Gemm::forward(shape, dtype, layout);
        match op {
            0 => forward,
            1 => forward.with_bias(dtype),
            2 => forward.with_bias(Dtype::F32).with_out_dtype(Dtype::F32),
            3 => forward.with_out_dtype(Dtype::F32).accumulating(),
            4 => Gemm::input_gradient(shape, dtype, layout),
            _ => Gemm::weight_gradient(shape, dtype, layout).accumulating(),
        }
    })
}

fn place() -> impl Strategy<Value = Place> {
    select(Place::ALL.to_vec())
}

/// A non-empty range below `len` from two fractions.
fn range(len: usize, (from, part): (f64, f64)) -> std::ops::Range<usize> {
    let start = ((len as f64 * from) as usize).min(len - 1);
    let longest = len - start;
    start..start + ((longest as f64 * part) as usize).clamp(1, longest)
}

/// The elements of a row-major matrix with `cols` columns that lie in a block.
fn block(
    matrix: &Buffer,
    cols: usize,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) -> Buffer {
    let width = columns.len();
    Buffer::from_bits(matrix.dtype(), rows.len() * width, |i| {
        matrix.bits((rows.start + i / width) * cols + columns.start + i % width)
    })
}

proptest! {
    #![proptest_config(config(80))]

    /// Any engine, any layout: the reference's bits.
    #[test]
    fn engines_and_places_do_not_matter(
        gemm in product(),
        data in data(),
        seed in 0u64..1000,
        engine in engine(),
        places in [place(), place(), place()],
    ) {
        let problem = Problem::seeded(gemm, data, seed);
        let expected = problem.run(&Reference);
        let dtype = problem.gemm.out_dtype();
        let what = format!("{}, {data:?}, {:?}", engine.name(), problem.gemm);
        assert_bits(&what, dtype, &problem.shape(), &problem.run(&engine), &expected);
        let problem = problem.placed(places);
        let what = format!("{}, {data:?}, {:?}", engine.name(), problem.gemm);
        assert_bits(&what, dtype, &problem.shape(), &problem.run(&engine), &expected);
        assert_bits("a second run", dtype, &problem.shape(), &problem.run(&engine), &expected);
    }

    /// A block of rows and columns computed alone, on another engine, from copies of its operands.
    #[test]
    fn a_block_of_the_output_has_the_bits_of_the_whole(
        gemm in product(),
        data in data(),
        seed in 0u64..1000,
        whole_engine in engine(),
        block_engine in engine(),
        rows in (0.0..1.0, 0.0..1.0),
        cols in (0.0..1.0, 0.0..1.0),
    ) {
        let whole = Problem::seeded(gemm, data, seed);
        let [all_rows, all_cols] = whole.shape();
        let r = whole.gemm.reduction();
        let (rows, cols) = (range(all_rows, rows), range(all_cols, cols));
        let out = whole.gemm.out_dtype();
        let bits = whole.run(&whole_engine);
        let bits = Buffer::from_bits(out, bits.len(), |i| bits[i]);
        let expected = block(&bits, all_cols, rows.clone(), cols.clone()).all_bits();

        let shape = Shape { m: rows.len(), k: r, n: cols.len() };
        let mut gemm = Gemm::matmul(shape, whole.gemm.dtype()).with_out_dtype(out);
        if let Some(dtype) = whole.gemm.bias() {
            gemm = gemm.with_bias(dtype);
        }
        if whole.gemm.accumulates() {
            gemm = gemm.accumulating();
        }
        let start = whole.start.as_ref();
        let alone = Problem {
            gemm,
            lhs: block(&whole.lhs, r, rows.clone(), 0..r),
            rhs: block(&whole.rhs, all_cols, 0..r, cols.clone()),
            bias: whole.bias.as_ref().map(|bias| bias.slice(cols.clone())),
            start: start.map(|start| block(start, all_cols, rows.clone(), cols.clone())),
        };
        let got = alone.run(&block_engine);
        let what = format!(
            "{} alone, {} whole: rows {rows:?}, columns {cols:?} of {:?}",
            block_engine.name(), whole_engine.name(), whole.gemm,
        );
        assert_bits(&what, out, &alone.shape(), &got, &expected);
    }

    /// Inputs of any strides, zero and overlapping ones included, in any batch, against dense
    /// copies of what they address.
    #[test]
    fn strides_and_batches_do_not_matter(
        (m, k, n) in (1usize..=20, 0usize..80, 1usize..=40),
        lens in prop::collection::vec(0usize..=3, 0..=3),
        lhs_strides in prop::collection::vec(0usize..=40, 5),
        rhs_strides in prop::collection::vec(0usize..=40, 5),
        offsets in (0usize..9, 0usize..9, 0usize..9),
        order in Just([0usize, 1, 2, 3, 4]).prop_shuffle(),
        dtype in dtype(),
        data in data(),
        engine in engine(),
    ) {
        // The output: its dimensions (batch, rows, columns) nested in any order, with gaps.
        let mut sizes = lens.clone();
        sizes.extend([m, n]);
        let mut out_strides = vec![0; sizes.len()];
        let mut step = 1;
        for dim in order.into_iter().filter(|&dim| dim < sizes.len()) {
            out_strides[dim] = step;
            step = step * sizes[dim].max(1) + dim % 2;
        }
        let view = |offset, strides: &[usize]| View {
            offset,
            row_stride: strides[lens.len()],
            col_stride: strides[lens.len() + 1],
        };
        let lhs_view = view(offsets.0, &lhs_strides);
        let rhs_view = view(offsets.1, &rhs_strides);
        let out_view = view(offsets.2, &out_strides);
        let shape = Shape { m, k, n };
        let mut gemm = Gemm::matmul(shape, dtype).with_views(lhs_view, rhs_view, out_view);
        for (i, &len) in lens.iter().enumerate() {
            let (lhs_stride, rhs_stride) = (lhs_strides[i], rhs_strides[i]);
            gemm = gemm.with_batch(BatchDim { len, lhs_stride, rhs_stride, out_stride: out_strides[i] });
        }
        let longest = 5 * 40 * 80 + 9;
        let lhs = data.fill(dtype, longest, 1);
        let rhs = data.fill(dtype, longest, 2);
        let blank = 0xDEAD_BEEFu32;
        let mut out = Buffer::from_bits(dtype, step * 2 + 9, |_| blank);
        let mut expected = out.all_bits();
        engine.gemm(&gemm, Operands::new(lhs.as_ref(), rhs.as_ref(), out.as_mut())).unwrap();

        for entry in 0..gemm.batch_len() {
            let (a, b, c) = gemm.batch_offsets(entry);
            let gather = |from: &Buffer, view: View, add: usize, rows: usize, cols: usize| {
                Buffer::from_bits(dtype, rows * cols, |i| {
                    let (row, col) = (i / cols, i % cols);
                    from.bits(add + view.offset + row * view.row_stride + col * view.col_stride)
                })
            };
            let alone = Problem {
                gemm: Gemm::matmul(shape, dtype),
                lhs: gather(&lhs, lhs_view, a, m, k),
                rhs: gather(&rhs, rhs_view, b, k, n),
                bias: None,
                start: None,
            };
            for (i, bits) in alone.run(&Reference).into_iter().enumerate() {
                let (row, col) = (i / n, i % n);
                let at = c + out_view.offset;
                expected[at + row * out_view.row_stride + col * out_view.col_stride] = bits;
            }
        }
        let what = format!("{}: {gemm:?}", engine.name());
        assert_bits(&what, dtype, &[out.len()], &out.all_bits(), &expected);
    }

    /// A bias gradient's column alone, anywhere, on any engine.
    #[test]
    fn bias_gradients_depend_on_their_column_alone(
        rows in prop_oneof![0usize..40, 4000usize..8300],
        cols in 1usize..=70,
        column in 0.0..1.0,
        places in [place(), place()],
        accumulate in any::<bool>(),
        dtype in dtype(),
        data in data(),
        engine in engine(),
    ) {
        let whole = data.fill(dtype, rows * cols, 1);
        let start = data.fill(Dtype::F32, cols, 2);
        let run = |engine: &dyn Engine, dy: &Buffer, start: Buffer, place: Place| {
            let cols = start.len();
            let view = place.view(rows, cols);
            let dy = Placed::new(dy, Stack::one(rows, cols, view), 0);
            let problem = BiasGradient::new(rows, cols, dtype).with_view(view);
            let problem = if accumulate { problem.accumulating() } else { problem };
            let mut db = start;
            engine.bias_gradient(&problem, dy.buffer.as_ref(), db.as_mut()).unwrap();
            db.all_bits()
        };
        let expected = run(&Reference, &whole, start.clone(), Place::RowMajor);
        let got = run(&engine, &whole, start.clone(), places[0]);
        let what = format!("{}: {rows} rows, {:?}", engine.name(), places[0]);
        assert_bits(&what, Dtype::F32, &[cols], &got, &expected);
        let column = range(cols, (column, 0.0));
        let dy = block(&whole, cols, 0..rows, column.clone());
        let got = run(&engine, &dy, start.slice(column.clone()), places[1]);
        assert_bits("one column", Dtype::F32, &[1], &got, &expected[column]);
    }
}
