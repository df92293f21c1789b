//! What the replay needs of a SIMD level beyond [`Isa`]: terms as integers, and their exponents.

#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::{Avx2, Avx512};
use crate::cpu::isa::{Isa, Portable};

/// Vectors of [`LANES`](Isa::LANES) 32-bit integers, and of twice as many exponents of 16 bits.
///
/// As of [`Isa`]: every method is inlined, into [`vectorize`](Isa::vectorize).
pub(super) trait Terms: Isa {
    type Int: Copy;
    /// Exponents of 2 · LANES columns.
    type Exponents: Copy;
    /// A truth value for each lane.
    type Mask: Copy;

    fn int(self, value: i32) -> Self::Int;
    fn int_add(self, a: Self::Int, b: Self::Int) -> Self::Int;
    fn int_sub(self, a: Self::Int, b: Self::Int) -> Self::Int;
    fn int_max(self, a: Self::Int, b: Self::Int) -> Self::Int;
    fn int_abs(self, a: Self::Int) -> Self::Int;
    /// 2^e for each e in −126 … 127.
    fn power(self, e: Self::Int) -> Self::Vector;
    /// The exponent field less its bias; the sign does not matter.
    fn exponent(self, a: Self::Vector) -> Self::Int;
    /// Rounded toward zero; below 2^31 in magnitude.
    fn truncate(self, a: Self::Vector) -> Self::Int;
    /// Rounded toward zero, for magnitudes below 2^31 − 2^25.
    fn toward_zero(self, a: Self::Int) -> Self::Vector;
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn greater(self, a: Self::Int, b: Self::Int) -> Self::Mask;
    /// `a` where the mask holds, elsewhere `b`.
    fn select(self, mask: Self::Mask, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// A bit for each lane.
    fn lanes(self, mask: Self::Mask) -> u32;

    /// # Safety
    /// `from` is valid for reading 2 · LANES exponents.
    unsafe fn load_exponents(self, from: *const i16) -> Self::Exponents;
    /// The exponent that both halves of a pair hold.
    fn exponents(self, pair: i32) -> Self::Exponents;
    fn exponents_add(self, a: Self::Exponents, b: Self::Exponents) -> Self::Exponents;
    fn exponents_max(self, a: Self::Exponents, b: Self::Exponents) -> Self::Exponents;
    /// The first LANES and the others.
    fn halves(self, a: Self::Exponents) -> [Self::Int; 2];
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Avx2, Avx512, Terms};

    const TRUNCATE: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

    impl Terms for Avx512 {
        type Int = __m512i;
        type Exponents = __m512i;
        type Mask = __mmask16;

        #[inline(always)]
        fn int(self, value: i32) -> __m512i {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_set1_epi32(value) }
        }
        #[inline(always)]
        fn int_add(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_add_epi32(a, b) }
        }
        #[inline(always)]
        fn int_sub(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_sub_epi32(a, b) }
        }
        #[inline(always)]
        fn int_max(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_max_epi32(a, b) }
        }
        #[inline(always)]
        fn int_abs(self, a: __m512i) -> __m512i {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_abs_epi32(a) }
        }
        #[inline(always)]
        fn power(self, e: __m512i) -> __m512 {
            // SAFETY: `Avx512` proves the features.
            unsafe {
                let field = _mm512_add_epi32(e, _mm512_set1_epi32(127));
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(field))
            }
        }
        #[inline(always)]
        fn exponent(self, a: __m512) -> __m512i {
            // SAFETY: `Avx512` proves the features.
            unsafe {
                let twice = _mm512_slli_epi32::<1>(_mm512_castps_si512(a));
                let field = _mm512_srli_epi32::<24>(twice);
                _mm512_sub_epi32(field, _mm512_set1_epi32(127))
            }
        }
        #[inline(always)]
        fn truncate(self, a: __m512) -> __m512i {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_cvttps_epi32(a) }
        }
        #[inline(always)]
        fn toward_zero(self, a: __m512i) -> __m512 {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_cvt_roundepi32_ps::<TRUNCATE>(a) }
        }
        #[inline(always)]
        fn multiply(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        fn greater(self, a: __m512i, b: __m512i) -> __mmask16 {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_cmpgt_epi32_mask(a, b) }
        }
        #[inline(always)]
        fn select(self, mask: __mmask16, a: __m512, b: __m512) -> __m512 {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_mask_mov_ps(b, mask, a) }
        }
        #[inline(always)]
        fn lanes(self, mask: __mmask16) -> u32 {
            u32::from(mask)
        }
        #[inline(always)]
        unsafe fn load_exponents(self, from: *const i16) -> __m512i {
            // SAFETY: `Avx512` proves the features; the caller answers for the memory.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }
        #[inline(always)]
        fn exponents(self, pair: i32) -> __m512i {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_set1_epi32(pair) }
        }
        #[inline(always)]
        fn exponents_add(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_add_epi16(a, b) }
        }
        #[inline(always)]
        fn exponents_max(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: `Avx512` proves the features.
            unsafe { _mm512_max_epi16(a, b) }
        }
        #[inline(always)]
        fn halves(self, a: __m512i) -> [__m512i; 2] {
            // SAFETY: `Avx512` proves the features.
            unsafe {
                [
                    _mm512_cvtepi16_epi32(_mm512_castsi512_si256(a)),
                    _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64::<1>(a)),
                ]
            }
        }
    }

    impl Terms for Avx2 {
        type Int = __m256i;
        type Exponents = __m256i;
        type Mask = __m256i;

        #[inline(always)]
        fn int(self, value: i32) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_set1_epi32(value) }
        }
        #[inline(always)]
        fn int_add(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_add_epi32(a, b) }
        }
        #[inline(always)]
        fn int_sub(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_sub_epi32(a, b) }
        }
        #[inline(always)]
        fn int_max(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_max_epi32(a, b) }
        }
        #[inline(always)]
        fn int_abs(self, a: __m256i) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_abs_epi32(a) }
        }
        #[inline(always)]
        fn power(self, e: __m256i) -> __m256 {
            // SAFETY: `Avx2` proves the features.
            unsafe {
                let field = _mm256_add_epi32(e, _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(field))
            }
        }
        #[inline(always)]
        fn exponent(self, a: __m256) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe {
                let twice = _mm256_slli_epi32::<1>(_mm256_castps_si256(a));
                let field = _mm256_srli_epi32::<24>(twice);
                _mm256_sub_epi32(field, _mm256_set1_epi32(127))
            }
        }
        #[inline(always)]
        fn truncate(self, a: __m256) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_cvttps_epi32(a) }
        }
        #[inline(always)]
        fn toward_zero(self, a: __m256i) -> __m256 {
            // SAFETY: `Avx2` proves the features.
            unsafe {
                // Rounded to nearest, and one step back where that went away from zero.
                let near = _mm256_cvtepi32_ps(a);
                let back = _mm256_abs_epi32(_mm256_cvttps_epi32(near));
                let over = _mm256_cmpgt_epi32(back, _mm256_abs_epi32(a));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(near), over))
            }
        }
        #[inline(always)]
        fn multiply(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        fn greater(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_cmpgt_epi32(a, b) }
        }
        #[inline(always)]
        fn select(self, mask: __m256i, a: __m256, b: __m256) -> __m256 {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_blendv_ps(b, a, _mm256_castsi256_ps(mask)) }
        }
        #[inline(always)]
        fn lanes(self, mask: __m256i) -> u32 {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(mask)) as u32 }
        }
        #[inline(always)]
        unsafe fn load_exponents(self, from: *const i16) -> __m256i {
            // SAFETY: `Avx2` proves the features; the caller answers for the memory.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }
        #[inline(always)]
        fn exponents(self, pair: i32) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_set1_epi32(pair) }
        }
        #[inline(always)]
        fn exponents_add(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_add_epi16(a, b) }
        }
        #[inline(always)]
        fn exponents_max(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: `Avx2` proves the features.
            unsafe { _mm256_max_epi16(a, b) }
        }
        #[inline(always)]
        fn halves(self, a: __m256i) -> [__m256i; 2] {
            // SAFETY: `Avx2` proves the features.
            unsafe {
                [
                    _mm256_cvtepi16_epi32(_mm256_castsi256_si128(a)),
                    _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(a)),
                ]
            }
        }
    }
}

const LANES: usize = <Portable as Isa>::LANES;

/// One operation for every lane.
#[inline(always)]
fn each<T>(of: impl FnMut(usize) -> T) -> [T; LANES] {
    std::array::from_fn(of)
}

impl Terms for Portable {
    type Int = [i32; LANES];
    type Exponents = [i16; 2 * LANES];
    type Mask = [bool; LANES];

    #[inline(always)]
    fn int(self, value: i32) -> Self::Int {
        [value; LANES]
    }
    #[inline(always)]
    fn int_add(self, a: Self::Int, b: Self::Int) -> Self::Int {
        each(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn int_sub(self, a: Self::Int, b: Self::Int) -> Self::Int {
        each(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    fn int_max(self, a: Self::Int, b: Self::Int) -> Self::Int {
        each(|i| a[i].max(b[i]))
    }
    #[inline(always)]
    fn int_abs(self, a: Self::Int) -> Self::Int {
        each(|i| a[i].wrapping_abs())
    }
    #[inline(always)]
    fn power(self, e: Self::Int) -> Self::Vector {
        Portable::of(each(|i| {
            f32::from_bits((e[i].wrapping_add(127) as u32) << 23)
        }))
    }
    #[inline(always)]
    fn exponent(self, a: Self::Vector) -> Self::Int {
        let a = Portable::array(a);
        each(|i| (a[i].to_bits() << 1 >> 24) as i32 - 127)
    }
    #[inline(always)]
    fn truncate(self, a: Self::Vector) -> Self::Int {
        let a = Portable::array(a);
        each(|i| a[i] as i32)
    }
    #[inline(always)]
    fn toward_zero(self, a: Self::Int) -> Self::Vector {
        Portable::of(each(|i| {
            let near = a[i] as f32;
            let over = (near as i32).wrapping_abs() > a[i].wrapping_abs();
            f32::from_bits(near.to_bits() - u32::from(over))
        }))
    }
    #[inline(always)]
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        let (a, b) = (Portable::array(a), Portable::array(b));
        Portable::of(each(|i| a[i] * b[i]))
    }
    #[inline(always)]
    fn greater(self, a: Self::Int, b: Self::Int) -> Self::Mask {
        each(|i| a[i] > b[i])
    }
    #[inline(always)]
    fn select(self, mask: Self::Mask, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        let (a, b) = (Portable::array(a), Portable::array(b));
        Portable::of(each(|i| if mask[i] { a[i] } else { b[i] }))
    }
    #[inline(always)]
    fn lanes(self, mask: Self::Mask) -> u32 {
        (0..LANES).fold(0, |bits, i| bits | u32::from(mask[i]) << i)
    }
    #[inline(always)]
    unsafe fn load_exponents(self, from: *const i16) -> Self::Exponents {
        // SAFETY: the caller's.
        unsafe { from.cast::<Self::Exponents>().read_unaligned() }
    }
    #[inline(always)]
    fn exponents(self, pair: i32) -> Self::Exponents {
        [pair as i16; 2 * LANES]
    }
    #[inline(always)]
    fn exponents_add(self, a: Self::Exponents, b: Self::Exponents) -> Self::Exponents {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn exponents_max(self, a: Self::Exponents, b: Self::Exponents) -> Self::Exponents {
        std::array::from_fn(|i| a[i].max(b[i]))
    }
    #[inline(always)]
    fn halves(self, a: Self::Exponents) -> [Self::Int; 2] {
        [0, LANES].map(|first| each(|i| i32::from(a[first + i])))
    }
}
