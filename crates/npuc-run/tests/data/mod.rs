//! Where the test data is, and how what is too large to keep is made.
#![allow(dead_code, clippy::unwrap_used, clippy::print_stderr)]

use std::path::{Path, PathBuf};

use npuc::front::{self, Checkpoint};
use npuc::model::{Chunks, Part, StepShape};
use npuc::synth;
use npuc_run::toolchain::{Installed, Tool, find};
use tempfile::TempDir;

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

/// A model of sixteen layers with seeded weights, in its folder, and five chunks of it.
pub(crate) fn sixteen_layers() -> (TempDir, Checkpoint, Vec<Part>) {
    let config = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
        "intermediate_size": 512, "num_hidden_layers": 16, "num_attention_heads": 8, "num_key_value_heads": 2,
        "vocab_size": 4096, "max_position_embeddings": 256, "tie_word_embeddings": true}"#;
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    synth::write(&model, config.as_bytes(), Path::new("config.json"), synth::Format::Bf16, 1).unwrap();
    let checkpoint = front::open(&model).unwrap();
    (folder, checkpoint, "4,4,4,2,2".parse::<Chunks>().unwrap().parts(16).unwrap())
}
