//! Working memory: aligned buffers that calls borrow and give back.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::sync::Mutex;

/// Alignment of a buffer: a page, so that panels start on cache lines and pages are not shared.
const PAGE: usize = 4096;

/// What the processor and the system can map as one page, where they can. A product walks through
/// far more small pages than a translation cache holds.
const HUGE_PAGE: usize = 2 << 20;

/// A buffer of f32 that grows to what is asked of it.
struct Buffer {
    start: *mut f32,
    bytes: usize,
}

// SAFETY: the buffer owns its memory, which holds plain numbers.
unsafe impl Send for Buffer {}

impl Buffer {
    const EMPTY: Buffer = Buffer {
        start: std::ptr::null_mut(),
        bytes: 0,
    };

    fn layout(bytes: usize) -> Layout {
        let alignment = if bytes < HUGE_PAGE { PAGE } else { HUGE_PAGE };
        Layout::from_size_align(bytes, alignment).expect("scratch sizes are bounded")
    }

    /// The start of at least `bytes` bytes, of any content.
    fn reserve(&mut self, bytes: usize) -> *mut f32 {
        if self.bytes < bytes {
            *self = Buffer::EMPTY;
            let bytes = buffer_bytes(bytes);
            let layout = Buffer::layout(bytes);
            // SAFETY: the size is more than the zero of an empty buffer.
            let start = unsafe { alloc(layout) };
            if start.is_null() {
                handle_alloc_error(layout);
            }
            advise_huge_pages(start, bytes);
            // SAFETY: just allocated with this size. Written so that any content is defined, after
            // the advice, which is about pages that nothing has touched.
            unsafe { start.write_bytes(0, bytes) };
            *self = Buffer {
                start: start.cast(),
                bytes,
            };
        }
        self.start
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated by `reserve` with this layout.
            unsafe { dealloc(self.start.cast(), Buffer::layout(self.bytes)) }
        }
    }
}

/// Bytes of the buffer that holds so many: whole huge pages where it has more than half of one.
const fn buffer_bytes(bytes: usize) -> usize {
    if bytes > HUGE_PAGE / 2 {
        bytes.next_multiple_of(HUGE_PAGE)
    } else {
        bytes
    }
}

/// Asks the system for huge pages; it may refuse, which costs speed alone.
fn advise_huge_pages(start: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    if bytes >= HUGE_PAGE {
        // SAFETY: a range of whole pages inside one allocation; the advice changes no content.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
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

// SAFETY: addresses of plain numbers; who uses a part of a buffer says why no other thread does.
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

/// The working memory of one product in progress: one buffer, shared out.
pub(super) struct Scratch(Buffer);

impl Scratch {
    const EMPTY: Scratch = Scratch(Buffer::EMPTY);

    /// Buffers of at least these sizes, of any content, each on pages of its own.
    pub fn reserve(&mut self, sizes: Sizes) -> Buffers {
        let start = self.0.reserve(scratch_bytes(sizes));
        let mut next = 0;
        let mut take = |values| {
            let taken = start.wrapping_byte_add(next);
            next += page_bytes(values);
            taken
        };
        Buffers {
            left: take(sizes.left),
            right: take(sizes.right),
            partial: take(sizes.partial),
            totals: take(sizes.totals),
        }
    }
}

/// Bytes of the pages that hold so many values.
const fn page_bytes(values: usize) -> usize {
    (values * size_of::<f32>()).next_multiple_of(PAGE)
}

/// Bytes that a scratch takes for buffers of these sizes.
pub(super) const fn scratch_bytes(sizes: Sizes) -> usize {
    let Sizes {
        left,
        right,
        partial,
        totals,
    } = sizes;
    let bytes = page_bytes(left) + page_bytes(right) + page_bytes(partial) + page_bytes(totals);
    buffer_bytes(bytes)
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
