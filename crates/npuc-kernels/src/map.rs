//! Read-only file mappings: weights are paged in when they are read, never copied whole.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

/// The bytes of a file, mapped read-only.
///
/// npuc treats checkpoints and bundles as immutable while it runs: truncating the file under a
/// running process ends that process with SIGBUS, as with every program that maps files.
#[derive(Debug)]
pub struct MappedFile(Option<Mmap>);

impl MappedFile {
    /// Maps `path`. An empty file gives an empty slice.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(MappedFile(None));
        }
        // SAFETY: the mapping is private and read-only, and is only ever read as plain bytes, for which
        // every bit pattern is valid; see the type's documentation for a file that shrinks meanwhile.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MappedFile(Some(map)))
    }

    /// Gives the memory of bytes that were read back to the system; reading them again brings them from the file.
    /// Does nothing where the system has no such call.
    pub fn release(&self, bytes: Range<usize>) {
        #[cfg(unix)]
        if let Some(map) = &self.0
            && bytes.end <= map.len()
            && !bytes.is_empty()
        {
            // SAFETY: the mapping is read-only and backed by the file, so the pages hold nothing that the file does not.
            // A refusal only leaves the memory in use.
            let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, bytes.start, bytes.len()) };
        }
    }
}

impl std::ops::Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}
