//! The instances that plans choose are those that the kernels' own check compiles.

use std::collections::BTreeMap;

use super::*;

type Parameters = BTreeMap<&'static str, u32>;

/// The parameters of a line of `kernels/instances.txt` for a compute capability: what decides how
/// many registers a kernel takes. Elements of 16 bits are alike.
fn checked(arch: u32) -> Vec<Parameters> {
    let text = include_str!("../../../../kernels/instances.txt");
    let lines = text
        .lines()
        .filter(|line| line.starts_with("tile") || line.starts_with("few"));
    let parse = |line: &'static str| {
        let mut parameters = Parameters::new();
        for word in line.split_whitespace().skip(1) {
            let (name, value) = word.split_once('=').expect("NAME=VALUE");
            if name == "archs" {
                let (from, to) = value.split_once('-').expect("FROM-TO");
                let inside = from.parse().map_or(true, |from: u32| from <= arch)
                    && to.parse().map_or(true, |to: u32| arch <= to);
                inside.then_some(())?;
            } else {
                parameters.insert(name, value.parse().expect("a number"));
            }
        }
        Some(essential(parameters))
    };
    lines.filter_map(parse).collect()
}

fn essential(mut parameters: Parameters) -> Parameters {
    if parameters.contains_key("ROWS") {
        parameters.remove("STAGES"); // Bytes on their way, not registers.
    }
    for name in [
        "OUT",
        "BIAS",
        "LHS_WIDTH",
        "RHS_WIDTH",
        "SPLIT",
        "ROWS",
        "ONES",
    ] {
        parameters.remove(name);
    }
    parameters
        .entry("ELEMENT")
        .and_modify(|element| *element = (*element).min(1));
    parameters
}

#[test]
fn every_choice_is_one_that_the_check_of_the_kernels_compiles() {
    let mut generator = Random(11);
    for arch in [61, 75, 80, 86, 89, 90, 100, 120] {
        let (gpu, checked) = (Gpu { arch, ..H200 }, checked(arch));
        let mut instances = sample(arch);
        for _ in 0..400 {
            let gemm = random(&mut generator);
            let plan = plan(Form::of(&gemm), kinds(&gemm), ALIGNED, gpu);
            instances.extend(plan.steps.into_iter().map(|step| step.instance));
        }
        for instance in instances {
            let parameters = essential(instance.defines.iter().copied().collect());
            let fold = instance.entry == "fold";
            assert!(
                fold || checked.contains(&parameters),
                "sm_{arch}: {instance}"
            );
        }
    }
}
