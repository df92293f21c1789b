//! The loops over one row, compiled once for each SIMD level: all give the same bits, because
//! nothing in them may be fused or reordered.

use crate::cpu::Simd;
use crate::math::exp64;

/// Lanes of the maximum: two vectors of the widest level, to hide its latency.
const MAX_LANES: usize = 32;

/// Chains that are summed side by side: enough to hide the latency of an addition.
pub(super) const CHAINS: usize = 8;

/// Defines functions whose bodies are compiled for each SIMD level; the level is the first argument.
macro_rules! at_each_level {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$attribute])*
        pub(super) fn $name(simd: Simd, $($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn portable($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($argument: $type),*) $(-> $result)? {
                portable($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($argument: $type),*) $(-> $result)? {
                portable($($argument),*)
            }

            match simd {
                // SAFETY: an engine holds a level only after detection found its features.
                #[cfg(target_arch = "x86_64")]
                Simd::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 => unsafe { avx2($($argument),*) },
                _ => portable($($argument),*),
            }
        }
    )*};
}

at_each_level! {
    /// The maximum of a row; NaN when there is one, −∞ when there is nothing.
    ///
    /// Its order is free: a maximum is exact, and which of two zeros wins reaches no output
    /// (contract section 9.2).
    fn maximum(x: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; MAX_LANES];
        let (groups, rest) = x.as_chunks::<MAX_LANES>();
        for group in groups {
            for (lane, &x) in lanes.iter_mut().zip(group) {
                *lane = greater(*lane, x);
            }
        }
        lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &x| greater(m, x))
    }

    /// e_j = f32(exp64(x_j − m)).
    fn exponentials(x: &[f32], max: f64, e: &mut [f32]) {
        for (e, &x) in e.iter_mut().zip(x) {
            *e = exp64(f64::from(x) - max) as f32;
        }
    }

    /// y_j = f32(x_j − m − ln s).
    fn log_probabilities(x: &[f32], max: f64, ln_sum: f64, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = (f64::from(x) - max - ln_sum) as f32;
        }
    }

    /// dx_j = dy_j − p_j·S with p_j = f32(exp64(y_j)); dy is overwritten.
    fn log_softmax_gradient(y: &[f32], sum: f32, dy: &mut [f32]) {
        for (dy, &y) in dy.iter_mut().zip(y) {
            let product = exp64(f64::from(y)) as f32 * sum;
            *dy -= product;
        }
    }

    /// (e_j / s)·scale, the gradient of every class but the target; e is overwritten.
    fn scaled_probabilities(e: &mut [f32], sum: f32, scale: f32) {
        for e in e {
            *e = *e / sum * scale;
        }
    }

    /// The chains of as many slices, all as long as the first: acc = acc + v, from +0.0.
    fn chains(slices: [&[f32]; CHAINS]) -> [f32; CHAINS] {
        let len = slices[0].len();
        let slices = slices.map(|slice| &slice[..len]);
        let mut sums = [0.0; CHAINS];
        for i in 0..len {
            for (sum, slice) in sums.iter_mut().zip(slices) {
                *sum += slice[i];
            }
        }
        sums
    }
}

#[inline(always)]
fn greater(max: f32, x: f32) -> f32 {
    if x > max || x.is_nan() { x } else { max }
}
