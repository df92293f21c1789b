//! Compiled kernels on disk: one file for each, found by a hash of all that it was made from.
//!
//! A cache is a convenience: whatever is wrong with it, the kernel is compiled again.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The folder; an empty value turns the cache off.
pub(super) const VARIABLE: &str = "SGEMM_BI_CACHE_DIR";

/// The first bytes of every entry. A change of the format changes the number.
const MAGIC: &[u8; 16] = b"sgemm-bi code 1\n";

/// Magic, key, hash of the code, and then the code.
const HEADER: usize = MAGIC.len() + 64;

/// Identifies what a compiler makes from one set of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The key of these inputs, in this order.
    pub fn of<'a>(inputs: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for input in inputs {
            hasher.update(&(input.len() as u64).to_le_bytes());
            hasher.update(input.as_bytes());
        }
        Key(*hasher.finalize().as_bytes())
    }

    fn file_name(self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex}.bin")
    }
}

/// A folder of entries, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The cache that the process's environment names.
    pub fn from_environment() -> Self {
        Self::from_variables(&|name| std::env::var_os(name))
    }

    /// `SGEMM_BI_CACHE_DIR`, or `sgemm-bi` in `XDG_CACHE_HOME` or in `~/.cache`.
    fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        // Empty and relative values of the latter two count as none, by their specification.
        let absolute = |name| {
            variable(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let folder = match variable(VARIABLE) {
            Some(folder) if folder.is_empty() => None,
            Some(folder) => Some(folder.into()),
            None => absolute("XDG_CACHE_HOME")
                .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
                .map(|caches| caches.join("sgemm-bi")),
        };
        Cache { folder }
    }

    /// A cache in a folder.
    #[cfg(test)]
    pub fn at(folder: &Path) -> Self {
        Cache {
            folder: Some(folder.to_path_buf()),
        }
    }

    /// The folder, if there is a cache.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The code under a key, if there is an intact entry.
    pub fn load(&self, key: Key) -> Option<Vec<u8>> {
        let file = self.folder.as_ref()?.join(key.file_name());
        let entry = fs::read(file).ok()?;
        let (header, code) = entry.split_at_checked(HEADER)?;
        (header == header_of(key, code)).then(|| code.to_vec())
    }

    /// Keeps the code under a key, replacing what may be there. Failure is silent: the next process
    /// compiles again.
    pub fn store(&self, key: Key, code: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let _ = write(folder, key, code);
    }
}

fn header_of(key: Key, code: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &key.0, blake3::hash(code).as_bytes()].concat()
}

/// Writes a file of its own and renames it: other processes see a whole entry or none.
fn write(folder: &Path, key: Key, code: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    create_private(folder)?;
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let temporary = folder.join(format!(".{}.{process}.{count}", key.file_name()));
    let written = (|| {
        let mut file = fs::OpenOptions::new();
        let mut file = file.write(true).create_new(true).open(&temporary)?;
        file.write_all(&header_of(key, code))?;
        file.write_all(code)?;
        fs::rename(&temporary, folder.join(key.file_name()))
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Creates a folder, and those above it, that others cannot write to: its entries are executed.
fn create_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(test)]
mod tests;
