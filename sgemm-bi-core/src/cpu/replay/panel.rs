//! Panels: operands split into sign, significand and exponent once, laid out for the lanes.

use std::ops::Range;

use crate::tensor_core::{Format, Number};
use crate::{Element, View};

/// Output columns that are computed side by side.
pub(super) const LANES: usize = 16;

/// Exponent of a zero: no sum with another operand's reaches the exponent of a zero term, so a
/// zero never decides the largest exponent of a block (the value carried in bounds that one).
const ZERO_EXPONENT: i16 = -1000;

/// Marks of the values that the lanes do not compute.
const INFINITY_MARK: i16 = 1000;
const NAN_MARK: i16 = 1001;

/// `significand` · 2^(`exponent` − the format's fraction bits), or a marked special value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    pub(super) significand: i16,
    pub(super) exponent: i16,
}

impl Split {
    const ZERO: Self = Split {
        significand: 0,
        exponent: ZERO_EXPONENT,
    };

    #[inline(always)]
    fn new<T: Element>(value: T) -> Self {
        let format = Format::from(T::DTYPE);
        let signed = |negative: bool, magnitude: i16| if negative { -magnitude } else { magnitude };
        match format.split(value.bits()) {
            Number::Nan => Split {
                significand: 0,
                exponent: NAN_MARK,
            },
            Number::Infinity { negative } => Split {
                significand: signed(negative, 1),
                exponent: INFINITY_MARK,
            },
            Number::Finite { significand: 0, .. } => Split::ZERO,
            Number::Finite {
                negative,
                exponent,
                significand,
            } => Split {
                significand: signed(negative, (significand >> format.spare_bits()) as i16),
                exponent: exponent as i16,
            },
        }
    }

    fn is_special(self) -> bool {
        self.exponent >= INFINITY_MARK
    }

    /// The value again. (A zero comes back positive, which no block can tell.)
    pub(super) fn number(self, format: Format) -> Number {
        let negative = self.significand < 0;
        match self.exponent {
            ZERO_EXPONENT => Number::ZERO,
            INFINITY_MARK => Number::Infinity { negative },
            NAN_MARK => Number::Nan,
            exponent => Number::Finite {
                negative,
                exponent: i32::from(exponent),
                significand: u32::from(self.significand.unsigned_abs()) << format.spare_bits(),
            },
        }
    }
}

/// [`LANES`] neighbouring columns' elements at one place of the reduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitLanes {
    pub(super) significands: [i16; LANES],
    pub(super) exponents: [i16; LANES],
}

impl SplitLanes {
    const ZERO: Self = SplitLanes {
        significands: [0; LANES],
        exponents: [ZERO_EXPONENT; LANES],
    };

    pub(super) fn lane(&self, lane: usize) -> Split {
        Split {
            significand: self.significands[lane],
            exponent: self.exponents[lane],
        }
    }
}

/// Rows of the first operand, each cut into blocks and padded with zeros to whole ones.
pub(super) struct Lhs {
    block_length: usize,
    blocks: usize,
    elements: Vec<Split>,
    special: Vec<bool>,
}

impl Lhs {
    /// An empty panel for `rows` rows and up to `depth` elements of the reduction.
    pub(super) fn new(rows: usize, depth: usize, block_length: usize) -> Self {
        let blocks = depth.div_ceil(block_length);
        Lhs {
            block_length,
            blocks: 0,
            elements: Vec::with_capacity(rows * blocks * block_length),
            special: Vec::with_capacity(rows * blocks),
        }
    }

    /// Splits the elements that `view` places at `rows` and `depth`.
    pub(super) fn fill<T: Element>(
        &mut self,
        source: &[T],
        view: View,
        rows: Range<usize>,
        depth: Range<usize>,
    ) {
        self.blocks = depth.len().div_ceil(self.block_length);
        self.elements.clear();
        self.special.clear();
        for row in rows {
            let start = self.elements.len();
            let line = view.offset + row * view.row_stride;
            let elements = depth.clone().map(|r| source[line + r * view.col_stride]);
            self.elements.extend(elements.map(Split::new));
            let padded = start + self.blocks * self.block_length;
            self.elements.resize(padded, Split::ZERO);
            let blocks = self.elements[start..].chunks_exact(self.block_length);
            let special = blocks.map(|block| block.iter().any(|split| split.is_special()));
            self.special.extend(special);
        }
    }

    /// The blocks of a row, and whether each holds an infinity or NaN.
    #[inline(always)]
    pub(super) fn blocks<const LENGTH: usize>(
        &self,
        row: usize,
    ) -> impl Iterator<Item = (&[Split; LENGTH], bool)> {
        let blocks = row * self.blocks..(row + 1) * self.blocks;
        let special = self.special[blocks.clone()].iter().copied();
        let (elements, _) = self.elements.as_chunks();
        elements[blocks].iter().zip(special)
    }
}

/// Groups of [`LANES`] columns of the second operand, each cut into blocks and padded with zeros
/// to whole ones.
pub(super) struct Rhs {
    block_length: usize,
    blocks: usize,
    elements: Vec<SplitLanes>,
    special: Vec<u16>,
}

impl Rhs {
    /// An empty panel for `groups` groups and up to `depth` elements of the reduction.
    pub(super) fn new(groups: usize, depth: usize, block_length: usize) -> Self {
        let blocks = depth.div_ceil(block_length);
        Rhs {
            block_length,
            blocks: 0,
            elements: Vec::with_capacity(groups * blocks * block_length),
            special: Vec::with_capacity(groups * blocks),
        }
    }

    /// Splits the elements that `view` places at `depth` and `cols`.
    pub(super) fn fill<T: Element>(
        &mut self,
        source: &[T],
        view: View,
        cols: Range<usize>,
        depth: Range<usize>,
    ) {
        self.blocks = depth.len().div_ceil(self.block_length);
        self.elements.clear();
        self.special.clear();
        for first in cols.clone().step_by(LANES) {
            let start = self.elements.len();
            let padded = start + self.blocks * self.block_length;
            self.elements.resize(padded, SplitLanes::ZERO);
            let lanes = cols.end.min(first + LANES) - first;
            for (lanes_at, r) in self.elements[start..].iter_mut().zip(depth.clone()) {
                let line = view.offset + r * view.row_stride;
                for lane in 0..lanes {
                    let split = Split::new(source[line + (first + lane) * view.col_stride]);
                    lanes_at.significands[lane] = split.significand;
                    lanes_at.exponents[lane] = split.exponent;
                }
            }
            let blocks = self.elements[start..].chunks_exact(self.block_length);
            self.special.extend(blocks.map(special_lanes));
        }
    }

    /// Number of blocks of a group, and of a row of the other panel.
    #[inline(always)]
    pub(super) fn groups(&self) -> usize {
        self.special.len() / self.blocks.max(1)
    }

    /// The blocks of a group, and a bit for each lane that holds an infinity or NaN.
    #[inline(always)]
    pub(super) fn blocks<const LENGTH: usize>(
        &self,
        group: usize,
    ) -> impl Iterator<Item = (&[SplitLanes; LENGTH], u16)> {
        let blocks = group * self.blocks..(group + 1) * self.blocks;
        let special = self.special[blocks.clone()].iter().copied();
        let (elements, _) = self.elements.as_chunks();
        elements[blocks].iter().zip(special)
    }
}

/// A bit for each lane of a block that holds an infinity or NaN.
fn special_lanes(block: &[SplitLanes]) -> u16 {
    let mut largest = [ZERO_EXPONENT; LANES];
    for lanes in block {
        for (largest, &exponent) in largest.iter_mut().zip(&lanes.exponents) {
            *largest = exponent.max(*largest);
        }
    }
    let specials = largest.iter().map(|&exponent| exponent >= INFINITY_MARK);
    let bits = specials
        .enumerate()
        .map(|(lane, special)| u16::from(special) << lane);
    bits.fold(0, |mask, bit| mask | bit)
}
