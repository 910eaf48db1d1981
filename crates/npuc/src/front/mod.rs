//! Front ends: what a checkpoint is once it has been opened, whatever file form it came in.
//!
//! Nothing here reads weights: a [`Checkpoint`] holds handles into mapped files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;

use self::config::Stack;
use crate::diag::{Code, Diagnostic};
use crate::model::weight_specs;
use crate::tensor::Tensor;

pub mod config;
mod config_ct2;
mod config_gguf;
pub mod config_hf;
mod config_lfm2;
mod config_whisper;
pub mod ct2;
mod fields;
mod finite;
mod from_ct2;
mod from_gguf;
mod from_hf;
pub mod gguf;
mod layout;
mod names_ct2;
mod open;
mod reader;
pub mod safetensors;
mod vocab_gguf;
pub(crate) mod weights;

pub use config::ModelConfig;
pub use finite::non_finite;
pub use open::open;

/// The file form of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder as `save_pretrained` writes it.
    HuggingFace,
    /// One GGUF file.
    Gguf,
    /// A folder with the container of CTranslate2.
    CTranslate2,
}

/// An opened checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The folder or file it was opened from.
    pub path: PathBuf,
    /// Its form.
    pub source: Source,
    /// The model's shape, validated.
    pub config: ModelConfig,
    /// The weights that the model uses, by canonical name (see [`crate::model::weight_specs`]), shapes checked.
    pub tensors: BTreeMap<String, Tensor>,
    /// Token ids that begin and end text.
    pub special: SpecialTokens,
    /// The tokenizer, if the checkpoint has one.
    pub tokenizer: Option<TokenizerSource>,
    /// What is odd but does not stop the work.
    pub warnings: Vec<Diagnostic>,
}

impl Checkpoint {
    /// One of Whisper's models out of a checkpoint of both, with the weights that it uses; `None` for other models.
    pub fn stack(&self, stack: Stack) -> Option<Checkpoint> {
        let config = match &self.config {
            ModelConfig::Whisper(config) => ModelConfig::Whisper(config.of(stack)),
            ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => return None,
        };
        let specs = weight_specs(&config).into_iter();
        let tensors =
            specs.filter_map(|spec| Some((spec.name.clone(), self.tensors.get(&spec.name)?.clone()))).collect();
        Some(Checkpoint { config, tensors, ..self.clone() })
    }
}

/// Token ids that begin and end text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpecialTokens {
    /// The id that begins a text, if the model has one.
    pub bos: Option<u32>,
    /// Every id that ends an answer, from all the places that name one.
    pub eos: BTreeSet<u32>,
    /// The one of them that is named first, for runtimes that know only one.
    #[serde(skip)]
    pub first_eos: Option<u32>,
}

impl SpecialTokens {
    /// Adds ids that end an answer, those of more authority first.
    pub(crate) fn end_with(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            self.first_eos.get_or_insert(id);
            self.eos.insert(id);
        }
    }
}

/// Where a tokenizer's data comes from.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// The files of a Hugging Face folder.
    HuggingFace {
        /// The content of `tokenizer.json`.
        tokenizer_json: Vec<u8>,
        /// The content of `tokenizer_config.json`, if there is one.
        tokenizer_config: Option<serde_json::Value>,
        /// The chat template (`chat_template.jinja` or the configuration's), if there is one.
        chat_template: Option<String>,
    },
    /// The `tokenizer.*` metadata of a GGUF file.
    Gguf(GgufVocab),
}

/// The `tokenizer.*` metadata of a GGUF file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2` or `llama`.
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of `gpt2` models.
    pub pre: Option<String>,
    /// The text of each id.
    pub tokens: Vec<String>,
    /// The score of each id (`llama` models).
    pub scores: Vec<f32>,
    /// The type of each id: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    pub types: Vec<i32>,
    /// The merges of `gpt2` models, `left right`, best first.
    pub merges: Vec<String>,
    /// Special ids by the metadata key's middle part: `bos`, `eos`, `eot`, `unknown`, `padding`, …
    pub special: BTreeMap<String, u32>,
    /// Whether a text begins with the BOS id; absent in older files.
    pub add_bos: Option<bool>,
    /// Whether a text ends with the EOS id.
    pub add_eos: Option<bool>,
    /// Whether a space is put before the first word (`llama` models).
    pub add_space_prefix: Option<bool>,
    /// The chat template, if there is one.
    pub chat_template: Option<String>,
}

/// Warns of special ids that the model does not have.
fn outside_vocabulary(special: &SpecialTokens, vocab: usize) -> Option<Diagnostic> {
    let outside: Vec<String> =
        special.bos.iter().chain(&special.eos).filter(|id| **id as usize >= vocab).map(u32::to_string).collect();
    if outside.is_empty() {
        return None;
    }
    let warning = Diagnostic::warning(Code::BadTokenId, "special ids are outside the model's vocabulary");
    Some(warning.need(format!("ids below {vocab}")).have(name_list(&outside)))
}

/// Names for a message: the first few, and how many more there are.
fn name_list<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The fault of a Git LFS pointer in the place of the file it stands for.
fn lfs_pointer(file: &[u8]) -> Option<Diagnostic> {
    file.starts_with(b"version https://git-lfs").then(|| {
        Diagnostic::error(Code::BadHeader, "the file is a Git LFS pointer, not the content it stands for")
            .help("run `git lfs pull` in the repository, or download the file itself")
    })
}
