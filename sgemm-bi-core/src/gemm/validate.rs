//! Whether a description fits its operands: what makes every index of an engine safe.

use super::{BatchDim, BiasGradient, Gemm, View};
use crate::error::{Error, Result};
use crate::operands::Extent;
use crate::{Dtype, Operands, SliceMut, SliceRef, Tier};

/// What the checks see of a product's operands, wherever they lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents {
    pub lhs: Extent,
    pub rhs: Extent,
    pub bias: Option<Extent>,
    pub out: Extent,
}

impl Gemm {
    /// Checks the description against its operands: dtypes, lengths, bounds, the output's
    /// addresses, and every size computation.
    ///
    /// After `Ok(())` every index that the views address lies inside its slice, no two output
    /// elements share an address, and no size or offset computed from the description overflows.
    pub fn validate(&self, operands: &Operands<'_>) -> Result<()> {
        self.check(&Extents {
            lhs: operands.lhs.into(),
            rhs: operands.rhs.into(),
            bias: operands.bias.map(Extent::from),
            out: operands.out.as_ref().into(),
        })
    }

    /// [`validate`](Gemm::validate), for operands in any memory.
    pub(crate) fn check(&self, operands: &Extents) -> Result<()> {
        let op = self.op.name();
        let expect_dtype = |argument, expected, got| {
            if expected == got {
                Ok(())
            } else {
                Err(Error::DtypeMismatch {
                    op,
                    argument,
                    expected,
                    got,
                })
            }
        };
        expect_dtype("lhs", self.dtype, operands.lhs.dtype)?;
        expect_dtype("rhs", self.dtype, operands.rhs.dtype)?;
        expect_dtype("out", self.out_dtype, operands.out.dtype)?;
        if self.accumulate && self.out_dtype != Dtype::F32 {
            return Err(Error::AccumulateDtype {
                op,
                got: self.out_dtype,
            });
        }
        if let Tier::TensorCore(_) = self.tier
            && self.dtype == Dtype::F32
        {
            return Err(self.unsupported_tier("the contract"));
        }
        self.check_bias(operands.bias)?;

        let work = self.batch.iter().map(|dim| dim.len);
        let work = work.chain([self.rows, self.cols, self.reduction.max(1)]);
        let sizes: Vec<usize> = work.collect();
        let nonzero_product = sizes.iter().filter(|&&size| size > 0);
        if nonzero_product
            .copied()
            .try_fold(1usize, usize::checked_mul)
            .is_none()
        {
            let what = format!("batch × rows × cols × reduction = {sizes:?}");
            return Err(Error::SizeOverflow {
                op,
                argument: "shape",
                what,
            });
        }

        let dims = |rows, cols, view: View, stride: fn(&BatchDim) -> usize| {
            let batch = self.batch.iter().map(move |dim| (dim.len, stride(dim)));
            batch
                .chain([(rows, view.row_stride), (cols, view.col_stride)])
                .collect::<Vec<_>>()
        };
        let (rows, cols, r) = (self.rows, self.cols, self.reduction);
        let lhs = dims(rows, r, self.lhs, |dim| dim.lhs_stride);
        let rhs = dims(r, cols, self.rhs, |dim| dim.rhs_stride);
        let out = dims(rows, cols, self.out, |dim| dim.out_stride);
        // Without an output nothing is read, but no offset may overflow either.
        let inputs = |len| if self.is_empty() { usize::MAX } else { len };
        check_bounds(op, "lhs", self.lhs.offset, &lhs, inputs(operands.lhs.len))?;
        check_bounds(op, "rhs", self.rhs.offset, &rhs, inputs(operands.rhs.len))?;
        check_bounds(op, "out", self.out.offset, &out, operands.out.len)?;
        check_no_overlap(op, out)
    }

    fn check_bias(&self, bias: Option<Extent>) -> Result<()> {
        let op = self.op.name();
        match (self.bias, bias) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(Error::BiasPresence {
                op,
                expected: "none",
                got: "a bias",
            }),
            (Some(_), None) => Err(Error::BiasPresence {
                op,
                expected: "a bias",
                got: "none",
            }),
            (Some(expected), Some(bias)) => {
                let got = bias.dtype;
                if expected != Dtype::F32 && expected != self.dtype {
                    return Err(Error::BiasDtype {
                        op,
                        operands: self.dtype,
                        got: expected,
                    });
                }
                if got != expected {
                    return Err(Error::DtypeMismatch {
                        op,
                        argument: "bias",
                        expected,
                        got,
                    });
                }
                if bias.len != self.cols {
                    let (expected, got) = (self.cols, bias.len);
                    return Err(Error::LengthMismatch {
                        op,
                        argument: "bias",
                        expected,
                        got,
                    });
                }
                Ok(())
            }
        }
    }
}

/// The bias gradient's name in messages.
pub(crate) const BIAS_GRADIENT: &str = "bias gradient";

impl BiasGradient {
    /// Checks the description against dY and db, as [`Gemm::validate`] does.
    pub fn validate(&self, dy: SliceRef<'_>, db: &SliceMut<'_>) -> Result<()> {
        self.check(dy.into(), db.as_ref().into())
    }

    /// [`validate`](BiasGradient::validate), for operands in any memory.
    pub(crate) fn check(&self, dy: Extent, db: Extent) -> Result<()> {
        let op = BIAS_GRADIENT;
        if dy.dtype != self.dtype {
            let (expected, got) = (self.dtype, dy.dtype);
            return Err(Error::DtypeMismatch {
                op,
                argument: "dy",
                expected,
                got,
            });
        }
        if db.dtype != Dtype::F32 {
            let (expected, got) = (Dtype::F32, db.dtype);
            return Err(Error::DtypeMismatch {
                op,
                argument: "db",
                expected,
                got,
            });
        }
        if db.len != self.cols {
            let (expected, got) = (self.cols, db.len);
            return Err(Error::LengthMismatch {
                op,
                argument: "db",
                expected,
                got,
            });
        }
        let View {
            offset,
            row_stride,
            col_stride,
        } = self.view;
        let dims = [(self.rows, row_stride), (self.cols, col_stride)];
        check_bounds(op, "dy", offset, &dims, dy.len)?;
        // Strides of zero make any number of rows fit.
        match self.rows.checked_mul(self.cols) {
            Some(_) => Ok(()),
            None => Err(Error::SizeOverflow {
                op,
                argument: "dy",
                what: format!("rows × cols = {} × {}", self.rows, self.cols),
            }),
        }
    }
}

/// Checks that the last element that (size, stride) pairs address lies inside `len` elements, and
/// that no offset along the way overflows, even when a size of zero leaves nothing to address.
pub(crate) fn check_bounds(
    op: &'static str,
    argument: &'static str,
    offset: usize,
    dims: &[(usize, usize)],
    len: usize,
) -> Result<()> {
    let empty = dims.iter().any(|&(size, _)| size == 0);
    let end = dims.iter().try_fold(offset, |end, &(size, stride)| {
        size.saturating_sub(1)
            .checked_mul(stride)
            .and_then(|span| end.checked_add(span))
    });
    match end.and_then(|end| end.checked_add(1)) {
        None => {
            let what = format!("offset {offset} with (size, stride) {dims:?}");
            Err(Error::SizeOverflow { op, argument, what })
        }
        Some(expected) if !empty && expected > len => Err(Error::TooShort {
            op,
            argument,
            expected,
            got: len,
        }),
        Some(_) => Ok(()),
    }
}

/// Checks that no two elements share an address, by the sufficient rule that [`View`] states.
fn check_no_overlap(op: &'static str, dims: Vec<(usize, usize)>) -> Result<()> {
    if dims.iter().any(|&(size, _)| size == 0) {
        return Ok(());
    }
    let dims: Vec<_> = dims.into_iter().filter(|&(size, _)| size > 1).collect();
    let mut by_stride = dims.clone();
    by_stride.sort_by_key(|&(_, stride)| stride);
    let mut span = 0;
    for (size, stride) in by_stride {
        if stride <= span {
            let (sizes, strides) = dims.into_iter().unzip();
            return Err(Error::OverlappingOutput { op, sizes, strides });
        }
        span += (size - 1) * stride;
    }
    Ok(())
}
