//! The argument of every product kernel: what `kernels/product.cuh` declares, byte for byte.

use cudarc::driver::sys::CUdeviceptr;

/// One batch dimension: its length, and the strides in elements along it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim {
    pub len: i64,
    pub lhs: i64,
    pub rhs: i64,
    pub out: i64,
}

/// A product as its kernel sees it. Strides are in elements.
///
/// In a plan the addresses are offsets in bytes from the operands' first elements and from the
/// workspace's start; a launch makes them absolute.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    pub lhs: CUdeviceptr,
    pub rhs: CUdeviceptr,
    pub bias: CUdeviceptr,
    pub out: CUdeviceptr,
    /// f32 sums between chunks, or one for each chunk (see `kernels/README.md`).
    pub totals: CUdeviceptr,
    pub rows: i64,
    pub cols: i64,
    pub reduction: i64,
    pub lhs_row: i64,
    pub lhs_red: i64,
    pub rhs_red: i64,
    pub rhs_col: i64,
    pub out_row: i64,
    pub out_col: i64,
    /// Entries of the batch: the product of the dimensions' lengths.
    pub batch: i64,
    /// Outermost first; unused ones have length 1.
    pub dims: [Dim; 3],
    pub bias_along: i32,
    pub accumulate: i32,
    pub flags: i32,
    pub chunks: i32,
}

/// Dimensions of a batch that a kernel takes.
pub(crate) const KERNEL_DIMS: usize = 3;

/// [`Product::bias_along`]: there is no bias.
pub(crate) const BIAS_NONE: i32 = 0;
/// [`Product::bias_along`]: one value for each column.
pub(crate) const BIAS_COLS: i32 = 1;
/// [`Product::bias_along`]: one value for each row.
pub(crate) const BIAS_ROWS: i32 = 2;

// `product.cuh` asserts the same.
const _: () = assert!(size_of::<Dim>() == 32 && size_of::<Product>() == 232);
