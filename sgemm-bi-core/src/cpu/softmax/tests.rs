//! The engine's log-softmax and cross-entropy against the naive reference, bit for bit.

use half::{bf16, f16};

use crate::cpu::Simd;
use crate::{CpuEngine, Element, Error, Rows, SliceMut, SliceRef, Targets, reference};

/// A fixed sequence of f32: mostly moderate, now and then a value that ends or overflows a row.
fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len)
        .map(|_| {
            let word = next();
            let uniform = (word >> 40) as f32 / (1 << 24) as f32 - 0.5;
            match word % 4_001 {
                0 => -0.0,
                1 => f32::NEG_INFINITY,
                2 => 300.0 * uniform,
                _ => 12.0 * uniform,
            }
        })
        .collect()
}

fn engines() -> Vec<CpuEngine> {
    let mut engines = Vec::new();
    for simd in Simd::available() {
        for threads in [1, 2, 5] {
            let engine = CpuEngine::new().and_then(|e| e.with_simd(simd)?.with_threads(threads));
            engines.push(engine.expect("this processor has the level"));
        }
    }
    engines
}

fn assert_same<T: Element>(what: &str, got: &[T], want: &[T]) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let (got, want) = (got.bits(), want.bits());
        assert_eq!(
            got, want,
            "{what}: element {i}: got {got:#010X}, want {want:#010X}"
        );
    }
    assert_eq!(got.len(), want.len());
}

/// All four functions on one problem, every engine against the reference.
fn check<T: Element>(rows: Rows, x: &[T], dy: &[T])
where
    for<'a> SliceRef<'a>: From<&'a [T]>,
    for<'a> SliceMut<'a>: From<&'a mut [T]>,
{
    let targets: Vec<i64> = (0..rows.rows).map(|i| (i * 7 % rows.cols) as i64).collect();
    let untouched = T::round(-7.0);
    let out = vec![untouched; rows.rows * rows.output_stride];
    let (mut y, mut dx, mut dlogits) = (out.clone(), out.clone(), out.clone());
    // The gradient's inputs share a stride: the dense y has to be of the inputs' kind.
    reference::log_softmax(&rows, x, &mut y[..]).unwrap();
    reference::log_softmax_backward(&rows, x, dy, &mut dx[..]).unwrap();
    let loss = reference::cross_entropy(&rows, x, &targets).unwrap();
    reference::cross_entropy_backward(&rows, x, &targets, 1.5, &mut dlogits[..]).unwrap();
    for engine in engines() {
        let mut got = out.clone();
        engine.log_softmax(&rows, x, &mut got[..]).unwrap();
        assert_same(&format!("log_softmax {rows:?} {engine:?}"), &got, &y);
        got.clone_from(&out);
        engine
            .log_softmax_backward(&rows, x, dy, &mut got[..])
            .unwrap();
        assert_same(&format!("log_softmax backward {rows:?}"), &got, &dx);
        let got_loss = engine.cross_entropy(&rows, x, &targets).unwrap();
        assert_same(&format!("cross_entropy {rows:?}"), &[got_loss], &[loss]);
        got.clone_from(&out);
        engine
            .cross_entropy_backward(&rows, x, &targets, 1.5, &mut got[..])
            .unwrap();
        assert_same(&format!("cross_entropy backward {rows:?}"), &got, &dlogits);
    }
}

#[test]
fn engines_equal_the_reference() {
    for (rows, cols) in [
        (1, 1),
        (3, 1),
        (1, 9_001),
        (5, 10),
        (17, 33),
        (2, 4_096),
        (9, 4_097),
        (11, 12_300),
        (4_100, 7),
    ] {
        let x = values(rows * (cols + 3), 3);
        let dy = values(rows * (cols + 3), 4);
        for problem in [
            Rows::new(rows, cols),
            Rows::new(rows, cols).with_strides(cols + 3, cols + 1),
            Rows::new(rows, cols).with_strides(0, cols),
        ] {
            check::<f32>(problem, &x, &dy);
        }
        let round = |v: &[f32]| v.iter().map(|&v| bf16::round(v)).collect::<Vec<_>>();
        check::<bf16>(Rows::new(rows, cols), &round(&x), &round(&dy));
        let round = |v: &[f32]| v.iter().map(|&v| f16::round(v)).collect::<Vec<_>>();
        check::<f16>(Rows::new(rows, cols), &round(&x), &round(&dy));
    }
}

/// Rows do not see the batch they are in, at any position of a block.
#[test]
fn rows_are_independent_of_the_batch() {
    let (rows, cols) = (37, 5_003);
    let x = values(rows * cols, 11);
    let engine = CpuEngine::new().unwrap();
    let mut all = vec![0f32; rows * cols];
    engine
        .log_softmax(&Rows::new(rows, cols), &x, &mut all)
        .unwrap();
    for i in 0..rows {
        let at = i * cols..(i + 1) * cols;
        let mut alone = vec![0f32; cols];
        engine
            .log_softmax(&Rows::new(1, cols), &x[at.clone()], &mut alone)
            .unwrap();
        assert_same(&format!("row {i}"), &alone, &all[at]);
    }
}

const NAN: u32 = 0x7FFF_FFFF;

#[test]
fn special_rows() {
    let inf = f32::INFINITY;
    let minus_ln_2 = (-std::f32::consts::LN_2).to_bits();
    for (x, want) in [
        ([0.0, 0.0, -inf], [minus_ln_2, minus_ln_2, (-inf).to_bits()]),
        ([-0.0, -inf, -inf], [0, (-inf).to_bits(), (-inf).to_bits()]),
        ([inf, 0.0, 1.0], [NAN; 3]),
        ([-inf; 3], [NAN; 3]),
        ([0.0, -f32::NAN, inf], [NAN; 3]),
        (
            [f32::MAX, -f32::MAX, 0.0],
            [0, (-inf).to_bits(), (-f32::MAX).to_bits()],
        ),
        (
            [f32::MAX, f32::MAX, f32::MAX],
            [(-(3f64.ln())) as f32; 3].map(f32::to_bits),
        ),
    ] {
        let rows = Rows::new(1, 3);
        for engine in engines() {
            let mut y = [0f32; 3];
            engine.log_softmax(&rows, &x, &mut y).unwrap();
            assert_eq!(y.map(f32::to_bits), want, "{x:?} gave {y:?}");
        }
        let mut y = [0f32; 3];
        reference::log_softmax(&rows, &x, &mut y).unwrap();
        assert_eq!(
            y.map(f32::to_bits),
            want,
            "{x:?} gave {y:?} in the reference"
        );
    }
    // A loss of exactly nothing is +0.0, and a NaN row spoils the mean.
    let engine = CpuEngine::new().unwrap();
    let sure = engine
        .cross_entropy(&Rows::new(1, 2), &[0.0, -inf], &[0u8])
        .unwrap();
    assert_eq!(sure.to_bits(), 0);
    let spoilt = engine
        .cross_entropy(&Rows::new(2, 1), &[0.0, inf], &[0u8, 0])
        .unwrap();
    assert_eq!(spoilt.to_bits(), NAN);
    let impossible = engine
        .cross_entropy(&Rows::new(1, 2), &[0.0, -inf], &[1u8])
        .unwrap();
    assert_eq!(impossible, inf);
}

#[test]
fn nothing_to_do() {
    let engine = CpuEngine::new().unwrap();
    let (none, mut out): ([f32; 0], [f32; 0]) = ([], []);
    for rows in [Rows::new(0, 5), Rows::new(3, 0), Rows::new(0, 0)] {
        engine.log_softmax(&rows, &none, &mut out).unwrap();
        engine
            .log_softmax_backward(&rows, &none, &none, &mut out)
            .unwrap();
    }
    let targets: &[u32] = &[];
    let loss = engine
        .cross_entropy(&Rows::new(0, 5), &none, targets)
        .unwrap();
    assert_eq!(loss.to_bits(), NAN);
    let want = reference::cross_entropy(&Rows::new(0, 5), &none, targets).unwrap();
    assert_eq!(want.to_bits(), NAN);
    engine
        .cross_entropy_backward(&Rows::new(0, 5), &none, targets, 1.0, &mut out)
        .unwrap();
}

/// Each refusal, with its message, from the engine and from the reference; nothing is written.
#[test]
fn refusals() {
    let engine = CpuEngine::new().unwrap();
    let x = [0f32; 6];
    let half = [bf16::ZERO; 6];
    let message = |result: Result<(), Error>| result.unwrap_err().to_string();
    let mut y = [5f32; 6];

    let rows = Rows::new(3, 3);
    assert_eq!(
        message(engine.log_softmax(&rows, &x, &mut y)),
        "log_softmax: x is too short: its view addresses 9 elements, the slice has 6"
    );
    let rows = Rows::new(2, 3);
    assert_eq!(
        message(engine.log_softmax(&rows, &x, &mut y[..5])),
        "log_softmax: y is too short: its view addresses 6 elements, the slice has 5"
    );
    assert_eq!(
        message(engine.log_softmax(&rows, &half, &mut y)),
        "log_softmax: y has the wrong dtype: expected bf16, got f32"
    );
    assert_eq!(
        message(engine.log_softmax_backward(&rows, &x, &half, &mut y)),
        "log_softmax backward: dy has the wrong dtype: expected f32, got bf16"
    );
    assert_eq!(
        message(engine.log_softmax(&rows.with_strides(3, 2), &x, &mut y)),
        "log_softmax: out may overlap itself: with sizes [2, 3] and strides [2, 1] a dimension \
         does not step over what those of smaller stride span"
    );
    assert_eq!(
        message(engine.log_softmax(&rows.with_strides(usize::MAX, 3), &x, &mut y)),
        "log_softmax: x: offset 0 with (size, stride) [(2, 18446744073709551615), (3, 1)] \
         overflows the address space"
    );
    let refused: [(Targets<'_>, &str); 4] = [
        (
            (&[0u32, 3]).into(),
            "target 3 of row 1 is out of range: expected 0 to 3 (exclusive)",
        ),
        (
            (&[255u8, 0]).into(),
            "target 255 of row 0 is out of range: expected 0 to 3 (exclusive)",
        ),
        (
            (&[-100i64, 0]).into(),
            "target -100 of row 0 is out of range: expected 0 to 3 (exclusive)",
        ),
        (
            (&[0i64]).into(),
            "targets has the wrong length: expected 2 elements, got 1",
        ),
    ];
    for (targets, why) in refused {
        let loss = engine.cross_entropy(&rows, &x, targets).map(drop);
        assert_eq!(message(loss), format!("cross_entropy: {why}"));
        let loss = reference::cross_entropy(&rows, &x, targets).map(drop);
        assert_eq!(message(loss), format!("cross_entropy: {why}"));
        assert_eq!(
            message(engine.cross_entropy_backward(&rows, &x, targets, 1.0, &mut y)),
            format!("cross_entropy backward: {why}")
        );
    }
    let no_class = engine
        .cross_entropy(&Rows::new(1, 0), &[0f32; 0], &[0u8])
        .map(drop);
    assert_eq!(
        message(no_class),
        "cross_entropy: target 0 of row 0 is out of range: expected 0 to 0 (exclusive)"
    );
    assert_eq!(y, [5f32; 6]);
}

/// The bits that a second implementation, written from contract section 9 alone, gave.
#[test]
fn bits_of_a_second_implementation() {
    /// (k / 2^24 − ½)·scale, with k the upper bits of a linear congruential generator.
    fn sequence(seed: u64, len: usize, scale: f32) -> Vec<f32> {
        let step = |state: &mut u64, _| {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            Some(((*state >> 40) as f32 / (1 << 24) as f32 - 0.5) * scale)
        };
        (0..len).scan(seed, step).collect()
    }
    /// FNV-1a over the little-endian bytes.
    fn hash(values: &[f32]) -> u64 {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes());
        bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
        })
    }
    let (n, c) = (3, 5_000);
    let rows = Rows::new(n, c);
    let x = sequence(1, n * c, 30.0);
    let dy = sequence(2, n * c, 2.0);
    let targets = [0u32, 7, 14];
    assert_eq!(hash(&x), 0x3822_A2A1_12E8_7E87, "the data");

    let (mut y, mut dx, mut dlogits) = (vec![0f32; n * c], vec![0f32; n * c], vec![0f32; n * c]);
    reference::log_softmax(&rows, &x, &mut y).unwrap();
    reference::log_softmax_backward(&rows, &y, &dy, &mut dx).unwrap();
    let loss = reference::cross_entropy(&rows, &x, &targets).unwrap();
    reference::cross_entropy_backward(&rows, &x, &targets, 1.5, &mut dlogits).unwrap();
    for (what, got, want) in [
        ("log_softmax", hash(&y), 0xC882_F2A1_7C7C_9DCA),
        ("log_softmax backward", hash(&dx), 0x6923_10D1_FD18_8E0E),
        ("cross_entropy", u64::from(loss.to_bits()), 0x4161_F7EB),
        (
            "cross_entropy backward",
            hash(&dlogits),
            0x9A92_A8ED_775C_1BFF,
        ),
    ] {
        assert_eq!(got, want, "{what}: got {got:#018X}, want {want:#018X}");
    }
}

/// A caller that flushes subnormals or rounds another way gets the same bits.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_callers_floating_point_state_does_not_matter() {
    use std::arch::asm;

    fn with_control<R>(word: u32, work: impl FnOnce() -> R) -> R {
        let mut before = 0u32;
        // SAFETY: reads and writes the control register through live variables; no reserved bit
        // is set, and every exception stays masked.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &raw mut before, options(nostack));
            asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack));
        }
        let result = work();
        // SAFETY: as above, with the word that was read.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const before, options(nostack)) };
        result
    }

    // Three rows: a third is no f32, so that the means round too.
    let x = [
        [-95.0f32, 0.0, -100.0, -90.5],
        [0.3, -0.2, 0.1, 1.7],
        [2.5, 0.1, -90.0, 1.0],
    ];
    let (y, rows) = ([-95.0f32, -1.0, -100.0, -90.5], Rows::new(3, 4));
    let engine = CpuEngine::new().unwrap();
    let run = || {
        let (mut dx, mut dlogits) = ([0f32; 4], [0f32; 12]);
        engine
            .log_softmax_backward(&Rows::new(1, 4), &y, &[0.0, 0.0, 0.0, 1.0], &mut dx)
            .unwrap();
        engine
            .cross_entropy_backward(&rows, x.as_flattened(), &[1u8, 0, 3], 1.1, &mut dlogits)
            .unwrap();
        let loss = engine.cross_entropy(&rows, x.as_flattened(), &[3u8, 0, 3]);
        let values = [&dlogits[..], &dx, &[loss.unwrap()]].concat();
        values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let want = run();
    assert!(f32::from_bits(want[0]).is_subnormal());
    // Flush to zero and denormals are zero; toward zero; upward.
    for word in [0x9FC0, 0x7F80, 0x5F80] {
        assert_eq!(with_control(word, run), want, "MXCSR {word:#X}");
    }
}
