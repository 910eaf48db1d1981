//! Checkpoints for tests: the fixtures with reference outputs, and small ones written here byte by byte.

// Every test binary includes this module and uses its own part of it.
#![allow(dead_code, unreachable_pub)]

pub mod ct2_writer;
pub mod fixture;
pub mod gguf_writer;
pub mod small;

use std::path::Path;

use npuc::front::{Checkpoint, open};

/// Opens what must open.
pub fn open_good(path: &Path) -> Checkpoint {
    open(path).unwrap_or_else(|e| panic!("{} must open, but:\n{e}", path.display()))
}

/// What [`open`] says about a bad checkpoint, with `folder` written as `DIR`.
pub fn open_bad(path: &Path, folder: &Path) -> String {
    match open(path) {
        Ok(checkpoint) => panic!("{} must not open, but gives {:?}", path.display(), checkpoint.config),
        Err(e) => e.to_string().replace(&folder.display().to_string(), "DIR"),
    }
}
