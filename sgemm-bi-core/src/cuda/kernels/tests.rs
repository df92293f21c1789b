//! Instances without a GPU: their flags, their keys; and, with the real compiler, their code.

use super::super::nvrtc::tests::{compiler, folders};
use super::super::plan::tests::sample;
use super::*;

#[test]
fn flags_hold_the_contracts_constants_and_the_parameters() {
    let flags = Instance::new(&TILE, vec![("BM", 64), ("BN", 32)]).flags();
    for flag in [
        "--fmad=false",
        "-DCHUNK=4096",
        "-DNAN_F32=0x7FFFFFFFu",
        "-DNAN_16=0x7FFFu",
    ] {
        assert!(flags.iter().any(|one| one == flag), "{flag}: {flags:?}");
    }
    assert_eq!(flags[flags.len() - 2..], ["-DBM=64", "-DBN=32"]);
}

#[test]
fn real_compilers_make_every_sample_for_an_old_and_a_new_gpu() {
    for folder in folders() {
        let nvrtc = compiler(folder);
        let (major, _) = nvrtc.version();
        let arch = if major < 13 { 61 } else { 90 };
        let mut keys = Vec::new();
        for instance in sample(arch) {
            let (key, compile) = compilation(&nvrtc, &instance, arch).expect("a target");
            let code = compile().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(&code[..4], b"\x7fELF", "{instance}");
            assert!(!keys.contains(&key), "{instance}");
            keys.push(key);
        }
    }
}

#[test]
fn a_missing_compiler_says_why_no_embedded_kernel_served() {
    let missing = || Error::NoNvrtc {
        major: 13,
        package: "nvidia-cuda-nvrtc",
        variable: "SGEMM_BI_NVRTC",
        looked: "/a: no NVRTC".into(),
    };
    let why = "none of them is `tile BM=96` for sm_90";
    let text = explained(missing(), Some(why.into())).to_string();
    let expected = format!("the kernels embedded in this build: {why}\n  /a: no NVRTC");
    assert!(text.ends_with(&expected), "{text}");
    let text = explained(missing(), None).to_string();
    assert!(!text.contains("embedded"), "{text}");
    let other = explained(
        Error::NoDevice {
            ordinal: 1,
            count: 1,
        },
        Some(why.into()),
    );
    assert!(matches!(other, Error::NoDevice { .. }));
}
