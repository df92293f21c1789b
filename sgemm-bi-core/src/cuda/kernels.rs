//! The kernels: their sources, the instances that are made of them, and those of a context that
//! are compiled and loaded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use cudarc::driver::{CudaContext, DriverError, sys};

use super::cache::{Cache, Key};
use super::driver::{Driver, driver};
use super::embed::EMBED;
use super::nvrtc::{Nvrtc, Text};
use crate::Dtype;
use crate::contract::{CANONICAL_NAN_16, CANONICAL_NAN_F32, CHUNK};
use crate::error::{Error, Result};

/// A kernel's file.
#[derive(Debug)]
pub(crate) struct Source {
    /// The file's name without its ending, and its one kernel's.
    pub name: &'static str,
    pub text: &'static str,
}

macro_rules! source {
    ($name:literal) => {
        Source {
            name: $name,
            text: include_str!(concat!("../../kernels/", $name, ".cu")),
        }
    };
}

/// The general product.
pub(crate) static TILE: Source = source!("tile");
/// Products of few rows.
pub(crate) static FEW_ROWS: Source = source!("few_rows");
/// The sum over chunks that were computed side by side.
pub(crate) static FOLD: Source = source!("fold");
/// Softmax and losses.
pub(crate) static ROWS: Source = source!("rows");

/// Threads of a block of `fold`.
pub(crate) const FOLD_BLOCK: u32 = 256;

/// What sources include, by the names they use.
pub(super) static HEADERS: [Text<'static>; 6] = [
    ("ptx.cuh", include_str!("../../kernels/ptx.cuh")),
    ("product.cuh", include_str!("../../kernels/product.cuh")),
    ("vector.cuh", include_str!("../../kernels/vector.cuh")),
    ("panel.cuh", include_str!("../../kernels/panel.cuh")),
    ("load.cuh", include_str!("../../kernels/load.cuh")),
    ("exp_ln.cuh", include_str!("../../kernels/exp_ln.cuh")),
];

/// Flags of every compilation. A fused multiply-add is only where a source says so, and nothing is
/// flushed or approximated.
const FLAGS: [&str; 6] = [
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "-default-device",
];

/// The flags that every instance is compiled with.
pub(super) fn common_flags() -> Vec<String> {
    let contract = [
        format!("-DCHUNK={CHUNK}"),
        format!("-DNAN_F32={CANONICAL_NAN_F32:#X}u"),
        format!("-DNAN_16={CANONICAL_NAN_16:#X}u"),
    ];
    let flags = FLAGS.into_iter().map(str::to_owned);
    flags.chain(contract).collect()
}

/// The number of a dtype in kernels.
pub(crate) fn dtype(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::BF16 => 1,
        Dtype::F16 => 2,
    }
}

/// A kernel with values for its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub source: &'static Source,
    /// The function's name.
    pub entry: &'static str,
    pub defines: Vec<(&'static str, u32)>,
}

impl Instance {
    /// The kernel of a source that has one.
    pub fn new(source: &'static Source, defines: Vec<(&'static str, u32)>) -> Self {
        Instance {
            source,
            entry: source.name,
            defines,
        }
    }

    /// The flags that it is compiled with, but for the target.
    pub fn flags(&self) -> Vec<String> {
        let defines = self.defines.iter();
        let defines = defines.map(|(name, value)| format!("-D{name}={value}"));
        common_flags().into_iter().chain(defines).collect()
    }

    fn module(&self) -> ModuleKey {
        (self.source.name, self.defines.clone())
    }
}

impl std::fmt::Display for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.entry)?;
        for (name, value) in &self.defines {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}

impl PartialEq for Instance {
    fn eq(&self, other: &Self) -> bool {
        self.entry == other.entry && self.defines == other.defines
    }
}

impl Eq for Instance {}

impl std::hash::Hash for Instance {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.entry.hash(state);
        self.defines.hash(state);
    }
}

type ModuleKey = (&'static str, Vec<(&'static str, u32)>);

/// A loaded kernel. It stays loaded as long as its context lives: a graph may hold it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(pub sys::CUfunction);

// SAFETY: a handle that the driver lets any thread use.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// A loaded module.
#[derive(Clone, Copy, Debug)]
struct Module(sys::CUmodule);

// SAFETY: as `Function`.
unsafe impl Send for Module {}

/// A module that is loaded once, by whoever locks it first.
type Slot = Arc<Mutex<Option<Module>>>;

/// The kernels of one context.
pub(crate) struct Kernels {
    context: Arc<CudaContext>,
    arch: u32,
    cache: Cache,
    compiler: OnceLock<Nvrtc>,
    functions: RwLock<HashMap<Instance, Function>>,
    modules: Mutex<HashMap<ModuleKey, Slot>>,
}

impl Kernels {
    pub fn new(context: Arc<CudaContext>, arch: u32) -> Self {
        Kernels {
            context,
            arch,
            cache: Cache::from_environment(),
            compiler: OnceLock::new(),
            functions: RwLock::default(),
            modules: Mutex::default(),
        }
    }

    /// The kernel of an instance, if it is loaded.
    pub fn loaded(&self, instance: &Instance) -> Option<Function> {
        let functions = self
            .functions
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        functions.get(instance).copied()
    }

    /// The kernel of an instance, compiled and loaded by the first thread that asks for it.
    ///
    /// Errors: [`Error::NoNvrtc`], [`Error::Compile`], [`Error::Driver`].
    pub fn load(&self, instance: &Instance, shared: u32) -> Result<Function> {
        if let Some(function) = self.loaded(instance) {
            return Ok(function);
        }
        let slot = {
            let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(modules.entry(instance.module()).or_default())
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match *slot {
            Some(module) => module,
            None => *slot.insert(self.module(instance)?),
        };
        let function = self.function(instance, module, shared)?;
        let mut functions = self
            .functions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        functions.insert(instance.clone(), function);
        Ok(function)
    }

    /// The compiler, found when it is first needed.
    fn compiler(&self) -> Result<&Nvrtc> {
        if let Some(compiler) = self.compiler.get() {
            return Ok(compiler);
        }
        let found = Nvrtc::find(self.arch, Driver::major()?)?;
        Ok(self.compiler.get_or_init(|| found))
    }

    /// Where compiled kernels come from, in words.
    pub fn describe(&self) -> String {
        let compiler = match self.compiler() {
            Ok(nvrtc) => {
                let (major, minor) = nvrtc.version();
                format!("NVRTC {major}.{minor} ({})", nvrtc.from())
            }
            Err(error) => error.to_string(),
        };
        let cache = match self.cache.folder() {
            Some(folder) => folder.display().to_string(),
            None => "off".into(),
        };
        let embedded = match EMBED.is_empty() {
            true => String::new(),
            false => format!("{}; ", EMBED.describe(&HEADERS, self.arch)),
        };
        format!("sm_{}; {embedded}{compiler}; cache: {cache}", self.arch)
    }

    fn module(&self, instance: &Instance) -> Result<Module> {
        self.context
            .bind_to_thread()
            .map_err(driver("bind the context"))?;
        let not_embedded = match embedded(instance, self.arch) {
            Ok(module) => return Ok(module),
            Err(why) => why,
        };
        let compiler = self.compiler();
        let compiler = compiler.map_err(|error| explained(error, not_embedded))?;
        let (key, compile) = compilation(compiler, instance, self.arch)?;
        // An entry that the driver refuses is as good as none.
        if let Some(code) = self.cache.load(key)
            && let Ok(module) = Driver::load_module(&code)
        {
            return Ok(Module(module));
        }
        let code = compile()?;
        let module = Driver::load_module(&code).map_err(driver("load a compiled kernel"))?;
        self.cache.store(key, &code);
        Ok(Module(module))
    }

    fn function(&self, instance: &Instance, module: Module, shared: u32) -> Result<Function> {
        self.context
            .bind_to_thread()
            .map_err(driver("bind the context"))?;
        let function = Driver::function(module.0, instance.entry, shared);
        Ok(Function(
            function.map_err(driver("find a kernel in its module"))?,
        ))
    }
}

/// An instance's embedded code, loaded into the bound context. Without it, the reason in words; none
/// where nothing is embedded.
fn embedded(instance: &Instance, arch: u32) -> std::result::Result<Module, Option<String>> {
    if EMBED.is_empty() {
        return Err(None);
    }
    let code = EMBED.find(instance, &HEADERS, arch).map_err(Some)?;
    // One that the driver refuses is as good as none.
    let module = Driver::load_module(code);
    module.map(Module).map_err(|why| {
        let DriverError(code) = why;
        Some(format!("the driver refuses `{instance}`: {code:?}"))
    })
}

/// A missing compiler's error, with the reason why an embedded kernel did not make it needless.
fn explained(error: Error, not_embedded: Option<String>) -> Error {
    match (error, not_embedded) {
        (
            Error::NoNvrtc {
                major,
                package,
                variable,
                looked,
            },
            Some(why),
        ) => Error::NoNvrtc {
            major,
            package,
            variable,
            looked: format!("the kernels embedded in this build: {why}\n  {looked}"),
        },
        (error, _) => error,
    }
}

/// The cache key of an instance's code for a GPU of compute capability `arch`, and how to make it.
pub(super) fn compilation<'a>(
    compiler: &'a Nvrtc,
    instance: &'a Instance,
    arch: u32,
) -> Result<(Key, impl FnOnce() -> Result<Vec<u8>> + 'a)> {
    let Some(target) = compiler.target(arch) else {
        let (nvrtc, from) = (compiler.version(), compiler.from().to_owned());
        return Err(Error::UnsupportedArch { arch, nvrtc, from });
    };
    let mut flags = instance.flags();
    flags.push(target.flag());
    let (major, minor) = compiler.version();
    let version = format!("{major}.{minor}");
    let source = (instance.source.name, instance.source.text);
    let texts = [source].into_iter().chain(HEADERS);
    let texts: Vec<_> = texts.flat_map(|(name, text)| [name, text]).collect();
    let inputs = [version.as_str()].into_iter().chain(texts);
    let key = Key::of(inputs.chain(flags.iter().map(String::as_str)));
    let compile = move || Ok(compiler.compile(source, &HEADERS, target, &flags)?.0);
    Ok((key, compile))
}

#[cfg(test)]
mod tests;
