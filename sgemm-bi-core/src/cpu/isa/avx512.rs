//! AVX-512 (F, BW, DQ, VL).

use std::arch::x86_64::*;

use super::{Isa, Strided};
use crate::contract::{CANONICAL_NAN_16, CANONICAL_NAN_F32};
use crate::{Dtype, Element};

/// Proof that the processor has AVX-512 F, BW, DQ and VL, and AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ and VL, and AVX2, FMA and F16C.
    pub(in crate::cpu) unsafe fn new() -> Self {
        Avx512(())
    }
}

const LANES: usize = 16;

/// The mask of the first `count ≤ 16` lanes.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    debug_assert!(count <= LANES);
    ((1u32 << count) - 1) as __mmask16
}

/// Widens 16 values of bf16.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn widen_bf16(halves: __m256i) -> __m512 {
    // SAFETY: the caller's.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))) }
}

impl Isa for Avx512 {
    type Vector = __m512;

    const LANES: usize = LANES;
    const TILE_ROWS: usize = 14;
    const TILE_VECTORS: usize = 2;

    #[inline(always)]
    fn vectorize<Out>(self, work: impl FnOnce() -> Out) -> Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn with_features<Out>(work: impl FnOnce() -> Out) -> Out {
            work()
        }
        // SAFETY: `Avx512` proves the features.
        unsafe { with_features(work) }
    }

    #[inline(always)]
    fn zero(self) -> __m512 {
        // SAFETY: `Avx512` proves the features.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: `Avx512` proves the features.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `Avx512` proves the features.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `Avx512` proves the features.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn load<T: Element>(self, from: *const T) -> __m512 {
        // SAFETY: `Avx512` proves the features; the caller, that 16 elements can be read.
        unsafe {
            match T::DTYPE {
                Dtype::F32 => _mm512_loadu_ps(from.cast()),
                Dtype::BF16 => widen_bf16(_mm256_loadu_si256(from.cast())),
                Dtype::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())),
            }
        }
    }

    #[inline(always)]
    unsafe fn load_first<T: Element>(self, from: *const T, count: usize) -> __m512 {
        let mask = first(count);
        // SAFETY: `Avx512` proves the features; masked lanes are not read, the caller answers for
        // the others.
        unsafe {
            match T::DTYPE {
                Dtype::F32 => _mm512_maskz_loadu_ps(mask, from.cast()),
                Dtype::BF16 => widen_bf16(_mm256_maskz_loadu_epi16(mask, from.cast())),
                Dtype::F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from.cast())),
            }
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: __m512) {
        // SAFETY: `Avx512` proves the features; the caller, that 16 values can be written.
        unsafe { _mm512_storeu_ps(to, vector) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, vector: __m512) {
        // SAFETY: `Avx512` proves the features; the caller, that the aligned vector can be written,
        // and that a fence follows.
        unsafe { _mm512_stream_ps(to, vector) }
    }

    #[inline(always)]
    fn fence(self) {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn round_first<T: Element>(self, to: *mut T, vector: __m512, count: usize) {
        let mask = first(count);
        // SAFETY: `Avx512` proves the features; masked lanes are not written, the caller answers
        // for the others.
        unsafe {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(vector, vector);
            let canonical_16 = _mm256_set1_epi16(CANONICAL_NAN_16 as i16);
            match T::DTYPE {
                Dtype::F32 => {
                    let canonical = _mm512_set1_ps(f32::from_bits(CANONICAL_NAN_F32));
                    let rounded = _mm512_mask_mov_ps(vector, nan, canonical);
                    _mm512_mask_storeu_ps(to.cast(), mask, rounded);
                }
                Dtype::BF16 => {
                    // Nearest even on the upper half, as in `Element::round`.
                    let bits = _mm512_castps_si512(vector);
                    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                    let bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
                    let sum = _mm512_add_epi32(bits, bias);
                    let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(sum));
                    let rounded = _mm256_mask_mov_epi16(halves, nan, canonical_16);
                    _mm256_mask_storeu_epi16(to.cast(), mask, rounded);
                }
                Dtype::F16 => {
                    let halves = _mm512_cvtps_ph::<NEAREST_EVEN>(vector);
                    let rounded = _mm256_mask_mov_epi16(halves, nan, canonical_16);
                    _mm256_mask_storeu_epi16(to.cast(), mask, rounded);
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
        // SAFETY: `Avx512` proves the features; the caller, that rows i < rows hold 16 elements and
        // that each column's 16 values can be written.
        unsafe {
            // Written out: loops over the vectors would keep them in memory.
            let row = |i: usize| match i < rows {
                true => self.load(from.start.add(i * from.stride)),
                false => self.zero(),
            };
            let a = transpose_lanes([row(0), row(1), row(2), row(3)]);
            let b = transpose_lanes([row(4), row(5), row(6), row(7)]);
            let c = transpose_lanes([row(8), row(9), row(10), row(11)]);
            let d = transpose_lanes([row(12), row(13), row(14), row(15)]);
            let store = |j: usize, [w, x, y, z]: [__m512; 4]| {
                self.store(to.start.add(j * to.stride), w);
                self.store(to.start.add((j + 1) * to.stride), x);
                self.store(to.start.add((j + 2) * to.stride), y);
                self.store(to.start.add((j + 3) * to.stride), z);
            };
            let p = transpose_of_lanes([a[0], b[0], c[0], d[0]]);
            let q = transpose_of_lanes([a[1], b[1], c[1], d[1]]);
            let r = transpose_of_lanes([a[2], b[2], c[2], d[2]]);
            let s = transpose_of_lanes([a[3], b[3], c[3], d[3]]);
            store(0, [p[0], q[0], r[0], s[0]]);
            store(4, [p[1], q[1], r[1], s[1]]);
            store(8, [p[2], q[2], r[2], s[2]]);
            store(12, [p[3], q[3], r[3], s[3]]);
        }
    }
}

const NEAREST_EVEN: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Transposes each of the 128-bit lanes of four vectors: lane l of result c holds column 4l + c.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn transpose_lanes([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    // SAFETY: the caller's.
    unsafe {
        let ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
        let ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
        let cd_low = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
        let cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
        [
            _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low)),
            _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high)),
        ]
    }
}

/// Transposes four vectors as a matrix of 128-bit lanes.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn transpose_of_lanes([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    // SAFETY: the caller's.
    unsafe {
        let ab_even = _mm512_shuffle_f32x4::<0x88>(a, b);
        let ab_odd = _mm512_shuffle_f32x4::<0xDD>(a, b);
        let cd_even = _mm512_shuffle_f32x4::<0x88>(c, d);
        let cd_odd = _mm512_shuffle_f32x4::<0xDD>(c, d);
        [
            _mm512_shuffle_f32x4::<0x88>(ab_even, cd_even),
            _mm512_shuffle_f32x4::<0x88>(ab_odd, cd_odd),
            _mm512_shuffle_f32x4::<0xDD>(ab_even, cd_even),
            _mm512_shuffle_f32x4::<0xDD>(ab_odd, cd_odd),
        ]
    }
}
