//! Targets; and, where `SGEMM_BI_TEST_NVRTC` lists folders of NVRTC separated by colons (such as
//! `site-packages/nvidia/cu13/lib`), the real compiler.

use super::*;

const NVRTC_13: [u32; 8] = [75, 80, 86, 87, 89, 90, 100, 120];

#[test]
fn machine_code_is_for_the_same_generation_and_the_virtual_machines_for_later_ones() {
    let target = |arch| Target::for_arch(&NVRTC_13, arch);
    assert_eq!(target(90), Some(Target::Cubin(90)));
    assert_eq!(target(88), Some(Target::Cubin(87)));
    assert_eq!(target(121), Some(Target::Cubin(120)));
    assert_eq!(target(110), Some(Target::Ptx(100)));
    assert_eq!(target(130), Some(Target::Ptx(120)));
    assert_eq!(target(61), None);
    assert_eq!(Target::for_arch(&[], 90), None);
}

#[test]
fn a_missing_compiler_says_what_to_install() {
    let message = |arch, driver| {
        let missing = missing(
            arch,
            driver,
            vec!["/a: no NVRTC".into(), "/b: no NVRTC".into()],
        );
        missing.to_string()
    };
    let text = message(90, 13);
    assert!(
        text.contains("toolkit of CUDA 13, or the PyPI package nvidia-cuda-nvrtc in"),
        "{text}"
    );
    assert!(text.contains("SGEMM_BI_NVRTC"), "{text}");
    assert!(
        text.ends_with("Looked at:\n  /a: no NVRTC\n  /b: no NVRTC"),
        "{text}"
    );
    // NVRTC 13 compiles for sm_75 and up, and a driver loads nothing that is newer than itself.
    assert!(message(61, 13).contains("CUDA 12, or the PyPI package nvidia-cuda-nvrtc-cu12"));
    assert!(message(90, 12).contains("nvidia-cuda-nvrtc-cu12"));
}

#[test]
fn what_is_no_nvrtc_is_refused_with_a_reason() {
    let open = |candidate| Nvrtc::open(&candidate).map(|_| ()).unwrap_err();
    assert!(open(Candidate::File("/nowhere/libnvrtc.so".into())).contains("/nowhere"));
    assert!(open(Candidate::Loaded("libnvrtc.so.1")).contains("not"));
    #[cfg(target_os = "linux")]
    assert!(open(Candidate::Name("libc.so.6")).contains("nvrtc"));
}

/// The folders to test, in words if there are none.
pub(in crate::cuda) fn folders() -> Vec<PathBuf> {
    let folders = std::env::var_os("SGEMM_BI_TEST_NVRTC").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&folders)
        .filter(|p| p.is_dir())
        .collect();
    if folders.is_empty() {
        println!("skipped: SGEMM_BI_TEST_NVRTC names no folder of NVRTC");
    }
    folders
}

/// The compiler in a folder, opened as discovery opens it.
pub(in crate::cuda) fn compiler(folder: PathBuf) -> Nvrtc {
    let surroundings = Surroundings {
        variable: &|name| (name == VARIABLE).then(|| folder.clone().into()),
        root: PathBuf::from("/"),
    };
    let (candidates, missed) = surroundings.candidates();
    assert_eq!(
        (candidates.len(), missed.len()),
        (1, 0),
        "{}",
        folder.display()
    );
    Nvrtc::open(&candidates[0]).unwrap_or_else(|why| panic!("{}: {why}", candidates[0]))
}

#[test]
fn a_real_compiler_compiles_and_explains_what_it_does_not() {
    for folder in folders() {
        let nvrtc = compiler(folder);
        let (major, _) = nvrtc.version();
        assert!(nvrtc.archs.contains(&90), "{:?}", nvrtc.archs);
        assert_eq!(nvrtc.target(61).is_some(), major < 13, "{:?}", nvrtc.archs);
        let header = (
            "half.cuh",
            "__device__ float half(float x) { return 0.5f * x; }",
        );
        let good =
            "#include \"half.cuh\"\nextern \"C\" __global__ void f(float* x) { *x = half(*x); }";
        let compile = |text, target: Target| {
            nvrtc.compile(("f.cu", text), &[header], target, &[target.flag()])
        };
        let (cubin, log) = compile(good, Target::Cubin(90)).expect("it compiles");
        assert_eq!((&cubin[..4], log.as_str()), (&b"\x7fELF"[..], ""));
        let (ptx, _) = compile(good, Target::Ptx(90)).expect("it compiles");
        assert!(text_of(&ptx).contains(".target sm_90"));
        match compile("nonsense", Target::Cubin(90)).unwrap_err() {
            Error::Compile { kernel, log, .. } => {
                assert_eq!(kernel, "f.cu");
                assert!(log.contains("nonsense"), "{log}");
            }
            error => panic!("{error}"),
        }
        // A driver for an older CUDA does not load what this compiler makes.
        let refusal = compiler_of(&nvrtc)
            .serves(90, major - 1)
            .map(|_| ())
            .unwrap_err();
        assert!(refusal.contains("the driver is for CUDA"), "{refusal}");
    }
}

/// A second handle of an open library.
fn compiler_of(nvrtc: &Nvrtc) -> Nvrtc {
    Nvrtc {
        functions: nvrtc.functions,
        version: nvrtc.version,
        archs: nvrtc.archs.clone(),
        from: nvrtc.from.clone(),
    }
}
