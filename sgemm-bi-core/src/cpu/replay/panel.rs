//! Panels: operands widened, with their exponents, laid out for the kernel.

use std::ops::Range;

use crate::cpu::isa::{Isa, Strided};
use crate::{Dtype, Element, View};

/// Exponent of a zero: no sum with another operand's reaches the exponent of a product that is not
/// zero, so a zero decides nothing.
pub(super) const ZERO_EXPONENT: i16 = -1000;

/// The exponent of an operand as contract section 5 counts it: that of the format's smallest normal
/// for subnormals. Infinities and NaN have any.
#[inline(always)]
fn exponent(value: f32, smallest: i32) -> i16 {
    let twice = value.to_bits() << 1;
    let exponent = ((twice >> 24) as i32 - 127).max(smallest);
    if twice == 0 {
        ZERO_EXPONENT
    } else {
        exponent as i16
    }
}

/// Whether a value is an infinity or NaN.
#[inline(always)]
fn special(value: f32) -> bool {
    value.to_bits() << 1 >= 0xff << 24
}

/// The exponent of a format's smallest normal value.
fn smallest_exponent(dtype: Dtype) -> i32 {
    match dtype {
        Dtype::F16 => -14,
        _ => -126,
    }
}

/// Rows of the first operand, each padded with zeros to whole blocks.
pub(super) struct Lhs {
    block_length: usize,
    /// Blocks of a row.
    pub(super) blocks: usize,
    pub(super) values: Vec<f32>,
    /// Each exponent twice, in both halves of a word.
    pub(super) exponents: Vec<i32>,
    /// Whether a block holds an infinity or NaN.
    pub(super) special: Vec<bool>,
}

impl Lhs {
    pub(super) fn new(block_length: usize) -> Self {
        Lhs {
            block_length,
            blocks: 0,
            values: Vec::new(),
            exponents: Vec::new(),
            special: Vec::new(),
        }
    }

    /// Values of a row.
    pub(super) fn width(&self) -> usize {
        self.blocks * self.block_length
    }

    /// Takes the elements that `view` places at `rows` and `depth`.
    #[inline(always)]
    pub(super) fn fill<I: Isa, T: Element>(
        &mut self,
        isa: I,
        source: &[T],
        view: View,
        rows: Range<usize>,
        depth: Range<usize>,
    ) {
        self.blocks = depth.len().div_ceil(self.block_length);
        let width = self.width();
        self.values.clear();
        self.values.resize(rows.len() * width, 0.0);
        let at = |row, r| view.offset + row * view.row_stride + r * view.col_stride;
        if view.col_stride == 1 {
            for (line, row) in self.values.chunks_exact_mut(width).zip(rows) {
                let from = &source[at(row, depth.start)..][..depth.len()];
                widen(isa, from, &mut line[..from.len()]);
            }
        } else {
            // Neighbouring rows lie side by side: they are what is read in turn.
            for (i, r) in depth.enumerate() {
                for (j, row) in rows.clone().enumerate() {
                    self.values[j * width + i] = source[at(row, r)].widen();
                }
            }
        }
        let smallest = smallest_exponent(T::DTYPE);
        self.exponents.clear();
        self.exponents.resize(self.values.len(), 0);
        for (to, &value) in self.exponents.iter_mut().zip(&self.values) {
            let exponent = i32::from(exponent(value, smallest));
            *to = exponent << 16 | exponent & 0xffff;
        }
        self.special.clear();
        let blocks = self.values.chunks_exact(self.block_length);
        self.special
            .extend(blocks.map(|block| block.iter().fold(false, |any, &v| any | special(v))));
    }
}

/// Groups of columns of the second operand, each padded with zeros to whole blocks. In a group the
/// columns' values at one place of the reduction lie side by side.
pub(super) struct Rhs {
    block_length: usize,
    /// Columns of a group: twice the lanes of a vector.
    pub(super) group: usize,
    /// Blocks of a group.
    pub(super) blocks: usize,
    pub(super) values: Vec<f32>,
    pub(super) exponents: Vec<i16>,
    /// For each block of a group, a bit for each column that holds an infinity or NaN.
    pub(super) special: Vec<u32>,
}

impl Rhs {
    pub(super) fn new(group: usize, block_length: usize) -> Self {
        Rhs {
            block_length,
            group,
            blocks: 0,
            values: Vec::new(),
            exponents: Vec::new(),
            special: Vec::new(),
        }
    }

    /// Places of the reduction in a group.
    pub(super) fn height(&self) -> usize {
        self.blocks * self.block_length
    }

    /// Takes the elements that `view` places at `depth` and `cols`.
    #[inline(always)]
    pub(super) fn fill<I: Isa, T: Element>(
        &mut self,
        isa: I,
        source: &[T],
        view: View,
        cols: Range<usize>,
        depth: Range<usize>,
    ) {
        self.blocks = depth.len().div_ceil(self.block_length);
        let (height, group) = (self.height(), self.group);
        let groups = cols.len().div_ceil(group);
        self.values.clear();
        self.values.resize(groups * height * group, 0.0);
        let panels = self.values.chunks_exact_mut(height * group);
        for (panel, first) in panels.zip(cols.clone().step_by(group)) {
            let cols = first..cols.end.min(first + group);
            fill_group(isa, source, view, cols, depth.clone(), panel, group);
        }
        let smallest = smallest_exponent(T::DTYPE);
        self.exponents.clear();
        self.exponents.resize(self.values.len(), 0);
        for (to, &value) in self.exponents.iter_mut().zip(&self.values) {
            *to = exponent(value, smallest);
        }
        self.special.clear();
        let blocks = self.values.chunks_exact(self.block_length * group);
        self.special.extend(blocks.map(|block| {
            if !block.iter().fold(false, |any, &v| any | special(v)) {
                return 0;
            }
            let of = |(i, &v): (usize, &f32)| u32::from(special(v)) << (i % group);
            block
                .iter()
                .enumerate()
                .map(of)
                .fold(0, |mask, bit| mask | bit)
        }));
    }
}

/// Fills the rows of a group's panel, `group` values each.
#[inline(always)]
fn fill_group<I: Isa, T: Element>(
    isa: I,
    source: &[T],
    view: View,
    cols: Range<usize>,
    depth: Range<usize>,
    panel: &mut [f32],
    group: usize,
) {
    let at = |r, col| view.offset + r * view.row_stride + col * view.col_stride;
    if view.col_stride == 1 {
        for (line, r) in panel.chunks_exact_mut(group).zip(depth) {
            let from = &source[at(r, cols.start)..][..cols.len()];
            widen(isa, from, &mut line[..from.len()]);
        }
        return;
    }
    let mut done = 0;
    if view.row_stride == 1 {
        for half in (0..cols.len()).step_by(I::LANES) {
            let lines = (cols.len() - half).min(I::LANES);
            done = 0;
            while done + I::LANES <= depth.len() {
                let first = at(depth.start + done, cols.start + half);
                let last = at(depth.start + done, cols.start + half + lines - 1);
                assert!(last + I::LANES <= source.len() && done + I::LANES <= panel.len() / group);
                let from = Strided {
                    start: source[first..].as_ptr(),
                    stride: view.col_stride,
                };
                let to = Strided {
                    start: panel[done * group + half..].as_mut_ptr(),
                    stride: group,
                };
                // SAFETY: the lines' elements lie inside the source, and LANES rows of the panel
                // have LANES values from column `half` on, for a group is two vectors.
                unsafe { isa.transpose(from, lines, to) };
                done += I::LANES;
            }
        }
    }
    for i in done..depth.len() {
        for (lane, col) in cols.clone().enumerate() {
            panel[i * group + lane] = source[at(depth.start + i, col)].widen();
        }
    }
}

/// Widens a line.
#[inline(always)]
fn widen<I: Isa, T: Element>(isa: I, from: &[T], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    let mut i = 0;
    while i + I::LANES <= from.len() {
        // SAFETY: LANES elements from i on lie inside both.
        unsafe { isa.store(to.as_mut_ptr().add(i), isa.load(from.as_ptr().add(i))) };
        i += I::LANES;
    }
    for (to, from) in to[i..].iter_mut().zip(&from[i..]) {
        *to = from.widen();
    }
}
