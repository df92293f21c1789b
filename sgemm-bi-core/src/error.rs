//! The typed errors of every operation: op, argument, what was expected, what was got.

use crate::{Dtype, Tier};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation was refused. Nothing was written when one is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size or an offset does not fit the address space.
    #[error("{op}: {argument}: {what} overflows the address space")]
    SizeOverflow {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// The size that overflows, with its factors.
        what: String,
    },

    /// A slice ends before the last element that its view addresses.
    #[error(
        "{op}: {argument} is too short: its view addresses {expected} elements, the slice has {got}"
    )]
    TooShort {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// Elements needed.
        expected: usize,
        /// Elements in the slice.
        got: usize,
    },

    /// A vector's length differs from the one that the problem gives it.
    #[error("{op}: {argument} has the wrong length: expected {expected} elements, got {got}")]
    LengthMismatch {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// Elements expected.
        expected: usize,
        /// Elements in the slice.
        got: usize,
    },

    /// A slice's element type is not the one that the problem names.
    #[error("{op}: {argument} has the wrong dtype: expected {expected}, got {got}")]
    DtypeMismatch {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// The problem's dtype.
        expected: Dtype,
        /// The slice's dtype.
        got: Dtype,
    },

    /// The bias's type is neither f32 nor the operands'.
    #[error(
        "{op}: bias has an unsupported dtype: expected f32 or the operands' {operands}, got {got}"
    )]
    BiasDtype {
        /// The operation.
        op: &'static str,
        /// The operands' dtype.
        operands: Dtype,
        /// The bias's dtype.
        got: Dtype,
    },

    /// Two elements of the output may share an address: its strides break the rule of
    /// [`View`](crate::View).
    #[error(
        "{op}: out may overlap itself: with sizes {sizes:?} and strides {strides:?} a dimension does not step over what those of smaller stride span"
    )]
    OverlappingOutput {
        /// The operation.
        op: &'static str,
        /// Size of each output dimension longer than one, outermost first.
        sizes: Vec<usize>,
        /// Stride in elements of each of them.
        strides: Vec<usize>,
    },

    /// The problem asks for a bias and none was passed, or the reverse.
    #[error("{op}: bias: expected {expected}, got {got}")]
    BiasPresence {
        /// The operation.
        op: &'static str,
        /// What the problem says.
        expected: &'static str,
        /// What was passed.
        got: &'static str,
    },

    /// Accumulation is defined for f32 outputs only (contract section 1).
    #[error("{op}: out: accumulation needs an f32 output, got {got}")]
    AccumulateDtype {
        /// The operation.
        op: &'static str,
        /// The output's dtype.
        got: Dtype,
    },

    /// The tier is not defined for the dtype, or this engine does not have it.
    #[error("{op}: {engine} has no {tier} tier for {dtype} operands")]
    UnsupportedTier {
        /// The operation.
        op: &'static str,
        /// Who lacks it: the contract, or an engine.
        engine: &'static str,
        /// The tier asked for.
        tier: Tier,
        /// The operands' dtype.
        dtype: Dtype,
    },

    /// A row's target is no column of the logits.
    #[error("{op}: target {got} of row {row} is out of range: expected 0 to {classes} (exclusive)")]
    TargetOutOfRange {
        /// The operation.
        op: &'static str,
        /// The row.
        row: usize,
        /// Its target.
        got: i64,
        /// Columns of the logits.
        classes: usize,
    },

    /// A SIMD level's name is unknown.
    #[error("{source_name}: unknown SIMD level {got:?}: expected one of portable, avx2, avx512")]
    UnknownSimd {
        /// Where the name came from.
        source_name: &'static str,
        /// The name.
        got: String,
    },

    /// A SIMD level was forced that this processor does not have.
    #[error("this processor has no {requested}: the best level it has is {available}")]
    SimdUnavailable {
        /// The level asked for.
        requested: crate::cpu::Simd,
        /// The best level there is.
        available: crate::cpu::Simd,
    },

    /// The engine's threads could not be started.
    #[error("could not start {threads} threads")]
    ThreadPool {
        /// Threads asked for.
        threads: usize,
        /// What the thread pool said.
        source: rayon::ThreadPoolBuildError,
    },

    /// The GPU's driver is not there.
    #[cfg(feature = "cuda")]
    #[error("no NVIDIA driver: {looked}. Install the driver of the GPU")]
    NoDriver {
        /// What the loader said.
        looked: String,
    },

    /// There is no GPU with this ordinal.
    #[cfg(feature = "cuda")]
    #[error("no GPU with ordinal {ordinal}: the driver shows {count}")]
    NoDevice {
        /// The ordinal asked for.
        ordinal: usize,
        /// GPUs that there are.
        count: usize,
    },

    /// A call of the driver failed.
    #[cfg(feature = "cuda")]
    #[error("the driver could not {what}: {source}")]
    Driver {
        /// What was attempted.
        what: &'static str,
        /// What the driver said.
        source: cudarc::driver::DriverError,
    },

    /// The run-time compiler is not there, or none that serves the GPU and its driver.
    #[cfg(feature = "cuda")]
    #[error(
        "no usable NVRTC, the compiler of the CUDA toolkit. Install the toolkit of CUDA {major}, or the PyPI package {package} in the active environment, or name the library in {variable}. Looked at:\n  {looked}"
    )]
    NoNvrtc {
        /// The major version to install.
        major: i32,
        /// The package to install.
        package: &'static str,
        /// The environment variable that names a library.
        variable: &'static str,
        /// Every place that was looked at, and why it did not serve.
        looked: String,
    },

    /// The run-time compiler does not compile for the GPU.
    #[cfg(feature = "cuda")]
    #[error("NVRTC {}.{} ({from}) does not compile for sm_{arch}", nvrtc.0, nvrtc.1)]
    UnsupportedArch {
        /// The GPU's compute capability: 90 for 9.0.
        arch: u32,
        /// The compiler's version.
        nvrtc: (i32, i32),
        /// Where the compiler was found.
        from: String,
    },

    /// A kernel could not be compiled.
    #[cfg(feature = "cuda")]
    #[error("NVRTC {nvrtc} could not compile `{kernel}` with {flags}: {what}\n{log}")]
    Compile {
        /// The kernel's file.
        kernel: String,
        /// The compiler's flags.
        flags: String,
        /// The compiler's version, and where it was found.
        nvrtc: String,
        /// What failed.
        what: String,
        /// The compiler's log.
        log: String,
    },

    /// An address is not one of device memory.
    #[cfg(feature = "cuda")]
    #[error("{op}: {argument} is not in device memory: {address:#x} is {got}")]
    NotDeviceMemory {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// The address.
        address: u64,
        /// What it is.
        got: &'static str,
    },

    /// An operand is in another GPU's memory.
    #[cfg(feature = "cuda")]
    #[error("{op}: {argument} is on another device: expected {expected}, got {got}")]
    WrongDevice {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// The engine's device.
        expected: usize,
        /// The operand's device.
        got: usize,
    },

    /// An allocation ends before the operand that is said to be in it.
    #[cfg(feature = "cuda")]
    #[error("{op}: {argument} is longer than its allocation: expected {expected} bytes, got {got}")]
    AllocationTooSmall {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// Bytes of the operand.
        expected: u64,
        /// Bytes from its address to the end of the allocation.
        got: u64,
    },

    /// An address is not a multiple of its elements' size.
    #[cfg(feature = "cuda")]
    #[error("{op}: {argument} is misaligned for {dtype}: {address:#x}")]
    Misaligned {
        /// The operation.
        op: &'static str,
        /// The argument at fault.
        argument: &'static str,
        /// The element type.
        dtype: Dtype,
        /// The address.
        address: u64,
    },

    /// A call cannot be recorded in a graph as things are.
    #[cfg(feature = "cuda")]
    #[error("{op}: the stream records a graph, and {what}")]
    CaptureNotPrepared {
        /// The operation.
        op: &'static str,
        /// What is missing, and what to do about it.
        what: String,
    },
}
