//! The SIMD level without intrinsics: arrays that the compiler vectorises for its target.

use super::exact_fma;
use super::{Isa, Strided};
use crate::Element;

/// The target's baseline instructions.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Portable;

const LANES: usize = 8;

#[derive(Clone, Copy)]
#[repr(align(32))]
pub(in crate::cpu) struct Lanes([f32; LANES]);

impl Portable {
    #[inline(always)]
    pub(in crate::cpu) fn array(vector: Lanes) -> [f32; LANES] {
        vector.0
    }

    #[inline(always)]
    pub(in crate::cpu) fn of(values: [f32; LANES]) -> Lanes {
        Lanes(values)
    }
}

impl Isa for Portable {
    type Vector = Lanes;

    const LANES: usize = LANES;
    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 1;

    #[inline(always)]
    fn vectorize<Out>(self, work: impl FnOnce() -> Out) -> Out {
        work()
    }

    #[inline(always)]
    fn zero(self) -> Lanes {
        Lanes([0.0; LANES])
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Lanes {
        Lanes([value; LANES])
    }

    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        Lanes(std::array::from_fn(|i| a.0[i] + b.0[i]))
    }

    #[inline(always)]
    fn mul_add(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        Lanes(std::array::from_fn(|i| {
            exact_fma::mul_add(a.0[i], b.0[i], c.0[i])
        }))
    }

    #[inline(always)]
    unsafe fn load<T: Element>(self, from: *const T) -> Lanes {
        // SAFETY: the caller's, and i < LANES.
        Lanes(std::array::from_fn(|i| unsafe {
            from.add(i).read().widen()
        }))
    }

    #[inline(always)]
    unsafe fn load_first<T: Element>(self, from: *const T, count: usize) -> Lanes {
        let mut lanes = [0.0; LANES];
        for (i, lane) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: the caller's, and i < count.
            *lane = unsafe { from.add(i).read().widen() };
        }
        Lanes(lanes)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: Lanes) {
        // SAFETY: the caller's; an array of f32 has the layout of LANES values.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(vector.0) }
    }

    #[inline(always)]
    unsafe fn round_first<T: Element>(self, to: *mut T, vector: Lanes, count: usize) {
        for (i, &value) in vector.0.iter().enumerate().take(count) {
            // SAFETY: the caller's, and i < count.
            unsafe { to.add(i).write(T::round(value)) }
        }
    }

    #[inline(always)]
    unsafe fn transpose<T: Element>(
        self,
        from: Strided<*const T>,
        rows: usize,
        to: Strided<*mut f32>,
    ) {
        for j in 0..LANES {
            let mut lanes = [0.0; LANES];
            for (i, lane) in lanes.iter_mut().enumerate().take(rows) {
                // SAFETY: the caller's, and i < rows, j < LANES.
                *lane = unsafe { from.start.add(i * from.stride + j).read().widen() };
            }
            // SAFETY: the caller's, and j < LANES.
            unsafe { self.store(to.start.add(j * to.stride), Lanes(lanes)) }
        }
    }
}
