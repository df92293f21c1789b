//! The floating-point environment that the contract needs: round to nearest, subnormals kept.
//!
//! A host may have changed it for its threads (`torch.set_flush_denormal`, a game's audio thread).
//! The engine sets it right on every thread that computes, and puts the host's back.

/// Runs `work` with rounding to nearest even, no flushing of subnormals and no trapping on the
/// current thread; then restores what the thread had, on unwinding too.
///
/// Costs a read of the control register where nothing needs changing.
#[inline(always)]
pub fn with_default_float_env<Out>(work: impl FnOnce() -> Out) -> Out {
    let _restored = Guard::new();
    work()
}

/// The thread's control register as it was, if it had to be changed.
struct Guard {
    replaced: Option<control::Word>,
}

impl Guard {
    #[inline(always)]
    fn new() -> Self {
        let found = control::read();
        let replaced = (control::settings(found) != control::DEFAULT).then_some(found);
        if replaced.is_some() {
            control::write(control::DEFAULT);
        }
        Guard { replaced }
    }
}

impl Drop for Guard {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(found) = self.replaced {
            control::write(found);
        }
    }
}

/// MXCSR.
#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    pub(super) type Word = u32;

    /// Every exception masked, nearest even, neither flush-to-zero nor denormals-are-zero.
    pub(super) const DEFAULT: Word = 0x1F80;

    /// The word without the flags of past exceptions.
    #[inline(always)]
    pub(super) fn settings(word: Word) -> Word {
        word & !0x3F
    }

    #[inline(always)]
    pub(super) fn read() -> Word {
        let mut word: Word = 0;
        // SAFETY: stores the register to a live variable; SSE is part of x86-64.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    #[inline(always)]
    pub(super) fn write(word: Word) {
        // SAFETY: the word is the default or one that was read, so no reserved bit is set. Memory
        // is clobbered, so that no load or store that a computation depends on crosses the change.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }
}

/// FPCR.
#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    pub(super) type Word = u64;

    /// Nearest even, no flush-to-zero of any kind, no traps.
    pub(super) const DEFAULT: Word = 0;

    /// The register holds settings only; the flags of past exceptions are in FPSR.
    #[inline(always)]
    pub(super) fn settings(word: Word) -> Word {
        word
    }

    #[inline(always)]
    pub(super) fn read() -> Word {
        let word: Word;
        // SAFETY: reads a register that user programs may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    #[inline(always)]
    pub(super) fn write(word: Word) {
        // SAFETY: the word is the default or one that was read. Memory is clobbered, so that no
        // load or store that a computation depends on crosses the change.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

/// Targets whose environment Rust programs do not change.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub(super) type Word = ();
    pub(super) const DEFAULT: Word = ();

    pub(super) fn settings(_: Word) -> Word {}

    pub(super) fn read() -> Word {}

    pub(super) fn write(_: Word) {}
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{control, with_default_float_env};
    use crate::cpu::Simd;
    use crate::cpu::small_m::MOST_ROWS;
    use crate::{BiasGradient, CpuEngine, Dtype, Gemm, Operands, Shape, WeightLayout, reference};

    /// Flush-to-zero, denormals-are-zero and rounding upwards, every exception masked.
    const HOSTILE: u32 = 0x1F80 | 0x8000 | 0x0040 | 0x4000;

    /// Runs `work` in a hostile environment and checks that `work` left it as it was.
    fn in_hostile_env<Out>(work: impl FnOnce() -> Out) -> Out {
        let before = control::read();
        control::write(HOSTILE);
        let out = work();
        let after = control::read();
        control::write(before);
        assert_eq!(
            control::settings(after),
            HOSTILE,
            "the host's state is restored"
        );
        out
    }

    #[test]
    fn changes_the_environment_inside_only() {
        let tiny = std::hint::black_box(f32::MIN_POSITIVE);
        let halve = || std::hint::black_box(tiny * std::hint::black_box(0.5)).to_bits();
        let (outside, inside) = in_hostile_env(|| (halve(), with_default_float_env(halve)));
        assert_eq!(outside, 0, "the hostile state flushes");
        assert_eq!(inside, 0x0040_0000);
    }

    #[test]
    fn restores_the_environment_on_unwinding() {
        let caught = in_hostile_env(|| {
            std::panic::catch_unwind(|| {
                with_default_float_env(|| std::panic::resume_unwind(Box::new(7)))
            })
        });
        assert!(caught.is_err());
    }

    /// Products and sums of subnormals, and inexact sums, on the calling thread and on the pool's.
    #[test]
    fn the_engine_keeps_its_bits_in_a_hostile_environment() {
        let many = MOST_ROWS + 6;
        for (m, k, n) in [(1, 70, 40), (3, 70, 40), (many, 300, 96), (many, 1, 70)] {
            let shape = Shape { m, k, n };
            let x: Vec<f32> = (0..m * k).map(|i| 1.0e-20 + i as f32 * 3.3e-22).collect();
            let w: Vec<f32> = (0..k * n).map(|i| 1.1e-19 + i as f32 * 7.7e-23).collect();
            let forward = Gemm::forward(shape, Dtype::F32, WeightLayout::OutIn);
            let mut expected = vec![0.0f32; m * n];
            reference::gemm(&forward, Operands::new(&x, &w, &mut expected)).expect("valid");
            let rows = BiasGradient::new(m, k, Dtype::F32);
            let subnormal: Vec<f32> = x.iter().map(|x| x * 1e-20).collect();
            let mut expected_sums = vec![0.0f32; k];
            reference::bias_gradient(&rows, &subnormal, &mut expected_sums).expect("valid");

            for simd in Simd::available() {
                for threads in [1, 2] {
                    let engine = CpuEngine::new().expect("no SIMD level is forced");
                    let engine = engine.with_simd(simd).expect("it is available");
                    let engine = engine.with_threads(threads).expect("threads start");
                    let mut got = vec![0.0f32; m * n];
                    let mut sums = vec![0.0f32; k];
                    in_hostile_env(|| {
                        let operands = Operands::new(&x, &w, &mut got);
                        engine.gemm(&forward, operands).expect("valid");
                        let db = engine.bias_gradient(&rows, &subnormal, &mut sums);
                        db.expect("valid");
                    });
                    for (got, expected) in [(&got, &expected), (&sums, &expected_sums)] {
                        let differs =
                            (0..got.len()).find(|&i| got[i].to_bits() != expected[i].to_bits());
                        if let Some(i) = differs {
                            let (got, expected) = (got[i].to_bits(), expected[i].to_bits());
                            panic!(
                                "{shape:?} {simd} {threads} threads, element {i}: \
                                 got {got:08x}, expected {expected:08x}"
                            );
                        }
                    }
                }
            }
        }
    }
}
