//! SIMD levels: names, detection and choice.

use crate::error::{Error, Result};

/// A SIMD level of the CPU engine. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Simd {
    /// No instruction beyond the target's baseline; exact without FMA hardware.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Simd {
    /// The best level that this processor has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 =
                has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            if avx2 && avx512 {
                return Simd::Avx512;
            }
            if avx2 {
                return Simd::Avx2;
            }
        }
        Simd::Portable
    }

    /// Every level that this processor has, slowest first.
    pub fn available() -> impl Iterator<Item = Simd> {
        let best = Simd::detect();
        [Simd::Portable, Simd::Avx2, Simd::Avx512]
            .into_iter()
            .filter(move |&simd| simd <= best)
    }

    /// The level that `SGEMM_BI_SIMD` names, or the best one.
    pub(crate) fn from_environment() -> Result<Self> {
        let source_name = "SGEMM_BI_SIMD";
        match std::env::var_os(source_name) {
            None => Ok(Simd::detect()),
            Some(value) => {
                let value = value.to_string_lossy();
                let named = [Simd::Portable, Simd::Avx2, Simd::Avx512]
                    .into_iter()
                    .find(|simd| simd.name() == value);
                let unknown = || Error::UnknownSimd {
                    source_name,
                    got: value.into_owned(),
                };
                named.ok_or_else(unknown)?.require()
            }
        }
    }

    /// This level, if the processor has it.
    pub(crate) fn require(self) -> Result<Self> {
        let available = Simd::detect();
        if self <= available {
            Ok(self)
        } else {
            Err(Error::SimdUnavailable {
                requested: self,
                available,
            })
        }
    }

    /// The level's name, as in `SGEMM_BI_SIMD`.
    pub const fn name(self) -> &'static str {
        match self {
            Simd::Portable => "portable",
            Simd::Avx2 => "avx2",
            Simd::Avx512 => "avx512",
        }
    }
}

impl std::fmt::Display for Simd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
