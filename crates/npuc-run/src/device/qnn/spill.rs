//! Memory that rests goes to a file: it keeps its address and its content, and the system can take its pages.
//!
//! The library keeps what it has unpacked of one graph while it prepares the next, and all of it while it writes the binary, but seldom
//! looks at it. Without a swap file such memory could not leave.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::ptr;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect};

/// Blocks below this stay: they are many, and hold little.
const LEAST_BYTES: usize = 1 << 16;
/// Moved at a time.
const PIECE_BYTES: usize = 64 << 20;
const PAGE_BYTES: usize = 1 << 12;
/// What the file has behind its content, as a hole, so that a block can grow in place.
const HOLE_BYTES: u64 = 1 << 32;

/// A file without a name that memory of this process was moved to.
pub(super) struct Spill {
    file: File,
    len_bytes: u64,
}

impl Spill {
    /// An empty file in the folder.
    pub(super) fn in_folder(folder: &Path) -> io::Result<Spill> {
        Ok(Spill { file: tempfile::tempfile_in(folder)?, len_bytes: 0 })
    }

    /// Moves what the C library's `malloc` holds and is not in the file yet; gives its bytes. What cannot be moved stays where it is.
    ///
    /// No other thread may use `malloc` or write to such memory meanwhile; one that does ends the process.
    pub(super) fn take(&mut self) -> io::Result<u64> {
        let blocks = blocks(&std::fs::read_to_string("/proc/self/maps")?);
        let need_bytes = blocks.iter().map(|block| block.len() as u64).sum();
        let disk = rustix::fs::fstatvfs(&self.file)?;
        if disk.f_bavail.saturating_mul(disk.f_frsize) / 2 < need_bytes {
            return Err(io::Error::other(format!("{need_bytes} bytes are more than half of what is free on the disk")));
        }
        self.take_of(&blocks)
    }

    fn take_of(&mut self, blocks: &[Range<usize>]) -> io::Result<u64> {
        for block in blocks {
            // Nothing here allocates: the heap can be read only.
            for start in block.clone().step_by(PIECE_BYTES) {
                self.take_piece(start..block.end.min(start + PIECE_BYTES))?;
            }
        }
        Ok(blocks.iter().map(|block| block.len() as u64).sum())
    }

    fn take_piece(&mut self, piece: Range<usize>) -> io::Result<()> {
        let (start, len) = (ptr::with_exposed_provenance_mut(piece.start), piece.len());
        // SAFETY: the piece is whole pages of a private mapping that may be read and written. It may be read still.
        unsafe { mprotect(start, len, MprotectFlags::READ)? };
        // SAFETY: nobody writes to it now.
        let content = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) };
        let moved = self.keep(content).and_then(|offset| {
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
            // SAFETY: the new mapping has the content of the one that it replaces, and what is written to it stays in it.
            Ok(unsafe { mmap(start, len, access, flags, &self.file, offset)? })
        });
        if moved.is_err() {
            // SAFETY: as before; the mapping is as it was.
            unsafe { mprotect(start, len, MprotectFlags::READ | MprotectFlags::WRITE)? };
        }
        moved.map(|_| ())
    }

    /// Appends to the file; gives where.
    fn keep(&mut self, content: &[u8]) -> io::Result<u64> {
        let offset = self.len_bytes;
        self.file.set_len(offset)?;
        io::Seek::seek(&mut self.file, io::SeekFrom::Start(offset))?;
        self.file.write_all(content)?;
        self.len_bytes += content.len() as u64;
        self.file.set_len(self.len_bytes + HOLE_BYTES)?;
        Ok(offset)
    }
}

/// The heap, and the large blocks for which the C library has asked the system, one mapping a block, in the text of
/// `/proc/self/maps`. Both are freed as they were made, by the page. Stacks and what the library has mapped itself are not among them,
/// and nothing but the heap for another C library than GNU's.
fn blocks(maps: &str) -> Vec<Range<usize>> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    for (Range { mut start, end }, is_heap) in maps.lines().filter_map(anonymous) {
        if is_heap {
            blocks.push(start..end);
            continue;
        }
        while start < end {
            let len = block_at(start, end).unwrap_or(PAGE_BYTES);
            match blocks.last_mut() {
                _ if len < LEAST_BYTES => {}
                Some(last) if last.end == start => last.end += len,
                Some(_) | None => blocks.push(start..start + len),
            }
            start += len;
        }
    }
    blocks
}

/// The addresses of a line's mapping if it is private memory without a file, to read and write, and whether it is the heap.
fn anonymous(line: &str) -> Option<(Range<usize>, bool)> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let is_memory = words.by_ref().take(4).eq(["rw-p", "00000000", "00:00", "0"]);
    let name = words.next();
    (is_memory && name.is_none_or(|name| name == "[heap]")).then_some((address(start)?..address(end)?, name.is_some()))
}

/// The length of the block of `malloc` that begins there, if one does: its first words are 0 and its length with bit 1 set.
fn block_at(start: usize, end: usize) -> Option<usize> {
    let words = ptr::with_exposed_provenance::<[usize; 2]>(start);
    // SAFETY: a page of this process's memory begins there. Any bits are a number.
    let [before, size] = unsafe { words.read_volatile() };
    let len = size & !7;
    (before == 0 && size & 7 == 2 && len > 0 && len % PAGE_BYTES == 0 && len <= end - start).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 80 << 20;

    #[test]
    fn blocks_keep_their_content_and_grow() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut spill = Spill::in_folder(folder.path()).expect("a file");
        let mut bytes: Vec<u8> = (0..BYTES).map(|at| (at / 7) as u8).collect();
        let expected = bytes.clone();
        // Other tests' blocks may lie beside it.
        let own = |bytes: &[u8]| {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("the system tells");
            let start = bytes.as_ptr().expose_provenance() / PAGE_BYTES * PAGE_BYTES;
            let around = blocks(&maps).into_iter().find(|block| block.contains(&start))?;
            Some(start..start + block_at(start, around.end)?)
        };
        let found = own(&bytes).expect("a block");
        assert!((BYTES..BYTES + 2 * PAGE_BYTES).contains(&found.len()), "{found:?}");
        assert_eq!(spill.take_of(std::slice::from_ref(&found)).expect("it is moved"), found.len() as u64);
        assert_eq!(own(&bytes), None, "it is still memory");
        assert!(bytes == expected);
        bytes[BYTES / 2] ^= 1;
        bytes.resize(2 * BYTES, 5);
        bytes[BYTES / 2] ^= 1;
        assert!(bytes[..BYTES] == expected && bytes[BYTES..].iter().all(|&byte| byte == 5));
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn lines_of_other_mappings_are_left() {
        let range = 0x7f00_0000_0000..0x7f00_0000_2000;
        for (line, expected) in [
            ("7f0000000000-7f0000002000 rw-p 00000000 00:00 0 ", Some((range.clone(), false))),
            ("7f0000000000-7f0000002000 r--p 00000000 00:00 0 ", None),
            ("7f0000000000-7f0000002000 rw-s 00000000 00:01 0 ", None),
            ("7f0000000000-7f0000002000 rw-p 00000000 00:00 0                          [heap]", Some((range, true))),
            ("7ffe00000000-7ffe00002000 rw-p 00000000 00:00 0                          [stack]", None),
            ("7f0000000000-7f0000002000 rw-p 00003000 fe:00 1234                       /lib/libm.so.6", None),
            ("7f0000000000 rw-p 00000000 00:00 0", None),
            ("", None),
        ] {
            assert_eq!(anonymous(line), expected, "{line}");
        }
    }
}
