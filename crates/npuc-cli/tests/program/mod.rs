//! The built program and the checkpoints of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program, with nothing of the user's environment that could change its output.
pub(crate) fn npuc() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_npuc"));
    command.env("XDG_CACHE_HOME", "/nowhere");
    command
}

/// A checkpoint of the repository.
pub(crate) fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints").join(name)
}
