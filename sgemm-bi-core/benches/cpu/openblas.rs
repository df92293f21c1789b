//! OpenBLAS, opened at run time from numpy's wheel or from the file that an environment variable
//! names.

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use libloading::{Library, Symbol};
use sgemm_bi_core::{Gemm, SliceMut, SliceRef, View};

use crate::contenders::Contender;

/// Names the library's file; absent, numpy is asked where its own lies.
const PATH_VARIABLE: &str = "SGEMM_BI_OPENBLAS";

/// `cblas_sgemm` with 64-bit integers.
type Sgemm = unsafe extern "C" fn(
    order: c_int,
    lhs_transposed: c_int,
    rhs_transposed: c_int,
    rows: i64,
    cols: i64,
    reduction: i64,
    alpha: f32,
    lhs: *const f32,
    lhs_stride: i64,
    rhs: *const f32,
    rhs_stride: i64,
    beta: f32,
    out: *mut f32,
    out_stride: i64,
);

const ROW_MAJOR: c_int = 101;
const COLUMN_MAJOR: c_int = 102;
const AS_STORED: c_int = 111;
const TRANSPOSED: c_int = 112;

/// The opened library.
pub struct OpenBlas {
    sgemm: Sgemm,
    threads: usize,
    description: String,
    /// Keeps `sgemm` loaded.
    _library: Library,
}

impl OpenBlas {
    /// Opens the library and sets its number of threads, or says why it cannot.
    pub fn open(threads: usize) -> Result<Self, String> {
        let path = library_path()?;
        // SAFETY: loading OpenBLAS only reads environment variables and starts its threads.
        let library = unsafe { Library::new(&path) }.map_err(|why| why.to_string())?;
        // SAFETY: the signatures are those of OpenBLAS's 64-bit interface, whose names end in 64_.
        let (sgemm, core_name, config) = unsafe {
            let set_threads: Symbol<unsafe extern "C" fn(c_int)> =
                symbol(&library, "openblas_set_num_threads64_")?;
            set_threads(threads as c_int);
            let text = |name| -> Result<String, String> {
                let get: Symbol<unsafe extern "C" fn() -> *const c_char> = symbol(&library, name)?;
                Ok(CStr::from_ptr(get()).to_string_lossy().into_owned())
            };
            (
                *symbol::<Sgemm>(&library, "cblas_sgemm64_")?,
                text("openblas_get_corename64_")?,
                text("openblas_get_config64_")?,
            )
        };
        let description = format!("{}, kernels for {core_name}", config.trim());
        Ok(OpenBlas {
            sgemm,
            threads,
            description,
            _library: library,
        })
    }

    /// Version, build options and the kernels chosen for this processor.
    pub fn description(&self) -> &str {
        &self.description
    }
}

/// The symbol with or without the prefix that numpy's and scipy's builds add.
///
/// # Safety
///
/// `T` must be the symbol's type.
unsafe fn symbol<'a, T>(library: &'a Library, name: &str) -> Result<Symbol<'a, T>, String> {
    let prefixed = format!("scipy_{name}");
    // SAFETY: the caller vouches for the type.
    unsafe { library.get(prefixed.as_bytes()) }
        // SAFETY: as above.
        .or_else(|_| unsafe { library.get(name.as_bytes()) })
        .map_err(|why| why.to_string())
}

fn library_path() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(PATH_VARIABLE) {
        return Ok(path.into());
    }
    let script = "import numpy, pathlib\n\
        folder = pathlib.Path(numpy.__file__).parent.parent / 'numpy.libs'\n\
        print(*folder.glob('*openblas*'))";
    let python = Command::new("python3").args(["-c", script]).output();
    let python = python.map_err(|why| format!("python3: {why}"))?;
    let printed = String::from_utf8_lossy(&python.stdout);
    match printed.split_whitespace().next() {
        Some(path) => Ok(path.into()),
        None => Err(format!(
            "python3 has no numpy wheel with OpenBLAS inside; set {PATH_VARIABLE} to the library, \
             or use scripts/bench-cpu.sh"
        )),
    }
}

impl Contender for OpenBlas {
    fn name(&self) -> &'static str {
        "OpenBLAS"
    }

    fn multiply(
        &self,
        gemm: &Gemm,
        lhs: SliceRef<'_>,
        rhs: SliceRef<'_>,
        out: SliceMut<'_>,
    ) -> bool {
        let (SliceRef::F32(lhs), SliceRef::F32(rhs), SliceMut::F32(out)) = (lhs, rhs, out) else {
            return false;
        };
        let (order, out_stride) = match gemm.out() {
            view if view.col_stride == 1 => (ROW_MAJOR, view.row_stride),
            view => (COLUMN_MAJOR, view.col_stride),
        };
        let storage = |view: View| match (order, view.col_stride, view.row_stride) {
            (ROW_MAJOR, 1, stride) | (COLUMN_MAJOR, stride, 1) => (AS_STORED, stride as i64),
            (ROW_MAJOR, stride, _) | (_, _, stride) => (TRANSPOSED, stride as i64),
        };
        let (lhs_transposed, lhs_stride) = storage(gemm.lhs());
        let (rhs_transposed, rhs_stride) = storage(gemm.rhs());
        // SAFETY: sizes and strides are those of dense matrices that fill the slices.
        unsafe {
            (self.sgemm)(
                order,
                lhs_transposed,
                rhs_transposed,
                gemm.rows() as i64,
                gemm.cols() as i64,
                gemm.reduction() as i64,
                1.0,
                lhs.as_ptr(),
                lhs_stride,
                rhs.as_ptr(),
                rhs_stride,
                0.0,
                out.as_mut_ptr(),
                out_stride as i64,
            );
        }
        true
    }

    fn rest(&self) {
        if self.threads > 1 {
            std::thread::sleep(Duration::from_millis(60));
        }
    }
}
