//! Hostile input: a call is refused with an error that says what is wrong, or computed; it never
//! panics, and after an error the output is untouched.

mod operands;
mod sizes;

use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{BatchDim, Dtype, Gemm, Operands, Shape};
use sgemm_bi_tests::engine::Cpu;
use sgemm_bi_tests::{Engine, Reference};

pub(crate) const MAX: usize = usize::MAX;
pub(crate) const CANARY: f32 = 123.5;

/// The reference, and the CPU engine alone and on two threads.
pub(crate) fn everywhere(mut check: impl FnMut(&dyn Engine)) {
    check(&Reference);
    for simd in Simd::available() {
        check(&Cpu::new(simd, 1));
        check(&Cpu::new(simd, 2));
    }
}

pub(crate) fn matmul(m: usize, k: usize, n: usize) -> Gemm {
    Gemm::matmul(Shape { m, k, n }, Dtype::F32)
}

/// The refusal of an f32 product of 12 zeros by 12 zeros into 12 canaries, which stay.
#[track_caller]
pub(crate) fn refusal(gemm: &Gemm) -> String {
    refusal_with(gemm, |_| {})
}

#[track_caller]
pub(crate) fn refusal_with(gemm: &Gemm, change: impl Fn(&mut Operands<'_>)) -> String {
    let mut messages = Vec::new();
    everywhere(|engine| {
        let (lhs, rhs, mut out) = ([0.0f32; 12], [0.0f32; 12], [CANARY; 12]);
        let mut operands = Operands::new(&lhs, &rhs, &mut out);
        change(&mut operands);
        let error = match engine.gemm(gemm, operands) {
            Err(error) => error,
            Ok(()) => panic!("{} accepted {gemm:?}", engine.name()),
        };
        assert_eq!(out, [CANARY; 12], "{} wrote before {error}", engine.name());
        messages.push(error.to_string());
    });
    assert!(
        messages.iter().all(|message| *message == messages[0]),
        "{messages:?}"
    );
    messages.swap_remove(0)
}

/// The product is accepted, and its output of zeros written.
#[track_caller]
pub(crate) fn accepted(gemm: &Gemm, written: usize) {
    everywhere(|engine| {
        let (lhs, rhs, mut out) = ([0.0f32; 12], [0.0f32; 12], [CANARY; 12]);
        if let Err(error) = engine.gemm(gemm, Operands::new(&lhs, &rhs, &mut out)) {
            panic!("{}: {error}", engine.name());
        }
        let zeros = out.iter().filter(|value| value.to_bits() == 0).count();
        assert_eq!(zeros, written, "{}: {out:?}", engine.name());
    });
}

pub(crate) fn batch(len: usize, strides: [usize; 3]) -> BatchDim {
    let [lhs_stride, rhs_stride, out_stride] = strides;
    BatchDim {
        len,
        lhs_stride,
        rhs_stride,
        out_stride,
    }
}
