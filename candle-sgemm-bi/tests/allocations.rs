//! What a forward or backward pass allocates, counted: weights are never copied in either layout.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use candle_core::{DType, Module, Tensor, Var};
use candle_sgemm_bi::{Linear, WeightLayout, matmul};
use common::*;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    let live = LIVE.fetch_add(bytes, SeqCst) + bytes;
    PEAK.fetch_max(live, SeqCst);
}

// SAFETY: every request goes to the system's allocator unchanged; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that were live at once during `work`, above those live before it.
fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = LIVE.load(SeqCst);
    PEAK.store(before, SeqCst);
    let result = work();
    (PEAK.load(SeqCst) - before, result)
}

/// Candle's bookkeeping and the threads' queues.
const BOOKKEEPING: usize = 64 << 10;

/// One test, so that no other thread of this process allocates while it counts.
///
/// The engine keeps its packing buffers: the first call may allocate those and the output, and a
/// second one only its output. The buffers stay below half a weight here, so that a copy in them
/// would be seen too.
#[test]
fn weights_are_never_copied() {
    const SIZE: usize = 2048;
    let engine = sgemm_bi_core::CpuEngine::new().unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let half_a_weight = SIZE * SIZE * dtype.size_in_bytes() / 2;
        let packing = engine.scratch_limit().min(half_a_weight);
        let weight = random(1, (SIZE, SIZE), dtype);
        let bias = random(2, SIZE, dtype);
        let wide = random(3, (SIZE + 8, SIZE + 8), dtype);
        let sliced = wide.narrow(0, 3, SIZE).unwrap().narrow(1, 5, SIZE).unwrap();
        let weights: [(&str, Tensor, WeightLayout); 4] = [
            ("[out, in]", weight.clone(), WeightLayout::OutIn),
            ("[in, out]", weight.clone(), WeightLayout::InOut),
            (
                "[in, out], transposed view",
                weight.t().unwrap(),
                WeightLayout::InOut,
            ),
            ("[out, in], slice", sliced, WeightLayout::OutIn),
        ];
        for (what, weight, layout) in weights {
            let layer = Linear::new(weight, Some(bias.clone())).with_layout(layout);
            for rows in [1, 5, 64] {
                let what = format!("{what} {dtype:?} {rows} rows");
                let x = variable(4, (rows, SIZE), dtype);
                check(&what, packing, || layer.forward(&x).unwrap());
            }
        }
        // Nor is a shared matrix in a batched product expanded.
        let a = Var::from_tensor(&random(5, (2, 2, 1, SIZE), dtype)).unwrap();
        check(&format!("matmul {dtype:?}"), packing, || {
            matmul(&a, &weight).unwrap()
        });
    }
}

/// Counts a forward pass and the backward pass of its input, whose gradient is as large as the
/// output.
fn check(what: &str, packing: usize, forward: impl Fn() -> Tensor) {
    let backward = |y: Tensor| y.sum_all().unwrap().backward().unwrap();
    let (first, y) = peak(&forward);
    let output = y.elem_count() * y.dtype().size_in_bytes();
    let (first_backward, _) = peak(|| backward(y));
    let (second, y) = peak(&forward);
    let (second_backward, _) = peak(|| backward(y));
    // dX, the zeros that Candle adds it to, the sum, and the loss's own gradient.
    let gradients = 4 * output;
    for (pass, got, bound) in [
        ("first forward", first, output + packing + BOOKKEEPING),
        (
            "first backward",
            first_backward,
            gradients + packing + BOOKKEEPING,
        ),
        ("second forward", second, output + BOOKKEEPING),
        ("second backward", second_backward, gradients + BOOKKEEPING),
    ] {
        assert!(got <= bound, "{what}: {pass}: {got} of {bound} bytes");
    }
}
