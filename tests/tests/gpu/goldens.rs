//! Golden bits: the CUDA engine gives the scalar tier's hashes on file.

use sgemm_bi_core::Tier;
use sgemm_bi_tests::Cuda;
use sgemm_bi_tests::golden::{self, Case, Layout};

#[test]
fn every_golden_in_every_layout_aligned_or_not() {
    let Some(cuda) = Cuda::new() else { return };
    let file = golden::file(Tier::Scalar);
    let text = std::fs::read_to_string(&file);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let goldens = golden::parse(Tier::Scalar, &text).expect("the file is sound");
    let (mut checked, mut wrong) = (0, Vec::new());
    for case in Case::all(Tier::Scalar) {
        let key = case.key();
        for layout in Layout::ALL {
            for shift in [0, 1] {
                let hash = case.run(&cuda.shifted(shift), layout);
                checked += 1;
                if goldens.get(&key) != Some(&hash) {
                    wrong.push(format!("{key}, {layout:?}, shifted by {shift}: {hash}"));
                }
            }
        }
    }
    println!("{checked} results compared with {} goldens", goldens.len());
    let shown = wrong
        .iter()
        .take(40)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        wrong.is_empty(),
        "{} of {checked} differ:\n{shown}",
        wrong.len()
    );
}
