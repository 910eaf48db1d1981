//! Working memory that grows once and is then reused: one free list of buffers a thread.
//!
//! A buffer is *taken out* of the list while it is in use. A thread that waits inside rayon may run another
//! kernel meanwhile; that kernel then finds another buffer instead of a locked one.

use std::cell::RefCell;

use crate::lines::Lines;

thread_local! {
    static FREE: RefCell<Vec<Lines>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of floats aligned to a cache line; it goes back to its thread's list when dropped.
pub(crate) struct Scratch(Lines);

impl Scratch {
    /// A buffer of `len` floats of unspecified content.
    pub(crate) fn take(len: usize) -> Scratch {
        let mut lines = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
        lines.make_room(len);
        Scratch(lines)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.0);
        // A thread that is ending has no list any more; then the buffer is freed.
        let _ = FREE.try_with(|free| free.borrow_mut().push(lines));
    }
}

impl std::ops::Deref for Scratch {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl std::ops::DerefMut for Scratch {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
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
