//! Floats that begin at a cache line, so that vector loads never straddle two, and rows that are written past the caches.

use std::ops::{Deref, DerefMut};

use crate::level::Level;

/// One cache line of floats.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

// SAFETY: an array of floats without padding (64 bytes of data, 64 bytes of alignment); zero is valid.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above; every bit pattern is a valid array of floats.
unsafe impl bytemuck::Pod for Line {}

/// A buffer of floats that begins at a cache line.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    lines: Vec<Line>,
    len: usize,
}

impl Lines {
    /// `len` zeros.
    pub fn zeros(len: usize) -> Lines {
        Lines { lines: vec![Line([0.0; LINE]); len.div_ceil(LINE)], len }
    }

    /// Gives it room for `len` floats, of unspecified content.
    pub(crate) fn make_room(&mut self, len: usize) {
        let needed = len.div_ceil(LINE);
        if self.lines.len() < needed {
            self.lines.resize(needed, Line([0.0; LINE]));
        }
        self.len = len;
    }
}

impl Deref for Lines {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for Lines {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl AsRef<[f32]> for Lines {
    fn as_ref(&self) -> &[f32] {
        self
    }
}

/// Copies each second row over the first. Rows of whole cache lines go to memory without the lines being read first, and push nothing
/// out of the caches: for rows here and there in buffers that are much larger than these.
///
/// # Panics
/// When two rows of a pair differ in length.
pub fn store_rows<'a>(rows: impl Iterator<Item = (&'a mut [f32], &'a [f32])>) {
    store_rows_at(Level::detect(), rows);
}

fn store_rows_at<'a>(level: Level, rows: impl Iterator<Item = (&'a mut [f32], &'a [f32])>) {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) => {
            let _fence = avx2::Fence;
            for (to, from) in rows {
                assert_eq!(to.len(), from.len(), "rows of one length");
                if to.as_ptr().cast::<Line>().is_aligned() && to.len().is_multiple_of(LINE) {
                    // SAFETY: a `Level::Avx2` exists only where the processor has it; the row begins at a line and is whole lines.
                    unsafe { avx2::store(to, from) };
                } else {
                    to.copy_from_slice(from);
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx2(_) => rows.for_each(|(to, from)| to.copy_from_slice(from)),
        Level::Portable => rows.for_each(|(to, from)| to.copy_from_slice(from)),
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_ps, _mm256_stream_ps};

    /// Ends with all stores before it being seen by other threads before those after it, which the stores here are not by themselves.
    pub(super) struct Fence;

    impl Drop for Fence {
        fn drop(&mut self) {
            // SAFETY: every x86-64 has the instruction.
            unsafe { _mm_sfence() };
        }
    }

    /// # Safety
    /// The processor has AVX2; `to` begins at a cache line and both are the same number of whole lines.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn store(to: &mut [f32], from: &[f32]) {
        for (to, from) in to.as_chunks_mut::<8>().0.iter_mut().zip(from.as_chunks::<8>().0) {
            // SAFETY: both are eight floats, and `to` begins at a multiple of 32 bytes.
            unsafe { _mm256_stream_ps(to.as_mut_ptr(), _mm256_loadu_ps(from.as_ptr())) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_place_and_length() {
        for level in Level::all() {
            for start in [0, 1, 8, 16, 24, 48] {
                for len in [0, 1, 8, 15, 16, 17, 64, 80, 128] {
                    let from: Vec<f32> = (0..len).map(|i| i as f32 + 1.0).collect();
                    let mut to = Lines::zeros(start + len + 5);
                    store_rows_at(level, [(&mut to[start..start + len], &from[..])].into_iter());
                    let expected: Vec<f32> = vec![0.0; start].into_iter().chain(from).chain([0.0; 5]).collect();
                    assert_eq!(*to, *expected, "{level:?}: {len} from {start}");
                }
            }
        }
    }

    #[test]
    fn buffers_begin_at_a_line() {
        for len in [0, 1, 16, 17, 1000] {
            let lines = Lines::zeros(len);
            assert!(lines.as_ptr().cast::<Line>().is_aligned() && lines.len() == len);
            assert!(lines.iter().all(|v| *v == 0.0));
        }
    }
}
