//! The model that chores work with, in the user's cache folder.

use std::path::PathBuf;

use crate::Result;

/// The path of SmolLM2-135M-Instruct as a GGUF file, fetched if the cache does not have it.
pub(crate) fn smollm2() -> Result<PathBuf> {
    npuc_fetch::models::smollm2(&mut |line| eprintln!("{line}")).map_err(|e| e.to_string())
}
