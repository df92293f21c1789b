//! Softmax, losses and roundings against the CPU engine, their targets, and their recording.

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use half::{bf16, f16};
use sgemm_bi_core::cuda::{CudaEngine, RowOp, TargetType};
use sgemm_bi_core::{CpuEngine, Dtype, Element, Error, Rows, reference};
use sgemm_bi_tests::compare::assert_bits;
use sgemm_bi_tests::{Buffer, Cuda, Data, cuda};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

/// Rows and columns: short rows, one chunk, several, more than a block's warps, many rows.
const SHAPES: [(usize, usize); 14] = [
    (0, 5),
    (1, 1),
    (3, 2),
    (1000, 10),
    (33, 16),
    (33, 17),
    (5, 128),
    (129, 1000),
    (2, 4096),
    (7, 4097),
    (3, 8192),
    (2, 40_000),
    (1, 50_257),
    (9000, 3),
];

/// A buffer of one value.
fn one(dtype: Dtype, value: f32) -> Buffer {
    match dtype {
        Dtype::F32 => vec![<f32 as Element>::round(value)].into(),
        Dtype::BF16 => vec![bf16::round(value)].into(),
        _ => vec![f16::round(value)].into(),
    }
}

/// The classes of rows, of a type that has them all.
fn classes(rows: usize, cols: usize) -> Vec<i64> {
    (0..rows).map(|i| (i * 7919 % cols) as i64).collect()
}

/// Every operation, in every dtype, on dense and on spread rows.
#[test]
fn every_operation_has_the_cpus_bits() {
    let Some(aligned) = Cuda::new() else { return };
    let cpu = CpuEngine::new().expect("a CPU engine");
    for dtype in DTYPES {
        for (seed, (m, n)) in SHAPES.into_iter().enumerate() {
            for data in [Data::Normal, Data::Wide, Data::Special] {
                for spread in [0, 1] {
                    let cuda = aligned.shifted(spread);
                    let rows = Rows::new(m, n).with_strides(n + 3 * spread, n + spread);
                    let what = format!("{rows:?} {data:?} {dtype}");
                    compare(&cuda, &cpu, &rows, dtype, data, seed as u64)
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                }
            }
        }
    }
}

fn compare(
    cuda: &Cuda,
    cpu: &CpuEngine,
    rows: &Rows,
    dtype: Dtype,
    data: Data,
    seed: u64,
) -> Result<(), Error> {
    let engine = &cuda.engine;
    let inputs = rows.rows * rows.input_stride;
    let x = data.fill(dtype, inputs, seed);
    let dy = data.fill(dtype, inputs, seed + 100);
    let blank = Data::Uniform.fill(dtype, rows.rows * rows.output_stride, seed + 200);
    let check = |what: &str, got: &Buffer, expected: &Buffer| {
        let what = format!("{what}: {rows:?} {data:?}");
        let shape = [got.len()];
        assert_bits(
            &what,
            got.dtype(),
            &shape,
            &got.all_bits(),
            &expected.all_bits(),
        );
    };
    let (on_x, on_dy) = (cuda.upload(x.as_ref())?, cuda.upload(dy.as_ref())?);

    let (mut expected, mut got) = (blank.clone(), blank.clone());
    let mut out = cuda.upload(blank.as_ref())?;
    cpu.log_softmax(rows, x.as_ref(), expected.as_mut())?;
    engine.log_softmax(rows, on_x.as_ref(), out.as_mut())?;
    cuda.download(&out, got.as_mut())?;
    check("log_softmax", &got, &expected);

    cpu.log_softmax_backward(rows, x.as_ref(), dy.as_ref(), expected.as_mut())?;
    engine.log_softmax_backward(rows, on_x.as_ref(), on_dy.as_ref(), out.as_mut())?;
    cuda.download(&out, got.as_mut())?;
    check("log_softmax backward", &got, &expected);

    for to in DTYPES {
        let dense = Rows::new(rows.rows, rows.cols).with_strides(rows.input_stride, rows.cols);
        let mut rounded = Data::Uniform.fill(to, rows.rows * rows.cols, 0);
        let mut out = cuda.upload(rounded.as_ref())?;
        engine.round(&dense, on_x.as_ref(), out.as_mut())?;
        cuda.download(&out, rounded.as_mut())?;
        for i in 0..rounded.len() {
            let from = i / rows.cols * rows.input_stride + i % rows.cols;
            let value = one(to, widened(&x, from));
            assert_eq!(
                rounded.bits(i),
                value.bits(0),
                "{i} of {dtype} to {to}: {rows:?}"
            );
        }
    }

    let classes = classes(rows.rows, rows.cols);
    let loss = cpu.cross_entropy(rows, x.as_ref(), &classes)?;
    let stream = engine.stream();
    // Allocations are never empty.
    let padded = [&classes[..], &[0]].concat();
    let small: Vec<u32> = padded.iter().map(|&class| class as u32).collect();
    let (wide, small) = (
        stream.clone_htod(&padded).expect("memory"),
        stream.clone_htod(&small).expect("memory"),
    );
    for to in DTYPES {
        let mut got = one(to, 0.0);
        let mut out = cuda.upload(got.as_ref())?;
        engine.cross_entropy(rows, on_x.as_ref(), wide.slice(..rows.rows), out.as_mut())?;
        cuda.download(&out, got.as_mut())?;
        check("loss", &got, &one(to, loss));
    }

    let grad = one(dtype, 0.37);
    let on_grad = cuda.upload(grad.as_ref())?;
    // What lies between the rows is still what it was.
    let value = widened(&grad, 0);
    cpu.cross_entropy_backward(rows, x.as_ref(), &classes, value, expected.as_mut())?;
    let targets = small.slice(..rows.rows);
    engine.cross_entropy_backward(rows, on_x.as_ref(), targets, on_grad.as_ref(), out.as_mut())?;
    cuda.download(&out, got.as_mut())?;
    check("cross_entropy backward", &got, &expected);
    Ok(())
}

fn widened(buffer: &Buffer, i: usize) -> f32 {
    match buffer {
        Buffer::F32(v) => v[i].widen(),
        Buffer::BF16(v) => v[i].widen(),
        Buffer::F16(v) => v[i].widen(),
    }
}

#[test]
fn a_target_out_of_range_is_refused_before_anything_is_written() {
    let Some(engine) = cuda::engine() else { return };
    let stream = engine.stream();
    let rows = Rows::new(1000, 10);
    let x = stream.alloc_zeros::<f32>(10_000).expect("memory");
    let mut out = stream.clone_htod(&vec![7.0f32; 10_000]).expect("memory");
    let mut loss = stream.clone_htod(&[7.0f32]).expect("memory");
    let grad = stream.clone_htod(&[1.0f32]).expect("memory");
    for wrong in [-1, 10, i64::MIN, i64::MAX] {
        let mut classes = classes(1000, 10);
        classes[800] = wrong;
        classes[321] = wrong;
        let targets = stream.clone_htod(&classes).expect("memory");
        let refused = [
            engine.cross_entropy(&rows, &x, &targets, &mut loss),
            engine.cross_entropy_backward(&rows, &x, &targets, &grad, &mut out),
        ];
        for result in refused {
            match result {
                Err(Error::TargetOutOfRange {
                    row: 321,
                    got,
                    classes: 10,
                    ..
                }) => assert_eq!(got, wrong),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(stream.clone_dtoh(&loss).expect("memory"), [7.0]);
    assert!(
        stream
            .clone_dtoh(&out)
            .expect("memory")
            .iter()
            .all(|&v| v == 7.0)
    );
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let Some(engine) = cuda::engine() else { return };
    let stream = engine.stream();
    let zeros = |len| stream.alloc_zeros::<f32>(len).expect("memory");
    let (x, mut y) = (zeros(12), zeros(12));
    let half = stream.alloc_zeros::<bf16>(12).expect("memory");
    let targets = stream.alloc_zeros::<u8>(3).expect("memory");
    let rows = Rows::new(3, 4);
    let long = engine.log_softmax(&Rows::new(4, 4), &x, &mut y);
    assert!(
        matches!(long, Err(Error::TooShort { argument: "x", .. })),
        "{long:?}"
    );
    let mixed = engine.log_softmax(&rows, &half, &mut y);
    assert!(
        matches!(mixed, Err(Error::DtypeMismatch { argument: "y", .. })),
        "{mixed:?}"
    );
    let loss = engine.cross_entropy(&rows, &x, &targets, &mut y);
    assert!(
        matches!(
            loss,
            Err(Error::LengthMismatch {
                argument: "loss",
                ..
            })
        ),
        "{loss:?}"
    );
    let count = engine.cross_entropy(&rows, &x, targets.slice(..2), &mut zeros(1));
    assert!(
        matches!(
            count,
            Err(Error::LengthMismatch {
                argument: "targets",
                ..
            })
        ),
        "{count:?}"
    );
}

/// An engine on a stream that can record, whose memory is not ordered by events.
fn recording() -> Option<CudaEngine> {
    let context = cuda::engine()?.context().clone();
    // SAFETY: everything here uses one stream.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("a stream");
    Some(CudaEngine::on_stream(stream).expect("an engine"))
}

#[test]
fn a_recorded_loss_replays_with_new_operands_and_a_wrong_target_makes_it_nan() {
    let Some(engine) = recording() else { return };
    // A width and types that no other test has, so that nothing is loaded before.
    let rows = Rows::new(50, 4100);
    let stream = engine.stream();
    let mut x = stream.alloc_zeros::<f16>(50 * 4100).expect("memory");
    let mut targets = stream.alloc_zeros::<u32>(50).expect("memory");
    let mut loss = stream.alloc_zeros::<f16>(1).expect("memory");
    let op = RowOp::CrossEntropy {
        targets: TargetType::U32,
        loss: Dtype::F16,
    };
    engine
        .prepare_rows(op, &rows, Dtype::F16)
        .expect("prepared");
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).expect("recording begins");
    engine
        .cross_entropy(&rows, &x, &targets, &mut loss)
        .expect("recorded");
    let graph = stream
        .end_capture(CUgraphInstantiate_flags(0))
        .expect("recording ends");
    let graph = graph.expect("there is a graph");

    for seed in 0..3 {
        let Buffer::F16(values) = Data::Normal.fill(Dtype::F16, 50 * 4100, seed) else {
            panic!("f16 was asked for")
        };
        let classes: Vec<u32> = (0..50).map(|i| i * 5 + seed as u32).collect();
        stream.memcpy_htod(&values, &mut x).expect("memory");
        stream.memcpy_htod(&classes, &mut targets).expect("memory");
        graph.launch().expect("replayed");
        let expected = reference::cross_entropy(&rows, &values, &classes).expect("a loss");
        let got = stream.clone_dtoh(&loss).expect("memory");
        assert_eq!(got[0].to_bits(), f16::round(expected).to_bits());
    }
    // Nothing can be refused in a replay, and nothing outside the row is read.
    stream
        .memcpy_htod(&[4100u32; 50], &mut targets)
        .expect("memory");
    graph.launch().expect("replayed");
    let got = stream.clone_dtoh(&loss).expect("memory");
    assert_eq!(got[0].to_bits(), 0x7FFF);
}
