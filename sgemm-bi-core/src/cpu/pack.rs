//! Packing: a block of an operand, widened and laid out in the order in which the micro-kernel
//! reads it.

use super::isa::{Isa, Strided, prefetch};
use crate::Element;

/// A block of an operand: line `i` of the panels, element `r` of the reduction, lies
/// `i · line_stride + r · depth_stride` elements after `start`.
///
/// The lines are the rows of the first operand or the columns of the second: to packing both
/// operands look alike.
#[derive(Clone, Copy)]
pub(super) struct Block<T> {
    pub start: *const T,
    pub line_stride: usize,
    pub depth_stride: usize,
    pub lines: usize,
    pub depth: usize,
}

/// Where panels lie: each holds `depth` groups of `width` lines.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub start: *mut f32,
    pub width: usize,
    /// Distance between panels, from [`panel_stride`].
    pub stride: usize,
}

/// Values from a panel to the next: a vector more than it holds, for the last store of a panel
/// may end after it, and an odd number of cache lines, so that panels do not share cache sets.
pub(super) const fn panel_stride(width: usize, depth: usize) -> usize {
    const LINE: usize = 16;
    let lines = (width * depth).div_ceil(LINE) + 1;
    (lines | 1) * LINE
}

/// Elements of the reduction that one pass over neighbouring lines packs: few enough for the
/// panels' open cache lines to stay in L1, enough to fill them.
const PASS: usize = 8;

/// Elements up to which copying a line asks for as many that follow: a short piece is one of
/// several of its line, and the next is wanted soon. Copying a longer piece asks for lines
/// [`LINES_AHEAD`] instead: each begins on another page, where the processor's own prefetching
/// starts anew.
const SHORT_PIECE: usize = 128;

/// See [`SHORT_PIECE`].
const LINES_AHEAD: usize = 2;

/// Packs a block; lines missing from the last panel become +0.0 up to a whole vector.
///
/// # Safety
/// The block's elements are valid for reading, the panels (`lines` over `width`, rounded up, each
/// [`panel_stride`] long) for writing. `width` is at most `I::LANES` or a multiple of it.
#[inline(always)]
pub(super) unsafe fn pack<I: Isa, T: Element>(isa: I, block: Block<T>, panels: Panels) {
    debug_assert!(panels.width <= I::LANES || panels.width.is_multiple_of(I::LANES));
    isa.vectorize(
        #[inline(always)]
        move || {
            // SAFETY: the caller's.
            unsafe {
                if block.depth_stride == 1 {
                    pack_along_depth(isa, block, panels);
                } else if block.line_stride == 1 {
                    pack_along_lines(isa, block, panels);
                } else {
                    pack_any(isa, block, panels);
                }
            }
        },
    );
}

/// Widens a block whose lines are contiguous and keeps them as they lie, `line_stride` values
/// apart at `to`.
///
/// # Safety
/// The block's elements are valid for reading; each line, rounded up to a whole vector, for
/// writing.
#[inline(always)]
pub(super) unsafe fn copy_lines<I: Isa, T: Element>(
    isa: I,
    block: Block<T>,
    to: Strided<*mut f32>,
) {
    isa.vectorize(
        #[inline(always)]
        move || {
            let whole = block.depth / I::LANES * I::LANES;
            let ahead = match block.depth {
                ..=SHORT_PIECE => block.depth,
                _ => LINES_AHEAD * block.line_stride,
            };
            for line in 0..block.lines {
                let from = block.start.wrapping_add(line * block.line_stride);
                let to = to.start.wrapping_add(line * to.stride);
                // SAFETY: elements of the line; the stores stay inside its whole vectors.
                unsafe {
                    for r in (0..whole).step_by(I::LANES) {
                        let from = from.wrapping_add(r);
                        prefetch(from.wrapping_add(ahead));
                        isa.store(to.wrapping_add(r), isa.load(from));
                    }
                    if whole < block.depth {
                        let rest = isa.load_first(from.wrapping_add(whole), block.depth - whole);
                        isa.store(to.wrapping_add(whole), rest);
                    }
                }
            }
        },
    );
}

/// Each line is contiguous: transposes in registers.
///
/// # Safety
/// That of [`pack`].
#[inline(always)]
unsafe fn pack_along_depth<I: Isa, T: Element>(isa: I, block: Block<T>, panels: Panels) {
    let whole = block.depth / I::LANES * I::LANES;
    for (index, first_line) in (0..block.lines).step_by(panels.width).enumerate() {
        let panel = panels.start.wrapping_add(index * panels.stride);
        let lines = panels.width.min(block.lines - first_line);
        for first in (0..lines).step_by(I::LANES) {
            let rows = I::LANES.min(lines - first);
            let line = block
                .start
                .wrapping_add((first_line + first) * block.line_stride);
            for r in (0..whole).step_by(I::LANES) {
                let from = Strided {
                    start: line.wrapping_add(r),
                    stride: block.line_stride,
                };
                let to = Strided {
                    start: panel.wrapping_add(r * panels.width + first),
                    stride: panels.width,
                };
                for i in 0..rows {
                    prefetch(from.start.wrapping_add(i * from.stride + 4 * I::LANES));
                }
                // SAFETY: rows of the block and whole vectors of its depth; the stores stay
                // inside the panel and the vector after it.
                unsafe {
                    // A constant number of rows leaves no branches.
                    match rows == I::LANES {
                        true => isa.transpose(from, I::LANES, to),
                        false => isa.transpose(from, rows, to),
                    }
                }
            }
        }
    }
    let rest = Block {
        start: block.start.wrapping_add(whole),
        depth: block.depth - whole,
        ..block
    };
    let panels = Panels {
        start: panels.start.wrapping_add(whole * panels.width),
        ..panels
    };
    // SAFETY: the caller's, for the end of the depth.
    unsafe { pack_any(isa, rest, panels) };
}

/// Neighbouring lines are contiguous: copies.
///
/// # Safety
/// That of [`pack`].
#[inline(always)]
unsafe fn pack_along_lines<I: Isa, T: Element>(isa: I, block: Block<T>, panels: Panels) {
    for pass in (0..block.depth).step_by(PASS) {
        let depth = pass..block.depth.min(pass + PASS);
        for (index, first_line) in (0..block.lines).step_by(panels.width).enumerate() {
            let panel = panels.start.wrapping_add(index * panels.stride);
            let lines = panels.width.min(block.lines - first_line);
            let whole = lines == panels.width
                && block.lines - first_line >= panels.width.next_multiple_of(I::LANES);
            for r in depth.clone() {
                let from = block
                    .start
                    .wrapping_add(r * block.depth_stride + first_line);
                let to = panel.wrapping_add(r * panels.width);
                for first in (0..lines).step_by(I::LANES) {
                    let from = from.wrapping_add(first);
                    // The pages of a pass are too many for the processor's own prefetching.
                    prefetch(from.wrapping_add(block.depth_stride.wrapping_mul(PASS)));
                    // SAFETY: lines first.. of the block's element r, no more than there are; the
                    // store stays inside the panel and the vector after it.
                    unsafe {
                        let values = match whole {
                            true => isa.load(from),
                            false => {
                                isa.load_first(from, I::LANES.min(block.lines - first_line - first))
                            }
                        };
                        isa.store(to.wrapping_add(first), values);
                    }
                }
            }
        }
    }
}

/// Any strides: element by element.
///
/// # Safety
/// That of [`pack`].
#[inline(always)]
unsafe fn pack_any<I: Isa, T: Element>(isa: I, block: Block<T>, panels: Panels) {
    for (index, first_line) in (0..block.lines).step_by(panels.width).enumerate() {
        let panel = panels.start.wrapping_add(index * panels.stride);
        let lines = panels.width.min(block.lines - first_line);
        let from = block.start.wrapping_add(first_line * block.line_stride);
        for r in 0..block.depth {
            let from = from.wrapping_add(r * block.depth_stride);
            let to = panel.wrapping_add(r * panels.width);
            // SAFETY: lines of the block; the stores stay inside the panel and the vector after
            // it, and the vector of zeros goes before the lines that it covers.
            unsafe {
                isa.store(
                    to.wrapping_add((lines - 1) / I::LANES * I::LANES),
                    isa.zero(),
                );
                for i in 0..lines {
                    let value = from.wrapping_add(i * block.line_stride).read();
                    to.wrapping_add(i).write(value.widen());
                }
            }
        }
    }
}
