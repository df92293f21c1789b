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
        columns: usize,
        to: Strided<*mut f32>,
    ) {
        // SAFETY: `Avx512` proves the features; the caller, that rows i < rows hold `columns`
        // elements and that each column's 16 values can be written.
        unsafe {
            let mut v = [self.zero(); LANES];
            for (i, v) in v.iter_mut().enumerate() {
                if i < rows {
                    *v = self.load_first(from.start.add(i * from.stride), columns);
                }
            }
            for (j, column) in transpose_16(v).into_iter().enumerate().take(columns) {
                self.store(to.start.add(j * to.stride), column);
            }
        }
    }
}

const NEAREST_EVEN: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Transposes 16 vectors of 16 values.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn transpose_16(r: [__m512; 16]) -> [__m512; 16] {
    // SAFETY: the caller's.
    unsafe {
        let z = _mm512_setzero_ps();
        // Inside 128-bit lanes: s[4g + c] holds in lane l column 4l + c of rows 4g..4g + 4.
        let mut s = [z; 16];
        for g in 0..4 {
            let [a, b, c, d] = [r[4 * g], r[4 * g + 1], r[4 * g + 2], r[4 * g + 3]];
            let ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
            let ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
            let cd_low = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
            let cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
            s[4 * g] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low));
            s[4 * g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low));
            s[4 * g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high));
            s[4 * g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high));
        }
        // Across lanes: column 4l + c gathers lane l of s[c], s[4 + c], s[8 + c], s[12 + c].
        let mut t = [z; 16];
        for c in 0..4 {
            let [a, b, d, e] = [s[c], s[4 + c], s[8 + c], s[12 + c]];
            let ab_even = _mm512_shuffle_f32x4::<0x88>(a, b);
            let ab_odd = _mm512_shuffle_f32x4::<0xDD>(a, b);
            let de_even = _mm512_shuffle_f32x4::<0x88>(d, e);
            let de_odd = _mm512_shuffle_f32x4::<0xDD>(d, e);
            t[c] = _mm512_shuffle_f32x4::<0x88>(ab_even, de_even);
            t[4 + c] = _mm512_shuffle_f32x4::<0x88>(ab_odd, de_odd);
            t[8 + c] = _mm512_shuffle_f32x4::<0xDD>(ab_even, de_even);
            t[12 + c] = _mm512_shuffle_f32x4::<0xDD>(ab_odd, de_odd);
        }
        t
    }
}
