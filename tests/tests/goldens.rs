//! Golden bits: the reference and every form of the CPU engine give the hashes on file.

use std::collections::BTreeMap;

use sgemm_bi_core::Dtype;
use sgemm_bi_tests::golden::{self, Case, Layout};
use sgemm_bi_tests::prepared::Prepared;
use sgemm_bi_tests::{Engine, Reference, engines};

/// Multiply-adds up to which the reference is run again here.
const SMALL: usize = 60_000;

fn goldens() -> BTreeMap<String, String> {
    let file = golden::scalar_file();
    let text = std::fs::read_to_string(&file).expect("the golden file can be read");
    golden::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Compares a case in every layout on every engine.
fn check(case: &Case, engines: &[&dyn Engine], goldens: &BTreeMap<String, String>) {
    let key = case.key();
    let Some(golden) = goldens.get(&key) else {
        panic!("no golden for {key:?}");
    };
    for layout in Layout::ALL {
        let prepared = Prepared::new(case, layout);
        for engine in engines {
            let (hash, name) = (prepared.run(*engine), engine.name());
            assert_eq!(
                &hash, golden,
                "{name}: {key}, {layout:?}: not the golden hash"
            );
        }
    }
}

#[test]
fn the_file_holds_every_case_and_no_other() {
    golden::check_keys(&goldens()).unwrap();
}

#[test]
fn a_missing_a_superfluous_a_double_and_a_headless_line_are_found() {
    let mut hashes = goldens();
    let (key, hash) = hashes.pop_first().expect("there are goldens");
    let error = golden::check_keys(&hashes).unwrap_err();
    assert_eq!(error, format!("no golden for {key:?}"));
    hashes.insert(key, hash.clone());
    hashes.insert("forward f64 1 1 1 normal".into(), hash);
    let error = golden::check_keys(&hashes).unwrap_err();
    assert_eq!(error, "no case for the golden \"forward f64 1 1 1 normal\"");

    let text = std::fs::read_to_string(golden::scalar_file()).unwrap();
    let last = text.lines().last().expect("there are lines");
    let error = golden::parse(&format!("{text}{last}\n")).unwrap_err();
    assert!(error.starts_with("two lines for"), "{error}");
    let error = golden::parse(&text.replacen("version 1", "version 0", 1)).unwrap_err();
    assert!(error.starts_with("the file does not begin with"), "{error}");
}

#[test]
fn lines_are_sorted() {
    let text = std::fs::read_to_string(golden::scalar_file()).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(lines.is_sorted());
}

#[test]
fn the_reference_gives_the_smaller_goldens_in_every_layout() {
    let goldens = goldens();
    let cases = Case::all().into_iter().filter(|case| case.work() <= SMALL);
    for case in cases {
        check(&case, &[&Reference], &goldens);
    }
}

/// Every case of one dtype, in every layout, at every SIMD level, with 1, 2 and 8 threads.
fn the_cpu_engine_gives_every_golden(dtype: Dtype) {
    let goldens = goldens();
    let engines = engines();
    let engines: Vec<&dyn Engine> = engines.iter().map(|engine| engine as _).collect();
    let cases = Case::all().into_iter().filter(|case| case.dtype == dtype);
    for case in cases {
        check(&case, &engines, &goldens);
    }
}

#[test]
fn the_cpu_engine_gives_every_f32_golden() {
    the_cpu_engine_gives_every_golden(Dtype::F32);
}

#[test]
fn the_cpu_engine_gives_every_bf16_golden() {
    the_cpu_engine_gives_every_golden(Dtype::BF16);
}

#[test]
fn the_cpu_engine_gives_every_f16_golden() {
    the_cpu_engine_gives_every_golden(Dtype::F16);
}
