//! Golden bits: the reference and every form of the CPU engine give the hashes on file.

use std::collections::BTreeMap;

use sgemm_bi_core::{Dtype, TensorCoreModel, Tier};
use sgemm_bi_tests::golden::{self, Case, Layout, TIERS};
use sgemm_bi_tests::prepared::Prepared;
use sgemm_bi_tests::{Engine, Reference, engines};

/// Multiply-adds up to which the reference is run again here.
const SMALL: usize = 60_000;

type Goldens = BTreeMap<String, String>;

fn text(tier: Tier) -> String {
    std::fs::read_to_string(golden::file(tier)).expect("the golden file can be read")
}

fn goldens(tier: Tier) -> Goldens {
    golden::parse(tier, &text(tier)).unwrap_or_else(|error| panic!("{tier}: {error}"))
}

/// Compares a case on every engine, in every layout but for larger cases of the tensor-core tiers,
/// whose replay takes its time.
fn check(case: &Case, engines: &[&dyn Engine], goldens: &Goldens) {
    let (key, tier) = (case.key(), case.tier);
    let Some(golden) = goldens.get(&key) else {
        panic!("no golden for {key:?}");
    };
    let layouts = match tier {
        Tier::TensorCore(_) if case.work() > SMALL => &[Layout::OutIn],
        _ => &Layout::ALL[..],
    };
    for &layout in layouts {
        let prepared = Prepared::new(case, layout);
        for engine in engines {
            let (hash, name) = (prepared.run(*engine), engine.name());
            assert_eq!(
                &hash, golden,
                "{name}, {tier} tier: {key}, {layout:?}: not the golden"
            );
        }
    }
}

#[test]
fn the_files_hold_every_case_and_no_other() {
    for tier in TIERS {
        golden::check_keys(tier, &goldens(tier)).unwrap_or_else(|error| panic!("{tier}: {error}"));
    }
}

#[test]
fn a_missing_a_superfluous_a_double_and_a_headless_line_are_found() {
    for tier in TIERS {
        let mut hashes = goldens(tier);
        let (key, hash) = hashes.pop_first().expect("there are goldens");
        let error = golden::check_keys(tier, &hashes).expect_err("one is missing");
        assert_eq!(error, format!("no golden for {key:?}"));
        hashes.insert(key, hash.clone());
        hashes.insert("forward f64 1 1 1 normal".into(), hash);
        let error = golden::check_keys(tier, &hashes).expect_err("one is superfluous");
        assert_eq!(error, "no case for the golden \"forward f64 1 1 1 normal\"");

        let text = text(tier);
        let last = text.lines().last().expect("there are lines");
        let error = golden::parse(tier, &format!("{text}{last}\n")).expect_err("one is double");
        assert!(error.starts_with("two lines for"), "{error}");
        let other = text.replacen("version ", "version 9", 1);
        let error = golden::parse(tier, &other).expect_err("another version");
        assert!(error.starts_with("the file does not begin with"), "{error}");
    }
}

#[test]
fn lines_are_sorted() {
    for tier in TIERS {
        let text = text(tier);
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.is_sorted(), "{tier}");
    }
}

#[test]
fn the_reference_gives_the_smaller_goldens_in_every_layout() {
    for tier in TIERS {
        let goldens = goldens(tier);
        let cases = Case::all(tier).into_iter();
        for case in cases.filter(|case| case.work() <= SMALL) {
            check(&case, &[&Reference], &goldens);
        }
    }
}

/// Every case of a tier and a dtype, at every SIMD level, with 1, 2 and 8 threads.
fn the_cpu_engine_gives_every_golden(tier: Tier, dtype: Dtype) {
    let goldens = goldens(tier);
    let engines = engines();
    let engines: Vec<&dyn Engine> = engines.iter().map(|engine| engine as _).collect();
    let cases = Case::all(tier).into_iter();
    for case in cases.filter(|case| case.dtype == dtype) {
        check(&case, &engines, &goldens);
    }
}

#[test]
fn the_cpu_engine_gives_every_f32_golden() {
    the_cpu_engine_gives_every_golden(Tier::Scalar, Dtype::F32);
}

#[test]
fn the_cpu_engine_gives_every_bf16_golden() {
    the_cpu_engine_gives_every_golden(Tier::Scalar, Dtype::BF16);
}

#[test]
fn the_cpu_engine_gives_every_f16_golden() {
    the_cpu_engine_gives_every_golden(Tier::Scalar, Dtype::F16);
}

#[test]
fn the_cpu_engine_replays_every_ampere_golden() {
    let tier = Tier::TensorCore(TensorCoreModel::Ampere);
    the_cpu_engine_gives_every_golden(tier, Dtype::BF16);
    the_cpu_engine_gives_every_golden(tier, Dtype::F16);
}

#[test]
fn the_cpu_engine_replays_every_hopper_golden() {
    let tier = Tier::TensorCore(TensorCoreModel::Hopper);
    the_cpu_engine_gives_every_golden(tier, Dtype::BF16);
    the_cpu_engine_gives_every_golden(tier, Dtype::F16);
}
