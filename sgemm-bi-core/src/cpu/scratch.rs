//! Working memory: aligned buffers that calls borrow and give back.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Mutex;

/// Alignment of a buffer: a page, so that panels start on cache lines and pages are not shared.
const ALIGNMENT: usize = 4096;

/// A buffer of f32 that grows to what is asked of it.
struct Buffer {
    start: *mut f32,
    len: usize,
}

// SAFETY: the buffer owns its memory, which holds plain numbers.
unsafe impl Send for Buffer {}

impl Buffer {
    const EMPTY: Buffer = Buffer {
        start: std::ptr::null_mut(),
        len: 0,
    };

    fn layout(len: usize) -> Layout {
        let bytes = len * size_of::<f32>();
        Layout::from_size_align(bytes, ALIGNMENT).expect("scratch sizes are bounded")
    }

    /// The start of at least `len` values, of any content.
    fn reserve(&mut self, len: usize) -> *mut f32 {
        if self.len < len {
            *self = Buffer::EMPTY;
            let layout = Buffer::layout(len);
            // SAFETY: `len` is more than the zero of an empty buffer.
            let start = unsafe { alloc_zeroed(layout) };
            if start.is_null() {
                handle_alloc_error(layout);
            }
            *self = Buffer {
                start: start.cast(),
                len,
            };
        }
        self.start
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated by `reserve` with this layout.
            unsafe { dealloc(self.start.cast(), Buffer::layout(self.len)) }
        }
    }
}

/// Values that each buffer of a [`Scratch`] holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub left: usize,
    pub right: usize,
    pub partial: usize,
    pub totals: usize,
}

/// The buffers of a [`Scratch`].
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    /// Packed panels of the first operand.
    pub left: *mut f32,
    /// Packed panels of the second operand.
    pub right: *mut f32,
    /// Chains of the chunk in progress.
    pub partial: *mut f32,
    /// Sums of finished chunks that the output's type cannot hold.
    pub totals: *mut f32,
}

/// The working memory of one product in progress.
pub(super) struct Scratch {
    left: Buffer,
    right: Buffer,
    partial: Buffer,
    totals: Buffer,
}

impl Scratch {
    const EMPTY: Scratch = Scratch {
        left: Buffer::EMPTY,
        right: Buffer::EMPTY,
        partial: Buffer::EMPTY,
        totals: Buffer::EMPTY,
    };

    /// Buffers of at least these sizes, of any content.
    pub fn reserve(&mut self, sizes: Sizes) -> Buffers {
        Buffers {
            left: self.left.reserve(sizes.left),
            right: self.right.reserve(sizes.right),
            partial: self.partial.reserve(sizes.partial),
            totals: self.totals.reserve(sizes.totals),
        }
    }
}

/// The scratch that an engine's calls have given back.
pub(super) struct Pool(Mutex<Vec<Scratch>>);

impl Pool {
    pub const fn new() -> Self {
        Pool(Mutex::new(Vec::new()))
    }

    /// Runs `work` with a scratch that no other call uses.
    pub fn with<Out>(&self, work: impl FnOnce(&mut Scratch) -> Out) -> Out {
        let pool = || {
            self.0
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        };
        let taken = pool().pop();
        let mut scratch = taken.unwrap_or(Scratch::EMPTY);
        let out = work(&mut scratch);
        pool().push(scratch);
        out
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pool")
    }
}
