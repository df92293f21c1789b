//! Plans without a GPU: what the launches compute, element by element, against what the problem
//! describes.

mod instances;
mod problems;

use std::collections::HashMap;

use super::*;
use crate::gemm::{Extents, batch_offsets};
use crate::operands::Extent;
use crate::{BiasGradient, Gemm, Shape, View, WeightLayout};
pub(in crate::cuda) use problems::sample;
use problems::{Random, random};

const H200: Gpu = Gpu {
    arch: 90,
    multiprocessors: 132,
};

/// Without copies past the registers, and with 48 KiB of shared memory.
const PASCAL: Gpu = Gpu {
    arch: 61,
    multiprocessors: 20,
};

/// The addresses of a fresh allocation.
const ALIGNED: Addresses = Addresses { lhs: 0, rhs: 0 };

fn kinds(gemm: &Gemm) -> Kinds {
    Kinds {
        element: gemm.dtype(),
        out: gemm.out_dtype(),
        bias: gemm.bias(),
        accumulate: gemm.accumulates(),
        ones: false,
    }
}

fn plan_of(gemm: &Gemm) -> Plan {
    plan(Form::of(gemm), kinds(gemm), ALIGNED, H200)
}

/// Most dynamic shared memory of a block, in bytes.
fn shared_of(gpu: Gpu) -> u32 {
    let kib = match gpu.arch {
        ..80 => 48, // Without asking for more.
        80 | 87 => 163,
        90..120 => 227,
        _ => 99,
    };
    kib << 10
}

/// What an output element is computed from: where each operand's line begins and how it steps along
/// the reduction, and the index of its bias. All in elements from the views' beginnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin {
    lhs: (usize, usize),
    rhs: (usize, usize),
    bias: Option<usize>,
}

/// Strides along a reduction of one element and lines of a reduction of none do not matter.
fn normal(origin: Origin, reduction: usize) -> Origin {
    let line = |(start, step)| match reduction {
        0 => (0, 0),
        1 => (start, 0),
        _ => (start, step),
    };
    Origin {
        lhs: line(origin.lhs),
        rhs: line(origin.rhs),
        ..origin
    }
}

fn described(gemm: &Gemm) -> HashMap<usize, Origin> {
    let mut all = HashMap::new();
    for entry in 0..gemm.batch_len() {
        let (lhs, rhs, out) = gemm.batch_offsets(entry);
        for row in 0..gemm.rows() {
            for col in 0..gemm.cols() {
                let at = out + row * gemm.out().row_stride + col * gemm.out().col_stride;
                let origin = Origin {
                    lhs: (lhs + row * gemm.lhs().row_stride, gemm.lhs().col_stride),
                    rhs: (rhs + col * gemm.rhs().col_stride, gemm.rhs().row_stride),
                    bias: gemm.bias().map(|_| col),
                };
                all.insert(at, normal(origin, gemm.reduction()));
            }
        }
    }
    all
}

/// What the launches compute, as the kernels index their arguments. Panics when an element is
/// computed twice.
fn launched(plan: &Plan, kinds: Kinds) -> HashMap<usize, Origin> {
    let mut all = HashMap::new();
    let elements = |bytes: u64, dtype: Dtype| bytes as usize / dtype.size_in_bytes();
    let repeats: usize = plan.repeats.iter().map(|dim| dim.len).product();
    for repeat in 0..repeats {
        let repeated = batch_offsets(&plan.repeats, repeat);
        for step in &plan.steps {
            let p = &step.args;
            assert_eq!(p.dims.iter().map(|dim| dim.len).product::<i64>(), p.batch);
            let parts = step.instance.defines.contains(&("SPLIT", 1));
            if parts {
                continue; // the fold after it writes the output
            }
            for entry in 0..p.batch {
                let mut rest = entry;
                let mut at = [repeated.0, repeated.1, repeated.2];
                for dim in p.dims.iter().rev() {
                    let i = rest % dim.len;
                    rest /= dim.len;
                    for (at, stride) in at.iter_mut().zip([dim.lhs, dim.rhs, dim.out]) {
                        *at += (i * stride) as usize;
                    }
                }
                let lhs = elements(p.lhs, kinds.element) + at[0];
                let rhs = elements(p.rhs, kinds.element) + at[1];
                let out = elements(p.out, kinds.out) + at[2];
                let bias = kinds.bias.map_or(0, |dtype| elements(p.bias, dtype));
                for row in 0..p.rows {
                    for col in 0..p.cols {
                        let a = (lhs + (row * p.lhs_row) as usize, p.lhs_red as usize);
                        let b = (rhs + (col * p.rhs_col) as usize, p.rhs_red as usize);
                        let (a, b) = if plan.turned { (b, a) } else { (a, b) };
                        let origin = Origin {
                            lhs: a,
                            rhs: b,
                            bias: match p.bias_along {
                                BIAS_COLS => Some(bias + col as usize),
                                BIAS_ROWS => Some(bias + row as usize),
                                _ => None,
                            },
                        };
                        let origin = normal(origin, p.reduction as usize);
                        let at = out + (row * p.out_row + col * p.out_col) as usize;
                        let before = all.insert(at, origin);
                        assert_eq!(before, None, "computed twice: {at} in {plan:?}");
                    }
                }
            }
        }
    }
    all
}

/// The number of blocks, threads and bytes that `kernels/README.md` gives for the defines.
fn check_sizes(plan: &Plan, kinds: Kinds, gpu: Gpu) {
    for (i, step) in plan.steps.iter().enumerate() {
        let define = |name: &str| {
            let found = step.instance.defines.iter().find(|define| define.0 == name);
            i64::from(
                found
                    .unwrap_or_else(|| panic!("{name}: {}", step.instance))
                    .1,
            )
        };
        let p = &step.args;
        let chunks = (p.reduction as usize).div_ceil(CHUNK).max(1) as i64;
        assert_eq!(i64::from(p.chunks), chunks);
        let elements = p.rows * p.cols * p.batch;
        if step.instance.entry == "fold" {
            assert_eq!(plan.steps[i - 1].args, *p);
            assert_eq!(step.block, 256);
            assert!(plan.workspace >= 4 * (elements * chunks) as u64);
            continue;
        }
        let split = define("SPLIT") == 1;
        let tiles = match step.instance.entry {
            "tile" => {
                let threads = define("BM") / define("TM") * (define("BN") / define("TN"));
                assert_eq!(i64::from(step.block), threads);
                let (down, across) = (p.rows as u64, p.cols as u64);
                down.div_ceil(define("BM") as u64) * across.div_ceil(define("BN") as u64)
            }
            _ => {
                assert!(p.rows <= define("ROWS"));
                assert_eq!(i64::from(step.block), define("COLS") * 4);
                (p.cols as u64).div_ceil(define("COLS") as u64)
            }
        };
        let parts = tiles * p.batch as u64 * if split { chunks as u64 } else { 1 };
        assert_eq!(u64::from(step.grid), parts, "{plan:?}");
        assert!(step.grid <= i32::MAX as u32);
        assert!(step.shared <= shared_of(gpu), "{}", step.instance);
        if split {
            assert_eq!(plan.steps[i + 1].instance.entry, "fold");
        } else if chunks > 1 && kinds.out != Dtype::F32 {
            assert!(plan.workspace >= 4 * elements as u64);
        }
    }
}

/// Elements that views address, at least.
fn lengths(gemm: &Gemm) -> Extents {
    let extent = |dtype| Extent {
        dtype,
        len: usize::MAX >> 1,
    };
    Extents {
        lhs: extent(gemm.dtype()),
        rhs: extent(gemm.dtype()),
        bias: gemm.bias().map(|dtype| Extent {
            dtype,
            len: gemm.cols(),
        }),
        out: extent(gemm.out_dtype()),
    }
}

#[test]
fn launches_compute_every_element_once_from_its_own_operands() {
    let mut generator = Random(7);
    let (mut seen, mut names) = (HashMap::new(), HashMap::new());
    for i in 0..4000 {
        let gemm = random(&mut generator);
        let gpu = if i % 4 == 0 { PASCAL } else { H200 };
        gemm.check(&lengths(&gemm))
            .unwrap_or_else(|error| panic!("{error}: {gemm:?}"));
        let plan = plan(Form::of(&gemm), kinds(&gemm), ALIGNED, gpu);
        assert_eq!(
            launched(&plan, kinds(&gemm)),
            described(&gemm),
            "{gemm:?}\n{plan:?}"
        );
        check_sizes(&plan, kinds(&gemm), gpu);
        *seen
            .entry((plan.turned, plan.repeats.is_empty()))
            .or_insert(0) += 1;
        for step in &plan.steps {
            *names.entry(step.instance.entry).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.len(), 4, "turned or not, repeated or not: {seen:?}");
    assert_eq!(names.len(), 3, "every kernel: {names:?}");
}

#[test]
fn bias_gradients_are_rows_of_ones() {
    for (rows, cols, layout) in [
        (0, 3, 0),
        (1, 1, 0),
        (7, 40, 1),
        (9000, 33, 0),
        (9000, 33, 1),
    ] {
        let view = [View::row_major(cols), View::col_major(rows)][layout];
        let problem = BiasGradient::new(rows, cols, Dtype::F16).with_view(view);
        let kinds = Kinds {
            element: Dtype::F16,
            out: Dtype::F32,
            bias: None,
            accumulate: false,
            ones: true,
        };
        let plan = plan(Form::of_bias_gradient(&problem), kinds, ALIGNED, H200);
        check_sizes(&plan, kinds, H200);
        assert!(!plan.turned);
        let step = &plan.steps[0];
        assert_eq!(step.instance.entry, "few_rows");
        assert!(step.instance.defines.contains(&("ONES", 1)));
        assert!(step.instance.defines.contains(&("ROWS", 1)));
        for (col, origin) in launched(&plan, kinds) {
            let (red, along) = if rows > 1 {
                (view.row_stride, view.col_stride)
            } else {
                (0, 1)
            };
            let start = if rows == 0 { 0 } else { col * along };
            assert_eq!(origin.rhs, (start, red), "{col}");
        }
    }
}

#[test]
fn nothing_is_launched_for_nothing() {
    let none = Gemm::matmul(Shape { m: 0, k: 4, n: 4 }, Dtype::F32);
    let no_entry = Gemm::matmul(Shape { m: 4, k: 4, n: 4 }, Dtype::F32).with_batch(BatchDim {
        len: 0,
        lhs_stride: 16,
        rhs_stride: 0,
        out_stride: 16,
    });
    let far = View {
        offset: usize::MAX,
        row_stride: usize::MAX,
        col_stride: usize::MAX,
    };
    let no_column = Gemm::matmul(Shape { m: 2, k: 1, n: 0 }, Dtype::F32);
    let no_column = no_column.with_views(far, far, View::row_major(0));
    for gemm in [none, no_entry, no_column] {
        let plan = plan_of(&gemm);
        assert_eq!((plan.steps.len(), plan.workspace), (0, 0));
    }
    // A reduction of nothing still writes its output.
    let plan = plan_of(&Gemm::matmul(Shape { m: 3, k: 0, n: 2 }, Dtype::F32));
    assert_eq!((plan.steps.len(), plan.steps[0].args.chunks), (1, 1));
}

#[test]
fn pieces_cover_what_is_too_large_for_one_launch() {
    let (m, n) = (200_000, 130_001);
    let shape = Shape { m, k: 9000, n };
    // Running totals of 2³⁴ elements.
    for gemm in [
        Gemm::matmul(shape, Dtype::F16).with_bias(Dtype::F16),
        Gemm::matmul(shape, Dtype::F16).with_views(
            View::row_major(9000),
            View::row_major(n),
            View::col_major(m),
        ),
    ] {
        let plan = plan_of(&gemm);
        check_sizes(&plan, kinds(&gemm), H200);
        assert!(plan.workspace <= WORKSPACE_LIMIT);
        let (width, height) = if plan.turned { (m, n) } else { (n, m) };
        // Every corner is where the operands say it is, and the areas add up.
        let (mut area, mut corners) = (0, std::collections::HashSet::new());
        for step in &plan.steps {
            let p = &step.args;
            assert_eq!(p.out_row as usize, width);
            let corner = (p.out / 2) as usize;
            let (row, col) = (corner / width, corner % width);
            assert!(corners.insert(corner));
            assert_eq!(p.lhs / 2, (row as i64 * p.lhs_row) as u64);
            assert_eq!(p.rhs / 2, (col as i64 * p.rhs_col) as u64);
            let bias = if gemm.bias().is_some() { col } else { 0 };
            assert_eq!(p.bias / 2, bias as u64);
            assert!(row % 8 == 0 && col % 8 == 0, "pieces stay aligned");
            assert!(row + p.rows as usize <= height && col + p.cols as usize <= width);
            area += p.rows * p.cols;
        }
        assert_eq!(area as usize, m * n);
    }
}

#[test]
fn batches_of_more_blocks_than_a_grid_has_are_cut() {
    let len = 3_000_000_001;
    let gemm = Gemm::matmul(Shape { m: 20, k: 2, n: 20 }, Dtype::F32).with_batch(BatchDim {
        len,
        lhs_stride: 0,
        rhs_stride: 1,
        out_stride: 400,
    });
    let plan = plan_of(&gemm);
    check_sizes(&plan, kinds(&gemm), H200);
    let mut next = 0;
    for step in &plan.steps {
        assert_eq!((step.args.out / 4, step.args.rhs / 4), (400 * next, next));
        next += step.args.batch as u64;
    }
    assert_eq!(next as usize, len);
}

#[test]
fn a_turned_product_has_its_bias_along_the_rows() {
    let shape = Shape {
        m: 300,
        k: 64,
        n: 500,
    };
    let gemm = Gemm::matmul(shape, Dtype::F32)
        .with_bias(Dtype::F32)
        .with_views(
            View::row_major(64),
            View::row_major(500),
            View::col_major(300),
        );
    let plan = plan_of(&gemm);
    assert!(plan.turned);
    let p = &plan.steps[0].args;
    assert_eq!(
        (p.rows, p.cols, p.out_col, p.bias_along),
        (500, 300, 1, BIAS_ROWS)
    );
    // A few columns become a few rows, whatever the output's layout.
    let gemm = Gemm::matmul(
        Shape {
            m: 300,
            k: 64,
            n: 5,
        },
        Dtype::F32,
    )
    .with_bias(Dtype::F32);
    let plan = plan_of(&gemm);
    assert!(plan.turned);
    assert_eq!(plan.steps[0].instance.entry, "few_rows");
    assert_eq!(plan.steps[0].args.bias_along, BIAS_ROWS);
}

#[test]
fn chunks_run_side_by_side_where_tiles_are_few() {
    let entries = |m, k, n| {
        let plan = plan_of(&Gemm::matmul(Shape { m, k, n }, Dtype::F32));
        let names: Vec<_> = plan.steps.iter().map(|step| step.instance.entry).collect();
        (names, plan.workspace)
    };
    assert_eq!(entries(1024, 4096, 1024), (vec!["tile"], 0));
    assert_eq!(entries(1024, 8192, 1024), (vec!["tile", "fold"], 2 << 22));
    assert_eq!(entries(8192, 8192, 8192), (vec!["tile"], 0));
    assert_eq!(
        entries(1, 14336, 4096),
        (vec!["few_rows", "fold"], 4 * 4 * 4096)
    );
}

#[test]
fn wide_loads_need_addresses_and_strides_that_are_multiples_of_16_bytes() {
    let access = |view: View, address, batch: usize| {
        let gemm = Gemm::matmul(
            Shape {
                m: 64,
                k: 64,
                n: 64,
            },
            Dtype::F16,
        )
        .with_views(view, View::row_major(64), View::row_major(64))
        .with_batch(BatchDim {
            len: 2,
            lhs_stride: batch,
            rhs_stride: 0,
            out_stride: 4096,
        });
        let Access { order, width } = Access::of_lhs(&Form::of(&gemm), &[], Dtype::F16, address);
        (order, width)
    };
    assert_eq!(access(View::row_major(64), 0, 4096), (1, 8));
    assert_eq!(access(View::col_major(64), 32, 4096), (0, 8));
    assert_eq!(access(View::row_major(64), 2, 4096), (1, 1));
    assert_eq!(access(View::row_major(68), 0, 8192), (1, 1));
    assert_eq!(access(View::row_major(64), 0, 4100), (1, 1));
    assert_eq!(
        access(View::col_major(0), 0, 0),
        (0, 8),
        "one column for all"
    );
    let scattered = View {
        offset: 0,
        row_stride: 128,
        col_stride: 2,
    };
    assert_eq!(access(scattered, 0, 8192), (1, 1));
}

#[test]
fn too_many_chunks_are_refused() {
    assert!(check_reduction("matmul", 1 << 42).is_ok());
    let error = check_reduction("matmul", 1 << 44).unwrap_err();
    assert!(error.to_string().contains("overflows"), "{error}");
}
