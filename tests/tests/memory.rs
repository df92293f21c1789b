//! The CPU engine's working memory against the bound that it states, by counting allocations.
//!
//! One test, alone in its process: the allocator counts for all threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{BatchDim, CpuEngine, Dtype, Gemm, Operands, Shape, WeightLayout};
use sgemm_bi_tests::{Buffer, Data};

/// The system's allocator, counting the bytes that are live and the most that ever were.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; counting touches atomics alone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK.fetch_max(live, Ordering::SeqCst);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that `work` held at most, beyond what was live before.
fn most_held(work: impl FnOnce()) -> usize {
    let before = LIVE.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    work();
    PEAK.load(Ordering::SeqCst) - before
}

/// Descriptions, jobs and queues: what a call may allocate beside its buffers.
const SMALL: usize = 64 << 10;

/// Operands and output of a problem, the size of one batch entry times the batch.
fn run(engine: &CpuEngine, gemm: &Gemm) -> usize {
    let (rows, cols, r) = (gemm.rows(), gemm.cols(), gemm.reduction());
    let entries = gemm.batch_len();
    let lhs = Data::Uniform.fill(gemm.dtype(), entries * rows * r, 1);
    let rhs = Data::Uniform.fill(gemm.dtype(), entries * r * cols, 2);
    let mut out = Buffer::from_bits(gemm.out_dtype(), entries * rows * cols, |_| 0);
    most_held(|| {
        engine
            .gemm(
                gemm,
                Operands::new(lhs.as_ref(), rhs.as_ref(), out.as_mut()),
            )
            .expect("a valid problem");
    })
}

/// Problems larger than every block of the engine, unless `tenth` of them for slow levels.
fn problems(tenth: bool) -> Vec<Gemm> {
    let scale = |size: usize| if tenth { size / 10 } else { size };
    let shape = |m, k, n| Shape { m, k, n };
    let layout = WeightLayout::OutIn;
    let square = scale(160);
    let stride = square * square;
    let batch = BatchDim {
        len: 8,
        lhs_stride: stride,
        rhs_stride: stride,
        out_stride: stride,
    };
    vec![
        Gemm::forward(shape(scale(2100), 40, scale(2100)), Dtype::F32, layout),
        Gemm::forward(shape(scale(2100), 520, scale(300)), Dtype::F32, layout),
        Gemm::forward(shape(scale(300), 520, scale(2100)), Dtype::F32, layout),
        Gemm::forward(shape(scale(300), 4200, scale(200)), Dtype::BF16, layout),
        Gemm::weight_gradient(
            shape(scale(5000), scale(200), scale(100)),
            Dtype::F16,
            layout,
        ),
        Gemm::forward(shape(1, 5000, 600), Dtype::F32, layout),
        Gemm::forward(shape(1, 5000, 600), Dtype::BF16, WeightLayout::InOut),
        Gemm::forward(shape(64, scale(20_000), 500), Dtype::F32, layout),
        Gemm::input_gradient(shape(4000, 3, 70), Dtype::F32, layout),
        Gemm::matmul(shape(square, square, square), Dtype::F32).with_batch(batch),
    ]
}

#[test]
fn working_memory_is_bounded_and_kept() {
    for simd in Simd::available() {
        for threads in [1, 2] {
            let engine = CpuEngine::new()
                .and_then(|engine| engine.with_simd(simd))
                .and_then(|engine| engine.with_threads(threads))
                .expect("the level is available");
            let bound = engine.scratch_limit() + SMALL;
            let before = LIVE.load(Ordering::SeqCst);
            for gemm in problems(simd == Simd::Portable) {
                let held = run(&engine, &gemm);
                assert!(
                    held <= bound,
                    "{simd}, {threads} threads: {held} > {bound}: {gemm:?}"
                );
                // On one thread the buffers of the call before are found again.
                let again = run(&engine, &gemm);
                assert!(
                    threads > 1 || again <= SMALL,
                    "{simd}: {again} bytes in a second call: {gemm:?}"
                );
            }
            // What is kept between calls is inside the bound as well.
            let kept = LIVE.load(Ordering::SeqCst) - before;
            assert!(
                kept <= bound,
                "{simd}, {threads} threads keep {kept} > {bound}"
            );
            assert!(kept > 0, "the buffers are kept");
            drop(engine);
        }
    }
}
