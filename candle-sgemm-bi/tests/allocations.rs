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

/// One test, so that no other thread of this process allocates while it counts.
#[test]
fn weights_are_never_copied() {
    const SIZE: usize = 2048;
    for dtype in [DType::F32, DType::BF16] {
        let weight = random(1, (SIZE, SIZE), dtype);
        let bias = random(2, SIZE, dtype);
        let bytes = SIZE * SIZE * dtype.size_in_bytes();
        // Outputs, packing buffers and Candle's bookkeeping together must not reach half of the
        // weight, let alone a copy.
        let bound = bytes / 2;
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
            let layer = Linear::new(weight.clone(), Some(bias.clone())).with_layout(layout);
            for rows in [1, 5, 64] {
                let x = variable(4, (rows, SIZE), dtype);
                // Threads and other things made once.
                layer.forward(&x.narrow(1, 0, SIZE).unwrap()).unwrap();
                let (forward, y) = peak(|| layer.forward(&x).unwrap());
                let (backward, _) = peak(|| y.sum_all().unwrap().backward().unwrap());
                for (pass, got) in [("forward", forward), ("dX", backward)] {
                    assert!(
                        got < bound,
                        "{what} {dtype:?} {rows} {pass}: {got} of {bound} bytes"
                    );
                }
            }
        }
        // Nor is a shared matrix in a batched product expanded.
        let a = Var::from_tensor(&random(5, (2, 2, 1, SIZE), dtype)).unwrap();
        let (forward, c) = peak(|| matmul(&a, &weight).unwrap());
        let (backward, _) = peak(|| c.sum_all().unwrap().backward().unwrap());
        assert!(
            forward < bound && backward < bound,
            "matmul: {forward}, {backward} of {bound}"
        );
    }
}
