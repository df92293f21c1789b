//! cuBLAS, opened at run time.

use std::ffi::{c_int, c_void};

use libloading::Library;
use sgemm_bi_core::{Gemm, View};

/// Names the library's file; absent, the loader looks for it.
const PATH_VARIABLE: &str = "SGEMM_BI_CUBLAS";

type Status = c_int;
type Handle = *mut c_void;
type Sgemm = unsafe extern "C" fn(
    handle: Handle,
    first_transposed: c_int,
    second_transposed: c_int,
    rows: c_int,
    cols: c_int,
    reduction: c_int,
    alpha: *const f32,
    first: u64,
    first_stride: c_int,
    second: u64,
    second_stride: c_int,
    beta: *const f32,
    out: u64,
    out_stride: c_int,
) -> Status;

/// The opened library, on one stream, in its default mode: f32 is f32.
pub struct Cublas {
    handle: Handle,
    sgemm: Sgemm,
    pub version: c_int,
    /// Keeps `sgemm` loaded.
    _library: Library,
}

impl Cublas {
    /// Opens it for a stream, with `workspace_bytes` of device memory at `workspace`.
    pub fn open(
        stream: *mut c_void,
        workspace: u64,
        workspace_bytes: usize,
    ) -> Result<Self, String> {
        let named = std::env::var(PATH_VARIABLE).ok();
        let names = named.map_or_else(
            || vec!["libcublas.so.13".to_owned(), "libcublas.so.12".to_owned()],
            |name| vec![name],
        );
        // SAFETY: loading cuBLAS runs its initialisation only.
        let mut opened = names.iter().map(|name| unsafe { Library::new(name) });
        let library = opened.find_map(Result::ok);
        let library =
            library.ok_or(format!("no cuBLAS: none of {names:?}; set {PATH_VARIABLE}"))?;
        let mut handle: Handle = std::ptr::null_mut();
        let mut version = 0;
        // SAFETY: the signatures are those of cublas_api.h.
        let sgemm = unsafe {
            let create =
                symbol::<unsafe extern "C" fn(*mut Handle) -> Status>(&library, "cublasCreate_v2")?;
            check("cublasCreate", create(&mut handle))?;
            let set_stream = symbol::<unsafe extern "C" fn(Handle, *mut c_void) -> Status>(
                &library,
                "cublasSetStream_v2",
            )?;
            check("cublasSetStream", set_stream(handle, stream))?;
            let set_workspace = symbol::<unsafe extern "C" fn(Handle, u64, usize) -> Status>(
                &library,
                "cublasSetWorkspace_v2",
            )?;
            let status = set_workspace(handle, workspace, workspace_bytes);
            check("cublasSetWorkspace", status)?;
            let get_version = symbol::<unsafe extern "C" fn(Handle, *mut c_int) -> Status>(
                &library,
                "cublasGetVersion_v2",
            )?;
            check("cublasGetVersion", get_version(handle, &mut version))?;
            symbol::<Sgemm>(&library, "cublasSgemm_v2")?
        };
        Ok(Cublas {
            handle,
            sgemm,
            version,
            _library: library,
        })
    }

    /// Computes a product of f32 operands at these addresses.
    ///
    /// # Safety
    ///
    /// The memory must be what `gemm` says, and stay so until the stream has come here.
    pub unsafe fn gemm(&self, gemm: &Gemm, lhs: u64, rhs: u64, out: u64) -> Result<(), String> {
        // Its matrices are stored by columns. An output stored by rows is the transpose of one:
        // outᵀ = rhsᵀ · lhsᵀ.
        let by_columns = gemm.out().col_stride != 1;
        let (first, second) = if by_columns {
            (
                (gemm.lhs(), lhs, gemm.rows()),
                (gemm.rhs(), rhs, gemm.cols()),
            )
        } else {
            let (lhs_view, rhs_view) = (gemm.lhs().transposed(), gemm.rhs().transposed());
            ((rhs_view, rhs, gemm.cols()), (lhs_view, lhs, gemm.rows()))
        };
        let out_stride = match by_columns {
            true => gemm.out().col_stride,
            false => gemm.out().row_stride,
        };
        let (first_transposed, first_stride) = stored(first.0);
        let (second_transposed, second_stride) = stored(second.0);
        let (alpha, beta) = (1.0f32, 0.0f32);
        let size = |n: usize| n as c_int;
        // SAFETY: the caller's promise; alpha and beta are read before it returns.
        let status = unsafe {
            (self.sgemm)(
                self.handle,
                first_transposed,
                second_transposed,
                size(first.2),
                size(second.2),
                size(gemm.reduction()),
                &alpha,
                first.1,
                size(first_stride),
                second.1,
                size(second_stride),
                &beta,
                out,
                size(out_stride),
            )
        };
        check("cublasSgemm", status)
    }
}

/// Whether a view is the transpose of a matrix stored by columns, and that one's column stride.
fn stored(view: View) -> (c_int, usize) {
    if view.row_stride == 1 {
        (0, view.col_stride)
    } else {
        (1, view.row_stride)
    }
}

fn check(what: &str, status: Status) -> Result<(), String> {
    match status {
        0 => Ok(()),
        status => Err(format!("{what}: status {status}")),
    }
}

/// # Safety
///
/// `T` must be the function's type.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|why| why.to_string())
}
