//! Fewer batch dimensions and no strides that mean nothing: a product as a plan begins with it.

use super::super::args::KERNEL_DIMS;
use crate::BatchDim;
use crate::turn::Form;

/// Sets the strides of dimensions that are never stepped along to zero, so that they neither
/// spoil an alignment nor look contiguous.
pub(super) fn forget_unused_strides(form: &mut Form) {
    if form.rows == 1 {
        (form.lhs.row, form.out.row) = (0, 0);
    }
    if form.cols == 1 {
        (form.rhs.col, form.out.col) = (0, 0);
    }
    if form.reduction <= 1 {
        (form.lhs.col, form.rhs.row) = (0, 0);
    }
}

/// Makes one dimension of neighbours that step on evenly.
pub(super) fn merge_dims(dims: &mut Vec<BatchDim>) {
    let mut merged: Vec<BatchDim> = Vec::with_capacity(dims.len());
    for &dim in dims.iter() {
        match merged.last_mut() {
            Some(outer)
                if outer.lhs_stride == dim.len * dim.lhs_stride
                    && outer.rhs_stride == dim.len * dim.rhs_stride
                    && outer.out_stride == dim.len * dim.out_stride =>
            {
                *outer = BatchDim {
                    len: outer.len * dim.len,
                    ..dim
                };
            }
            _ => merged.push(dim),
        }
    }
    *dims = merged;
}

/// The dimensions that are repeated launches, the shortest ones, and those that a kernel takes.
pub(super) fn split_dims(dims: Vec<BatchDim>) -> (Vec<BatchDim>, Vec<BatchDim>) {
    let mut longest: Vec<usize> = (0..dims.len()).collect();
    longest.sort_by_key(|&i| std::cmp::Reverse(dims[i].len));
    longest.truncate(KERNEL_DIMS);
    let (mut repeats, mut kernel) = (Vec::new(), Vec::new());
    for (i, dim) in dims.into_iter().enumerate() {
        match longest.contains(&i) {
            true => kernel.push(dim),
            false => repeats.push(dim),
        }
    }
    (repeats, kernel)
}
