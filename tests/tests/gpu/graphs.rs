//! Calls recorded in a CUDA graph, and replayed.

use std::process::Command;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaSlice};
use sgemm_bi_core::cuda::{CudaEngine, CudaOperands};
use sgemm_bi_core::{BiasGradient, CpuEngine, Dtype, Error, Gemm, Operands, Shape, WeightLayout};
use sgemm_bi_tests::compare::assert_f32_bits;
use sgemm_bi_tests::{Buffer, Data, cuda};

/// Recording concerns the recording thread only: other tests go on.
const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// An engine on a stream that can record, whose memory is not ordered by events: those from before
/// a recording cannot be waited for in it.
fn engine() -> Option<CudaEngine> {
    let engine = cuda::engine()?;
    let context = engine.context();
    // SAFETY: everything in these tests uses one stream.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("a stream");
    Some(CudaEngine::on_stream(stream).expect("an engine"))
}

fn record(engine: &CudaEngine, calls: impl FnOnce()) -> CudaGraph {
    engine
        .stream()
        .begin_capture(MODE)
        .expect("recording begins");
    calls();
    let graph = engine.stream().end_capture(CUgraphInstantiate_flags(0));
    graph.expect("recording ends").expect("there is a graph")
}

fn values(len: usize, seed: u64) -> Vec<f32> {
    match Data::Normal.fill(Dtype::F32, len, seed) {
        Buffer::F32(values) => values,
        other => panic!("{}", other.dtype()),
    }
}

#[test]
fn a_recorded_step_replays_with_new_operands() {
    let Some(engine) = engine() else { return };
    let cpu = CpuEngine::new().expect("a CPU engine");
    // Chunks side by side and one after the other, few rows and many.
    for (m, k, n) in [(40, 9000, 50), (2, 20_000, 70), (300, 64, 200)] {
        let shape = Shape { m, k, n };
        let forward = Gemm::forward(shape, Dtype::F32, WeightLayout::OutIn).with_bias(Dtype::F32);
        let gradient = Gemm::weight_gradient(shape, Dtype::F32, WeightLayout::OutIn).accumulating();
        let sums = BiasGradient::new(m, n, Dtype::F32).accumulating();
        let stream = engine.stream();
        let zeros = |len| stream.alloc_zeros::<f32>(len).expect("memory");
        let (mut x, mut w, mut bias) = (zeros(m * k), zeros(k * n), zeros(n));
        let (mut y, mut dw, mut db) = (zeros(m * n), zeros(k * n), zeros(n));
        let prepared = engine.prepare(
            &forward,
            &CudaOperands::new(&x, &w, &mut y).with_bias(&bias),
        );
        let prepared = prepared.expect("prepared");
        println!("{shape:?}: {prepared:?}");
        engine
            .prepare(&gradient, &CudaOperands::new(&x, &y, &mut dw))
            .expect("prepared");
        let prepared = engine.prepare_bias_gradient(&sums, &(&y).into(), &(&mut db).into());
        prepared.expect("prepared");
        let graph = record(&engine, || {
            let operands = CudaOperands::new(&x, &w, &mut y).with_bias(&bias);
            engine.gemm(&forward, operands).expect("recorded");
            engine
                .gemm(&gradient, CudaOperands::new(&x, &y, &mut dw))
                .expect("recorded");
            engine.bias_gradient(&sums, &y, &mut db).expect("recorded");
        });
        let (mut expected_dw, mut expected_db) = (vec![0.0; k * n], vec![0.0; n]);
        for replay in 0..3 {
            let new = [
                values(m * k, replay),
                values(k * n, replay + 10),
                values(n, replay + 20),
            ];
            for (to, from) in [&mut x, &mut w, &mut bias].into_iter().zip(&new) {
                stream.memcpy_htod(from, to).expect("copied");
            }
            graph.launch().expect("replayed");
            let back = |from: &CudaSlice<f32>| stream.clone_dtoh(from).expect("copied");
            let mut expected = vec![0.0; m * n];
            let operands = Operands::new(&new[0], &new[1], &mut expected).with_bias(&new[2]);
            cpu.gemm(&forward, operands).expect("computed");
            let operands = Operands::new(&new[0], &expected, &mut expected_dw);
            cpu.gemm(&gradient, operands).expect("computed");
            cpu.bias_gradient(&sums, &expected, &mut expected_db)
                .expect("computed");
            let what = |name| format!("{name}, {shape:?}, replay {replay}");
            assert_f32_bits(&what("y"), &back(&y), &expected);
            assert_f32_bits(&what("dw"), &back(&dw), &expected_dw);
            assert_f32_bits(&what("db"), &back(&db), &expected_db);
        }
    }
}

#[test]
fn recording_what_is_not_prepared_is_refused() {
    if cuda::engine().is_none() {
        return;
    }
    // In a process of its own, where nothing else has loaded the kernels.
    let this = std::env::current_exe().expect("a test knows its file");
    let child = [
        "--exact",
        "graphs::in_a_fresh_process",
        "--ignored",
        "--nocapture",
    ];
    let output = Command::new(this)
        .args(child)
        .output()
        .expect("the test runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "recording_what_is_not_prepared_is_refused runs it"]
fn in_a_fresh_process() {
    let Some(engine) = engine() else { return };
    let stream = engine.stream();
    let zeros = |len| stream.alloc_zeros::<f32>(len).expect("memory");
    let (x, w, mut y) = (zeros(64), zeros(64), zeros(64));
    let gemm = Gemm::matmul(Shape { m: 8, k: 8, n: 8 }, Dtype::F32);
    stream.begin_capture(MODE).expect("recording begins");
    let refused = engine.gemm(&gemm, CudaOperands::new(&x, &w, &mut y));
    match refused {
        Err(Error::CaptureNotPrepared { op, what }) => {
            assert_eq!(op, "matmul");
            assert!(
                what.contains("few_rows") && what.contains("`prepare`"),
                "{what}"
            );
        }
        other => panic!("{other:?}"),
    }
    // The recording goes on: a refusal has done nothing to it.
    let graph = stream
        .end_capture(CUgraphInstantiate_flags(0))
        .expect("recording ends");
    drop(graph);
    engine
        .prepare(&gemm, &CudaOperands::new(&x, &w, &mut y))
        .expect("prepared");
    let graph = record(&engine, || {
        engine
            .gemm(&gemm, CudaOperands::new(&x, &w, &mut y))
            .expect("recorded");
    });
    graph.launch().expect("replayed");
    stream.synchronize().expect("run");
}
