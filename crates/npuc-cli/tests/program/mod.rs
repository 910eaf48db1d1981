//! The built program and the checkpoints of the repository.

#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
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

/// The files below a folder, by the path from there.
pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_path_buf(), fs::read(&path).unwrap());
            }
        }
    }
    found
}
