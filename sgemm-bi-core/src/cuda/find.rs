//! Where NVRTC may be: the places to look, in order, from the environment and the file system.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names a library, or a folder that holds it; nothing else is tried then.
pub(super) const VARIABLE: &str = "SGEMM_BI_NVRTC";

/// File names, newest first. Only an unversioned one exists where a toolkit's development files
/// are installed.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// One way to open NVRTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    /// A library of this name that the process has already loaded.
    Loaded(&'static str),
    /// A file.
    File(PathBuf),
    /// A name that the loader looks up in its own path.
    Name(&'static str),
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Candidate::Loaded(name) => write!(f, "{name}, if already loaded"),
            Candidate::File(path) => path.display().fmt(f),
            Candidate::Name(name) => write!(f, "{name} in the loader's path"),
        }
    }
}

/// What there is to look at: the process's environment and file system, or a test's.
pub(super) struct Surroundings<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The root of the file system.
    pub root: PathBuf,
}

impl Surroundings<'_> {
    /// Every candidate, best first, and every folder looked into without finding one.
    pub fn candidates(&self) -> (Vec<Candidate>, Vec<PathBuf>) {
        if let Some(explicit) = self.path(VARIABLE) {
            return match explicit.is_dir() {
                true => in_folders([explicit]),
                false => (vec![Candidate::File(explicit)], Vec::new()),
            };
        }
        let mut found: Vec<_> = NAMES.into_iter().map(Candidate::Loaded).collect();
        let (toolkits, mut missed) = in_folders(self.toolkit_folders());
        let (wheels, missed_wheels) = in_folders(self.wheel_folders());
        found.extend(toolkits);
        found.extend(NAMES.into_iter().map(Candidate::Name));
        found.extend(wheels);
        missed.extend(missed_wheels);
        (found, missed)
    }

    /// A variable's value as a path; an empty one counts as none.
    fn path(&self, variable: &str) -> Option<PathBuf> {
        let value = (self.variable)(variable)?;
        (!value.is_empty()).then(|| value.into())
    }

    /// Library folders of toolkits.
    fn toolkit_folders(&self) -> Vec<PathBuf> {
        let named = ["CUDA_HOME", "CUDA_PATH"].into_iter();
        let mut homes: Vec<_> = named.filter_map(|name| self.path(name)).collect();
        let local = self.root.join("usr/local");
        homes.push(local.join("cuda"));
        homes.extend(matching(&local, "cuda-").into_iter().rev());
        let inside = [
            "lib64",
            "lib",
            "targets/x86_64-linux/lib",
            "targets/sbsa-linux/lib",
        ];
        homes
            .iter()
            .flat_map(|home| inside.map(|folder| home.join(folder)))
            .collect()
    }

    /// Library folders of Python wheels.
    fn wheel_folders(&self) -> Vec<PathBuf> {
        let mut packages = Vec::new();
        if let Some(paths) = (self.variable)("PYTHONPATH") {
            packages.extend(std::env::split_paths(&paths).filter(|p| !p.as_os_str().is_empty()));
        }
        let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter();
        let mut prefixes: Vec<_> = environments.filter_map(|name| self.path(name)).collect();
        if let Some(home) = self.path("HOME") {
            prefixes.push(home.join(".local"));
        }
        prefixes.extend(["usr/local", "usr"].map(|folder| self.root.join(folder)));
        for prefix in prefixes {
            for python in matching(&prefix.join("lib"), "python3").into_iter().rev() {
                packages.extend(["site-packages", "dist-packages"].map(|name| python.join(name)));
            }
        }
        let inside = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];
        packages
            .iter()
            .flat_map(|folder| inside.map(|wheel| folder.join(wheel)))
            .collect()
    }
}

/// The libraries in these folders, and the folders that hold none.
fn in_folders(folders: impl IntoIterator<Item = PathBuf>) -> (Vec<Candidate>, Vec<PathBuf>) {
    let (mut found, mut missed, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for folder in folders {
        if !seen.insert(folder.clone()) {
            continue;
        }
        let files = NAMES.map(|name| folder.join(name));
        match files.into_iter().find(|file| file.exists()) {
            Some(file) => found.push(Candidate::File(file)),
            None => missed.push(folder),
        }
    }
    (found, missed)
}

/// Entries of a folder whose names begin so, in order of the numbers in their names.
fn matching(folder: &Path, begin: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(begin)).collect();
    names.sort_by_key(|name| {
        let numbers = name.split(|c: char| !c.is_ascii_digit());
        numbers
            .filter_map(|n| n.parse::<u64>().ok())
            .collect::<Vec<_>>()
    });
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// The file of NVRTC's built-in functions that belongs to a library: NVRTC looks for it by name
/// only, so it must be open already.
pub(super) fn builtins_of(library: &Path) -> Option<PathBuf> {
    // A folder of links may hold the library alone.
    let folders = [library.to_path_buf(), library.canonicalize().ok()?];
    folders.iter().find_map(|file| {
        let found = matching(file.parent()?, "libnvrtc-builtins.so");
        found.into_iter().next_back()
    })
}

#[cfg(test)]
mod tests;
