//! One trait for every SIMD level: the vectors that packing, micro-kernels and epilogues are
//! written in.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exact_fma;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;

use crate::Element;

/// A SIMD level: a token whose existence proves that the processor has the level's instructions.
///
/// Every method is `#[inline(always)]` and reaches its instructions only inside
/// [`vectorize`](Isa::vectorize): code outside pays a call for each.
pub(super) trait Isa: Copy + Send + Sync + 'static {
    /// [`LANES`](Isa::LANES) values of f32.
    type Vector: Copy;

    /// Values in a vector.
    const LANES: usize;
    /// Rows of the largest micro-tile that stays in registers.
    const TILE_ROWS: usize;
    /// Vectors in a row of a micro-tile.
    const TILE_VECTORS: usize;

    /// Runs `work`, an `#[inline(always)]` closure, compiled with the level's instructions.
    fn vectorize<Out>(self, work: impl FnOnce() -> Out) -> Out;

    /// +0.0 in every lane.
    fn zero(self) -> Self::Vector;

    /// The same value in every lane.
    fn splat(self, value: f32) -> Self::Vector;

    /// `a + b`, one rounding.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a · b + c`, one rounding: the link of the scalar tier's chain (contract section 4).
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// Loads and widens a vector.
    ///
    /// # Safety
    /// `from` is valid for reading [`LANES`](Isa::LANES) elements; no alignment is needed.
    unsafe fn load<T: Element>(self, from: *const T) -> Self::Vector;

    /// Loads and widens `count ≤ LANES` elements; the other lanes are +0.0.
    ///
    /// # Safety
    /// `from` is valid for reading `count` elements.
    unsafe fn load_first<T: Element>(self, from: *const T, count: usize) -> Self::Vector;

    /// Stores a vector, whatever its bits.
    ///
    /// # Safety
    /// `to` is valid for writing [`LANES`](Isa::LANES) elements; no alignment is needed.
    unsafe fn store(self, to: *mut f32, vector: Self::Vector);

    /// Stores a vector past the caches where the level can: for large outputs that nothing reads
    /// soon, since the line is not fetched first. [`fence`](Isa::fence) must follow before another
    /// thread may read.
    ///
    /// # Safety
    /// `to` is valid for writing [`LANES`](Isa::LANES) elements and aligned to their size together.
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, vector: Self::Vector) {
        // SAFETY: the caller's.
        unsafe { self.store(to, vector) }
    }

    /// Orders what [`stream`](Isa::stream) stored before whatever the thread stores next.
    #[inline(always)]
    fn fence(self) {}

    /// Rounds the first `count ≤ LANES` values to T, NaN canonical (contract section 7), and
    /// stores them.
    ///
    /// # Safety
    /// `to` is valid for writing `count` elements.
    unsafe fn round_first<T: Element>(self, to: *mut T, vector: Self::Vector, count: usize);

    /// Widens and transposes: element (i, j) of a block of `rows` rows and LANES columns goes to
    /// `to.start[j · to.stride + i]`, for i in 0..LANES; missing rows are +0.0.
    ///
    /// The stores go up in j, so that what one writes past a stride shorter than a vector, the
    /// next overwrites.
    ///
    /// # Safety
    /// `rows` is at most LANES. Row i, at `from.start + i · from.stride`, is valid for reading
    /// LANES elements, for i < rows, and `to.start + j · to.stride` for writing LANES values, for
    /// j < LANES.
    unsafe fn transpose<T: Element>(
        self,
        from: Strided<*const T>,
        rows: usize,
        to: Strided<*mut f32>,
    );
}

/// Lines of elements `stride` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Strided<P> {
    pub start: P,
    pub stride: usize,
}

/// Asks for the cache line at `address`, which may be anything, to be brought to L1.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
