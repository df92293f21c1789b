//! NVRTC, the run-time compiler, opened at run time and called through the few functions that are
//! needed.

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use libloading::Library;

use super::find::{Candidate, Surroundings, VARIABLE, builtins_of};
use crate::error::{Error, Result};

type Program = *mut std::ffi::c_void;
type Code = c_int;

/// The functions of the library, by the names and types that its header gives them.
#[derive(Clone, Copy)]
struct Functions {
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code,
    num_archs: unsafe extern "C" fn(*mut c_int) -> Code,
    archs: unsafe extern "C" fn(*mut c_int) -> Code,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Code,
    destroy: unsafe extern "C" fn(*mut Program) -> Code,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> Code,
}

/// An open library.
pub(crate) struct Nvrtc {
    functions: Functions,
    /// (major, minor).
    version: (i32, i32),
    /// Compute capabilities that it compiles for, ascending: 90 for 9.0.
    archs: Vec<u32>,
    from: String,
}

/// What to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Machine code of this compute capability: it runs on this and later ones of its major number.
    Cubin(u32),
    /// The virtual machine's code, which the driver translates for later GPUs.
    Ptx(u32),
}

impl Target {
    /// The compiler's flag.
    pub fn flag(self) -> String {
        match self {
            Target::Cubin(arch) => format!("--gpu-architecture=sm_{arch}"),
            Target::Ptx(arch) => format!("--gpu-architecture=compute_{arch}"),
        }
    }

    /// What a compiler that knows `archs` makes for a GPU of compute capability `arch`.
    pub fn for_arch(archs: &[u32], arch: u32) -> Option<Self> {
        let best = archs.iter().copied().filter(|&known| known <= arch).max()?;
        Some(match best / 10 == arch / 10 {
            true => Target::Cubin(best),
            false => Target::Ptx(best),
        })
    }
}

/// A named text: a kernel, or a header that kernels include.
pub(crate) type Text<'a> = (&'a str, &'a str);

impl Nvrtc {
    /// The first library found that compiles for a GPU of compute capability `arch` what a driver
    /// for CUDA `driver` (its major version) loads.
    ///
    /// Errors: [`Error::NoNvrtc`], with every place that was looked at and why it did not serve.
    pub fn find(arch: u32, driver: i32) -> Result<Self> {
        let surroundings = Surroundings {
            variable: &|name| std::env::var_os(name),
            root: PathBuf::from("/"),
        };
        let (candidates, missed) = surroundings.candidates();
        let mut looked = Vec::new();
        for candidate in candidates {
            match Self::open(&candidate).and_then(|found| found.serves(arch, driver)) {
                Ok(found) => return Ok(found),
                Err(why) => looked.push(format!("{candidate}: {why}")),
            }
        }
        looked.extend(
            missed
                .iter()
                .map(|folder| format!("{}: no NVRTC", folder.display())),
        );
        Err(missing(arch, driver, looked))
    }

    /// Opens a candidate; an error says why it cannot be used.
    pub fn open(candidate: &Candidate) -> std::result::Result<Self, String> {
        let library = match candidate {
            Candidate::Loaded(name) => already_loaded(name)?,
            Candidate::Name(name) => load(name.as_ref())?,
            Candidate::File(path) => {
                if let Some(builtins) = builtins_of(path) {
                    std::mem::forget(load(builtins.as_os_str())?);
                }
                load(path.as_os_str())?
            }
        };
        // It starts threads and keeps state: once open, it stays.
        let library = ManuallyDrop::new(library);
        /// The function of a name.
        fn function<T: Copy>(library: &Library, name: &str) -> std::result::Result<T, String> {
            // SAFETY: `Functions` has the types of NVRTC's header, which have never changed.
            match unsafe { library.get::<T>(name.as_bytes()) } {
                Ok(symbol) => Ok(*symbol),
                Err(_) => Err(format!("it has no {name}: it is older than CUDA 11.2")),
            }
        }
        let functions = Functions {
            error_string: function(&library, "nvrtcGetErrorString")?,
            version: function(&library, "nvrtcVersion")?,
            num_archs: function(&library, "nvrtcGetNumSupportedArchs")?,
            archs: function(&library, "nvrtcGetSupportedArchs")?,
            create: function(&library, "nvrtcCreateProgram")?,
            destroy: function(&library, "nvrtcDestroyProgram")?,
            compile: function(&library, "nvrtcCompileProgram")?,
            log_size: function(&library, "nvrtcGetProgramLogSize")?,
            log: function(&library, "nvrtcGetProgramLog")?,
            cubin_size: function(&library, "nvrtcGetCUBINSize")?,
            cubin: function(&library, "nvrtcGetCUBIN")?,
            ptx_size: function(&library, "nvrtcGetPTXSize")?,
            ptx: function(&library, "nvrtcGetPTX")?,
        };
        let mut nvrtc = Nvrtc {
            functions,
            version: (0, 0),
            archs: Vec::new(),
            from: candidate.to_string(),
        };
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the pointers are to integers that the functions write.
        let code = unsafe { (functions.version)(&mut major, &mut minor) };
        nvrtc.check(code)?;
        // SAFETY: as above.
        nvrtc.check(unsafe { (functions.num_archs)(&mut count) })?;
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the array has as many elements as the library said it writes.
        nvrtc.check(unsafe { (functions.archs)(archs.as_mut_ptr()) })?;
        nvrtc.version = (major, minor);
        nvrtc.archs = archs
            .into_iter()
            .filter_map(|arch| arch.try_into().ok())
            .collect();
        nvrtc.archs.sort_unstable();
        Ok(nvrtc)
    }

    /// The library, if it makes what a GPU and its driver can run.
    fn serves(self, arch: u32, driver: i32) -> std::result::Result<Self, String> {
        let (major, minor) = self.version;
        if major > driver {
            return Err(format!(
                "it is CUDA {major}.{minor}, the driver is for CUDA {driver}"
            ));
        }
        match (Target::for_arch(&self.archs, arch), self.archs.first()) {
            (Some(_), _) => Ok(self),
            (None, Some(first)) => Err(format!(
                "it is CUDA {major}.{minor}, which compiles for sm_{first} and up, not for sm_{arch}"
            )),
            (None, None) => Err("it compiles for nothing".into()),
        }
    }

    /// The version, (major, minor).
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Where it was found.
    pub fn from(&self) -> &str {
        &self.from
    }

    /// What it makes for a GPU of this compute capability.
    pub fn target(&self, arch: u32) -> Option<Target> {
        Target::for_arch(&self.archs, arch)
    }

    fn check(&self, code: Code) -> std::result::Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a static string for every code.
        let name = unsafe { CStr::from_ptr((self.functions.error_string)(code)) };
        Err(format!("{} ({code})", name.to_string_lossy()))
    }

    /// Compiles a kernel with these headers and flags; `flags` name the target. Gives the code and
    /// the compiler's log, which is empty when it has nothing to say.
    ///
    /// Errors: [`Error::Compile`], with the log.
    pub fn compile(
        &self,
        kernel: Text<'_>,
        headers: &[Text<'_>],
        target: Target,
        flags: &[String],
    ) -> Result<(Vec<u8>, String)> {
        let fail = |what: String, log: String| Error::Compile {
            kernel: kernel.0.to_owned(),
            flags: flags.join(" "),
            nvrtc: format!("{}.{} ({})", self.version.0, self.version.1, self.from),
            what,
            log,
        };
        let program = self
            .create(kernel, headers)
            .map_err(|what| fail(what, String::new()))?;
        let texts =
            strings(flags.iter().map(String::as_str)).map_err(|what| fail(what, String::new()))?;
        let pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        // SAFETY: a live program and `pointers.len()` pointers to strings that outlive the call.
        let code = unsafe {
            (self.functions.compile)(program.handle, pointers.len() as c_int, pointers.as_ptr())
        };
        let log = program.read(self.functions.log_size, self.functions.log);
        let log = log.map(|log| text_of(&log)).unwrap_or_default();
        self.check(code).map_err(|what| fail(what, log.clone()))?;
        let code = match target {
            Target::Cubin(_) => program.read(self.functions.cubin_size, self.functions.cubin),
            Target::Ptx(_) => program.read(self.functions.ptx_size, self.functions.ptx),
        };
        let code = code.map_err(|what| fail(what, log.clone()))?;
        Ok((code, log))
    }

    fn create(
        &self,
        kernel: Text<'_>,
        headers: &[Text<'_>],
    ) -> std::result::Result<OwnedProgram<'_>, String> {
        let (name, source) = (string(kernel.0)?, string(kernel.1)?);
        let names = strings(headers.iter().map(|header| header.0))?;
        let sources = strings(headers.iter().map(|header| header.1))?;
        let pointers = |texts: &[CString]| texts.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
        let (name_pointers, source_pointers) = (pointers(&names), pointers(&sources));
        let mut handle = null_mut();
        let none = headers.is_empty();
        // SAFETY: every string and array outlives the call; NVRTC copies what it keeps.
        let code = unsafe {
            (self.functions.create)(
                &mut handle,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                if none {
                    null()
                } else {
                    source_pointers.as_ptr()
                },
                if none { null() } else { name_pointers.as_ptr() },
            )
        };
        self.check(code)?;
        Ok(OwnedProgram {
            nvrtc: self,
            handle,
        })
    }
}

/// The error for a GPU and a driver that none of the places `looked` at serves.
fn missing(arch: u32, driver: i32, looked: Vec<String>) -> Error {
    let (major, package) = match arch < 75 || driver < 13 {
        true => (12, "nvidia-cuda-nvrtc-cu12"),
        false => (13, "nvidia-cuda-nvrtc"),
    };
    Error::NoNvrtc {
        major,
        package,
        variable: VARIABLE,
        looked: looked.join("\n  "),
    }
}

/// A program, destroyed when dropped.
struct OwnedProgram<'a> {
    nvrtc: &'a Nvrtc,
    handle: Program,
}

impl OwnedProgram<'_> {
    /// What a pair of functions for a size and for that many bytes give.
    fn read(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> Code,
        bytes: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    ) -> std::result::Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: a live program and a pointer to an integer.
        self.nvrtc.check(unsafe { size(self.handle, &mut len) })?;
        let mut out = vec![0u8; len];
        // SAFETY: the buffer has as many bytes as the library said it writes.
        let code = unsafe { bytes(self.handle, out.as_mut_ptr().cast()) };
        self.nvrtc.check(code)?;
        Ok(out)
    }
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and never used again.
        unsafe { (self.nvrtc.functions.destroy)(&mut self.handle) };
    }
}

fn string(text: &str) -> std::result::Result<CString, String> {
    CString::new(text).map_err(|_| "a source or flag holds a zero byte".into())
}

fn strings<'a>(texts: impl Iterator<Item = &'a str>) -> std::result::Result<Vec<CString>, String> {
    texts.map(string).collect()
}

fn text_of(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    text.trim_end_matches('\0').trim().to_owned()
}

fn load(name: &std::ffi::OsStr) -> std::result::Result<Library, String> {
    // SAFETY: NVRTC's initialisers have no requirements.
    unsafe { Library::new(name) }.map_err(loading)
}

/// What the loader said.
pub(super) fn loading(error: libloading::Error) -> String {
    use std::error::Error as _;
    let source = error.source().map(|source| source.to_string());
    source.unwrap_or_else(|| error.to_string())
}

/// The library of this name that the process has loaded, by another library or a program.
#[cfg(target_os = "linux")]
fn already_loaded(name: &str) -> std::result::Result<Library, String> {
    use libloading::os::unix;
    const RTLD_NOLOAD: c_int = 4;
    // SAFETY: nothing is loaded, so no initialiser runs.
    let found = unsafe { unix::Library::open(Some(name), unix::RTLD_NOW | RTLD_NOLOAD) };
    found.map(Library::from).map_err(|_| "it is not".into())
}

#[cfg(not(target_os = "linux"))]
fn already_loaded(_: &str) -> std::result::Result<Library, String> {
    Err("it cannot be known on this system".into())
}

#[cfg(test)]
pub(super) mod tests;
