//! Cuts a product that is too large for one launch into pieces of its output.

use crate::BatchDim;
use crate::turn::{Axis, Form};

/// A part of a product's output, with the offsets in elements of its operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub form: Form,
    pub lhs: usize,
    pub rhs: usize,
    pub bias: usize,
    pub out: usize,
}

/// Pieces that fit and cover the form; the form itself, if it fits. One matrix of no more than
/// [`STEP`] rows and columns is not cut, whether it fits or not.
pub(super) fn pieces(form: Form, fits: impl Fn(&Form) -> bool) -> Vec<Piece> {
    let whole = Piece {
        form,
        lhs: 0,
        rhs: 0,
        bias: 0,
        out: 0,
    };
    let (mut waiting, mut done) = (vec![whole], Vec::new());
    while let Some(piece) = waiting.pop() {
        match fits(&piece.form) {
            true => done.push(piece),
            false => match halves(&piece) {
                Some((first, second)) => waiting.extend([second, first]),
                None => done.push(piece),
            },
        }
    }
    done
}

/// Cuts the batch while it has several entries, then the longer of rows and columns. Pieces stay
/// as aligned as the whole: a cut of rows or columns is at a multiple of [`STEP`].
fn halves(piece: &Piece) -> Option<(Piece, Piece)> {
    let form = &piece.form;
    let longest = (0..form.dims.len()).max_by_key(|&i| form.dims[i].len);
    if let Some(i) = longest
        && form.dims[i].len > 1
    {
        let BatchDim {
            len,
            lhs_stride,
            rhs_stride,
            out_stride,
        } = form.dims[i];
        let cut = len / 2;
        let (mut first, mut second) = (piece.clone(), piece.clone());
        first.form.dims[i].len = cut;
        second.form.dims[i].len = len - cut;
        second.lhs += cut * lhs_stride;
        second.rhs += cut * rhs_stride;
        second.out += cut * out_stride;
        return Some((first, second));
    }
    let (mut first, mut second) = (piece.clone(), piece.clone());
    if form.rows >= form.cols {
        let cut = middle(form.rows)?;
        first.form.rows = cut;
        second.form.rows -= cut;
        second.lhs += cut * form.lhs.row;
        second.out += cut * form.out.row;
        second.bias += if form.bias == Some(Axis::Rows) {
            cut
        } else {
            0
        };
    } else {
        let cut = middle(form.cols)?;
        first.form.cols = cut;
        second.form.cols -= cut;
        second.rhs += cut * form.rhs.col;
        second.out += cut * form.out.col;
        second.bias += if form.bias == Some(Axis::Cols) {
            cut
        } else {
            0
        };
    }
    Some((first, second))
}

/// Where rows and columns may be cut: a multiple of every tile and of every load.
const STEP: usize = 768;

/// A place to cut a length at, about its middle.
fn middle(len: usize) -> Option<usize> {
    (len > STEP).then(|| (len / 2).next_multiple_of(STEP))
}
