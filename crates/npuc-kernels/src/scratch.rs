//! Working memory that grows once and is then reused: one free list of buffers a thread.
//!
//! A buffer is *taken out* of the list while it is in use. A thread that waits inside rayon may run another
//! kernel meanwhile; that kernel then finds another buffer instead of a locked one.

use std::cell::RefCell;

/// One cache line of floats; buffers are made of lines so that vector loads never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

// SAFETY: an array of floats without padding (64 bytes of data, 64 bytes of alignment); zero is valid.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above; every bit pattern is a valid array of floats.
unsafe impl bytemuck::Pod for Line {}

thread_local! {
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of floats aligned to a cache line; it goes back to its thread's list when dropped.
pub(crate) struct Scratch {
    lines: Vec<Line>,
    len: usize,
}

impl Scratch {
    /// A buffer of `len` floats of unspecified content.
    pub(crate) fn take(len: usize) -> Scratch {
        let mut lines = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
        let needed = len.div_ceil(LINE);
        if lines.len() < needed {
            lines.resize(needed, Line([0.0; LINE]));
        }
        Scratch { lines, len }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        // A thread that is ending has no list any more; then the buffer is freed.
        let _ = FREE.try_with(|free| free.borrow_mut().push(lines));
    }
}

impl std::ops::Deref for Scratch {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl std::ops::DerefMut for Scratch {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// A slice that several threads write at once, each its own part.
pub(crate) struct SharedOut<'a> {
    ptr: *mut f32,
    len: usize,
    marker: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: it is an exclusive borrow of floats; `part` makes the caller promise that parts are disjoint.
unsafe impl Send for SharedOut<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedOut<'_> {}

impl<'a> SharedOut<'a> {
    pub(crate) fn new(out: &'a mut [f32]) -> Self {
        SharedOut { ptr: out.as_mut_ptr(), len: out.len(), marker: std::marker::PhantomData }
    }

    /// The part `start..start + len`.
    ///
    /// # Safety
    /// No other live part, on any thread, may overlap it.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [f32] {
        assert!(start <= self.len && len <= self.len - start, "part outside of the slice");
        // SAFETY: inside the slice by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }
}
