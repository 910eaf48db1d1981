//! Where the test data is.
#![allow(dead_code, clippy::unwrap_used, clippy::print_stderr)]

use std::path::{Path, PathBuf};

use npuc::model::StepShape;
use npuc_run::toolchain::{Installed, Tool, find};

/// The checkpoints that the repository owns.
pub(crate) fn checkpoints() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints")
}

/// The fixtures beside the repository. Without them the test that asks says so and proves nothing;
/// `cargo xtask test` says so too.
pub(crate) fn fixtures() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("NOT RUN: the fixtures are absent at {}", path.display());
    None
}

/// The LiteRT interpreter, if the tests that need it are to be run.
pub(crate) fn litert_tool() -> Option<Installed> {
    if std::env::var_os("NPUC_LITERT").is_none() {
        eprintln!("NOT RUN: `cargo xtask litert` installs the LiteRT interpreter and runs this test");
        return None;
    }
    Some(find(Tool::LiteRt).unwrap())
}

/// Step shapes from their text.
pub(crate) fn shapes(text: &str) -> Vec<StepShape> {
    text.split(',').map(|shape| shape.parse().unwrap()).collect()
}
