//! AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use super::{Isa, Strided};
use crate::contract::{CANONICAL_NAN_16, CANONICAL_NAN_F32};
use crate::{Dtype, Element};

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    pub(in crate::cpu) unsafe fn new() -> Self {
        Avx2(())
    }
}

const LANES: usize = 8;

/// The mask of the first `count ≤ 8` lanes.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn first(count: usize) -> __m256i {
    debug_assert!(count <= LANES);
    // SAFETY: the caller's.
    unsafe {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lane)
    }
}

/// Widens 8 values of a 16-bit type.
///
/// # Safety
/// The processor has AVX2 and F16C.
#[inline(always)]
unsafe fn widen_16<T: Element>(halves: __m128i) -> __m256 {
    // SAFETY: the caller's.
    unsafe {
        match T::DTYPE {
            Dtype::F16 => _mm256_cvtph_ps(halves),
            _ => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))),
        }
    }
}

/// Rounds to a 16-bit type; every NaN becomes the canonical one.
///
/// # Safety
/// The processor has AVX2 and F16C.
#[inline(always)]
unsafe fn round_16<T: Element>(vector: __m256) -> __m128i {
    // SAFETY: the caller's.
    unsafe {
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(vector, vector));
        let nan = _mm_packs_epi32(
            _mm256_castsi256_si128(nan),
            _mm256_extracti128_si256::<1>(nan),
        );
        let halves = match T::DTYPE {
            Dtype::F16 => _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(vector),
            _ => {
                // Nearest even on the upper half, as in `Element::round`.
                let bits = _mm256_castps_si256(vector);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
                let upper = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, bias));
                _mm_packus_epi32(
                    _mm256_castsi256_si128(upper),
                    _mm256_extracti128_si256::<1>(upper),
                )
            }
        };
        _mm_blendv_epi8(halves, _mm_set1_epi16(CANONICAL_NAN_16 as i16), nan)
    }
}

impl Isa for Avx2 {
    type Vector = __m256;

    const LANES: usize = LANES;
    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 2;

    #[inline(always)]
    fn vectorize<Out>(self, work: impl FnOnce() -> Out) -> Out {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn with_features<Out>(work: impl FnOnce() -> Out) -> Out {
            work()
        }
        // SAFETY: `Avx2` proves the features.
        unsafe { with_features(work) }
    }

    #[inline(always)]
    fn zero(self) -> __m256 {
        // SAFETY: `Avx2` proves the features.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: `Avx2` proves the features.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `Avx2` proves the features.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `Avx2` proves the features.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn load<T: Element>(self, from: *const T) -> __m256 {
        // SAFETY: `Avx2` proves the features; the caller, that 8 elements can be read.
        unsafe {
            match T::DTYPE {
                Dtype::F32 => _mm256_loadu_ps(from.cast()),
                _ => widen_16::<T>(_mm_loadu_si128(from.cast())),
            }
        }
    }

    #[inline(always)]
    unsafe fn load_first<T: Element>(self, from: *const T, count: usize) -> __m256 {
        // SAFETY: `Avx2` proves the features; lanes past `count` are not read, the caller answers
        // for the others.
        unsafe {
            match T::DTYPE {
                Dtype::F32 => _mm256_maskload_ps(from.cast(), first(count)),
                _ => {
                    let mut halves = [0u16; LANES];
                    let to: *mut T = halves.as_mut_ptr().cast();
                    std::ptr::copy_nonoverlapping(from, to, count);
                    widen_16::<T>(_mm_loadu_si128(halves.as_ptr().cast()))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: __m256) {
        // SAFETY: `Avx2` proves the features; the caller, that 8 values can be written.
        unsafe { _mm256_storeu_ps(to, vector) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, vector: __m256) {
        // SAFETY: `Avx2` proves the features; the caller, that the aligned vector can be written,
        // and that a fence follows.
        unsafe { _mm256_stream_ps(to, vector) }
    }

    #[inline(always)]
    fn fence(self) {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn round_first<T: Element>(self, to: *mut T, vector: __m256, count: usize) {
        // SAFETY: `Avx2` proves the features; lanes past `count` are not written, the caller
        // answers for the others.
        unsafe {
            match T::DTYPE {
                Dtype::F32 => {
                    let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(vector, vector);
                    let canonical = _mm256_set1_ps(f32::from_bits(CANONICAL_NAN_F32));
                    let rounded = _mm256_blendv_ps(vector, canonical, nan);
                    _mm256_maskstore_ps(to.cast(), first(count), rounded);
                }
                _ => {
                    let rounded = round_16::<T>(vector);
                    if count == LANES {
                        _mm_storeu_si128(to.cast(), rounded);
                    } else {
                        let mut halves = [0u16; LANES];
                        _mm_storeu_si128(halves.as_mut_ptr().cast(), rounded);
                        std::ptr::copy_nonoverlapping(halves.as_ptr().cast(), to, count);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn transpose<T: Element>(
        self,
        from: Strided<*const T>,
        rows: usize,
        to: Strided<*mut f32>,
    ) {
        // SAFETY: `Avx2` proves the features; the caller, that rows i < rows hold 8 elements and
        // that each column's 8 values can be written.
        unsafe {
            // Written out: loops over the vectors would keep them in memory.
            let row = |i: usize| match i < rows {
                true => self.load(from.start.add(i * from.stride)),
                false => self.zero(),
            };
            let a = transpose_lanes([row(0), row(1), row(2), row(3)]);
            let b = transpose_lanes([row(4), row(5), row(6), row(7)]);
            let store = |j: usize, column: __m256| self.store(to.start.add(j * to.stride), column);
            store(0, _mm256_permute2f128_ps::<0x20>(a[0], b[0]));
            store(1, _mm256_permute2f128_ps::<0x20>(a[1], b[1]));
            store(2, _mm256_permute2f128_ps::<0x20>(a[2], b[2]));
            store(3, _mm256_permute2f128_ps::<0x20>(a[3], b[3]));
            store(4, _mm256_permute2f128_ps::<0x31>(a[0], b[0]));
            store(5, _mm256_permute2f128_ps::<0x31>(a[1], b[1]));
            store(6, _mm256_permute2f128_ps::<0x31>(a[2], b[2]));
            store(7, _mm256_permute2f128_ps::<0x31>(a[3], b[3]));
        }
    }
}

/// Transposes each of the 128-bit lanes of four vectors: lane l of result c holds column 4l + c.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn transpose_lanes([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
    // SAFETY: the caller's.
    unsafe {
        let ab_low = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
        let ab_high = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
        let cd_low = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
        let cd_high = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
        [
            _mm256_castpd_ps(_mm256_unpacklo_pd(ab_low, cd_low)),
            _mm256_castpd_ps(_mm256_unpackhi_pd(ab_low, cd_low)),
            _mm256_castpd_ps(_mm256_unpacklo_pd(ab_high, cd_high)),
            _mm256_castpd_ps(_mm256_unpackhi_pd(ab_high, cd_high)),
        ]
    }
}
