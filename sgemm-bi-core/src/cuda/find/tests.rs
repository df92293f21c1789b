//! Discovery in made-up file systems.

use std::collections::HashMap;
use std::fs;

use super::*;
use crate::cuda::scratch::Folder;

/// The files that are candidates, in order, below the root of a made-up system.
fn files(root: &Folder, variables: &[(&str, &str)]) -> Vec<String> {
    let (candidates, _) = look(root, variables);
    let below = |path: &Path| {
        let below = path.strip_prefix(root.path()).expect("below the root");
        below.to_str().expect("made of names in ASCII").to_owned()
    };
    let files = candidates.iter().filter_map(|candidate| match candidate {
        Candidate::File(path) => Some(below(path)),
        _ => None,
    });
    files.collect()
}

/// A value that begins with a slash is below the root; several are separated by colons.
fn look(root: &Folder, variables: &[(&str, &str)]) -> (Vec<Candidate>, Vec<PathBuf>) {
    let value = |value: &str| match value.is_empty() {
        true => OsString::new(),
        false => {
            let paths = value
                .split(':')
                .map(|path| root.path().join(path.trim_matches('/')));
            std::env::join_paths(paths).expect("no separator in a path")
        }
    };
    let variables: HashMap<_, _> = variables.iter().map(|&(k, v)| (k, value(v))).collect();
    let surroundings = Surroundings {
        variable: &|name| variables.get(name).cloned(),
        root: root.path().to_path_buf(),
    };
    surroundings.candidates()
}

fn add(root: &Folder, file: &str) {
    let path = root.path().join(file);
    fs::create_dir_all(path.parent().expect("a folder")).expect("created");
    fs::write(path, "").expect("written");
}

const CU13: &str = "lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13";
const CU12: &str = "lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12";

#[test]
fn wheels_of_both_layouts_are_found_in_every_environment() {
    let root = Folder::new();
    add(&root, &format!("venv/{CU13}"));
    add(&root, &format!("venv/{CU12}"));
    add(&root, &format!("conda/{CU12}"));
    add(&root, &format!("home/me/.local/{CU13}"));
    add(
        &root,
        "usr/lib/python3/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
    );
    add(
        &root,
        "usr/local/lib/python3.9/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
    );
    add(
        &root,
        "usr/local/lib/python3.10/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
    );
    add(&root, "mine/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    let variables = [
        ("PYTHONPATH", "/other:/mine"),
        ("VIRTUAL_ENV", "/venv"),
        ("CONDA_PREFIX", "/conda"),
        ("HOME", "/home/me"),
    ];
    let expected = [
        "mine/nvidia/cuda_nvrtc/lib/libnvrtc.so.12".to_owned(),
        format!("venv/{CU13}"),
        format!("venv/{CU12}"),
        format!("conda/{CU12}"),
        format!("home/me/.local/{CU13}"),
        "usr/local/lib/python3.10/dist-packages/nvidia/cu13/lib/libnvrtc.so.13".to_owned(),
        "usr/local/lib/python3.9/dist-packages/nvidia/cu13/lib/libnvrtc.so.13".to_owned(),
        "usr/lib/python3/dist-packages/nvidia/cu13/lib/libnvrtc.so.13".to_owned(),
    ];
    assert_eq!(files(&root, &variables), expected);
    assert_eq!(files(&root, &[]), expected[5..]);
}

#[test]
fn toolkits_come_before_wheels_and_the_newest_first() {
    let root = Folder::new();
    add(&root, &format!("venv/{CU13}"));
    add(&root, "usr/local/cuda-12.9/lib64/libnvrtc.so.12");
    add(&root, "usr/local/cuda-12.10/lib64/libnvrtc.so.12");
    add(
        &root,
        "usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so",
    );
    add(&root, "opt/cuda/lib64/libnvrtc.so");
    add(&root, "opt/cuda/lib64/libnvrtc.so.13");
    let variables = [("CUDA_HOME", "/opt/cuda"), ("VIRTUAL_ENV", "/venv")];
    let expected = [
        "opt/cuda/lib64/libnvrtc.so.13".to_owned(),
        "usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so".to_owned(),
        "usr/local/cuda-12.10/lib64/libnvrtc.so.12".to_owned(),
        "usr/local/cuda-12.9/lib64/libnvrtc.so.12".to_owned(),
        format!("venv/{CU13}"),
    ];
    assert_eq!(files(&root, &variables), expected);
    // An already loaded one comes first of all, the loader's path between toolkits and wheels.
    let (all, _) = look(&root, &variables);
    assert_eq!(all[0], Candidate::Loaded("libnvrtc.so.13"));
    assert_eq!(all[1], Candidate::Loaded("libnvrtc.so.12"));
    let name = all.iter().position(|one| matches!(one, Candidate::Name(_)));
    let wheel = all
        .iter()
        .rposition(|one| matches!(one, Candidate::File(_)));
    assert_eq!((name, wheel), (Some(7), Some(10)));
}

#[test]
fn an_explicit_library_or_folder_is_the_only_candidate() {
    let root = Folder::new();
    add(&root, "usr/local/cuda/lib64/libnvrtc.so.13");
    add(&root, "own/libnvrtc.so.12");
    let library = [(VARIABLE, "/own/libnvrtc.so.12")];
    assert_eq!(files(&root, &library), ["own/libnvrtc.so.12"]);
    let folder = [(VARIABLE, "/own")];
    assert_eq!(files(&root, &folder), ["own/libnvrtc.so.12"]);
    assert_eq!(look(&root, &folder).0.len(), 1);
    // One that is not there is tried too, for the error to say so.
    let missing = [(VARIABLE, "/none/libnvrtc.so.12")];
    assert_eq!(files(&root, &missing), ["none/libnvrtc.so.12"]);
    let empty = [(VARIABLE, "")];
    assert_eq!(
        files(&root, &empty),
        ["usr/local/cuda/lib64/libnvrtc.so.13"]
    );
}

#[test]
fn folders_without_a_library_are_reported() {
    let root = Folder::new();
    let (candidates, missed) = look(
        &root,
        &[("CUDA_PATH", "/toolkit"), ("VIRTUAL_ENV", "/venv")],
    );
    assert!(
        candidates
            .iter()
            .all(|one| !matches!(one, Candidate::File(_)))
    );
    assert!(missed.contains(&root.path().join("toolkit/lib64")));
    assert!(missed.contains(&root.path().join("usr/local/cuda/lib64")));
}

#[test]
fn built_in_functions_are_those_beside_the_library_or_beside_what_it_links_to() {
    let root = Folder::new();
    add(&root, "real/libnvrtc.so.13.0.88");
    add(&root, "real/libnvrtc-builtins.so.13.0");
    let library = root.path().join("real/libnvrtc.so.13.0.88");
    let builtins = root.path().join("real/libnvrtc-builtins.so.13.0");
    assert_eq!(builtins_of(&library), Some(builtins.clone()));
    #[cfg(unix)]
    {
        add(&root, "links/other");
        let link = root.path().join("links/libnvrtc.so");
        std::os::unix::fs::symlink(&library, &link).expect("linked");
        assert_eq!(builtins_of(&link), Some(builtins));
    }
    add(&root, "alone/libnvrtc.so.12");
    assert_eq!(builtins_of(&root.path().join("alone/libnvrtc.so.12")), None);
}
