//! Where the fixtures are: small checkpoints with outputs computed by Hugging Face transformers.

#![allow(clippy::print_stderr)]

use std::path::{Path, PathBuf};

/// The folder of the fixture `name`. Without the fixtures the test that asks says so and proves nothing;
/// `cargo xtask test` says so too.
pub fn fixture(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("NOT RUN: the fixture {name} is absent at {}", root.display());
    None
}
