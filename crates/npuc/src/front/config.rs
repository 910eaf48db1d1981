//! Model configurations: the numbers a graph is built from, one type per family, already validated.

use serde::{Deserialize, Serialize};

use super::fields::{Fields, limit};
use crate::diag::{Code, Diagnostic, Error, Result};

/// The configuration of a model of any family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub enum ModelConfig {
    /// Llama and its kin.
    Llama(LlamaConfig),
}

impl ModelConfig {
    /// The number of token ids.
    pub const fn vocab(&self) -> usize {
        match self {
            ModelConfig::Llama(config) => config.vocab,
        }
    }

    /// Whether the head is the embedding table.
    pub const fn tied(&self) -> bool {
        match self {
            ModelConfig::Llama(config) => config.tied,
        }
    }
}

/// Which member of the Llama family; they differ in what their layers hold, which the other fields say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LlamaArchitecture {
    /// Llama 2 and 3, SmolLM2.
    Llama,
    /// Mistral without a sliding window.
    Mistral,
    /// Qwen2 and Qwen2.5: biased query, key and value projections.
    Qwen2,
    /// Qwen3: normalised queries and keys.
    Qwen3,
}

/// A decoder of the Llama family: RMSNorm, rotary attention with grouped queries, SwiGLU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlamaConfig {
    /// The member of the family.
    pub architecture: LlamaArchitecture,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even, and not necessarily `hidden / heads`.
    pub head_dim: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// Longest context the model was made for.
    pub max_positions: usize,
    /// Epsilon of the RMS normalisations.
    pub rms_eps: f32,
    /// The rotary embedding.
    pub rope: Rope,
    /// Whether the query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub o_bias: bool,
    /// Whether the feed-forward projections have a bias.
    pub mlp_bias: bool,
    /// Whether queries and keys are normalised per head before the rotary embedding.
    pub qk_norm: bool,
    /// Whether the head is the embedding table, decided by what is stored.
    pub tied: bool,
}

/// A rotary embedding in the rotate-half form: pairs are (i, i + head_dim / 2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f32,
    /// How the frequencies are stretched for longer contexts.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are stretched for longer contexts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3.1 and later: long waves are divided, short ones kept, those between interpolated.
    Llama3 {
        /// The divisor of the long waves.
        factor: f32,
        /// Waves longer than `original_max_positions / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Waves shorter than `original_max_positions / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// The context the model was first trained for.
        original_max_positions: usize,
    },
    /// Each frequency divided by its own factor (GGUF's `rope_freqs.weight`), `head_dim / 2` of them.
    Factors {
        /// The divisors.
        factors: Vec<f32>,
    },
}

impl ModelConfig {
    /// Checks a configuration that did not come through a front end, e.g. a bundle's.
    ///
    /// Errors: numbers out of range, heads that do not group or have no even width.
    pub fn check(&self) -> Result<()> {
        let ModelConfig::Llama(config) = self;
        let ranges = [
            ("hidden", config.hidden, limit::WIDTH),
            ("ffn", config.ffn, limit::WIDTH),
            ("layers", config.layers, limit::LAYERS),
            ("heads", config.heads, limit::HEADS),
            ("kv_heads", config.kv_heads, limit::HEADS),
            ("head_dim", config.head_dim, limit::HEADS),
            ("vocab", config.vocab, limit::VOCAB),
            ("max_positions", config.max_positions, limit::POSITIONS),
        ];
        let fault = |key: &str, need: String, have: usize| {
            Diagnostic::error(Code::BadConfig, "a number of the model is not possible")
                .subject(key)
                .need(need)
                .have(have)
        };
        let outside = ranges.into_iter().filter(|(_, value, range)| !range.contains(value));
        let mut faults: Vec<Diagnostic> = outside
            .map(|(key, value, range)| fault(key, format!("{} to {}", range.start(), range.end()), value))
            .collect();
        if faults.is_empty() && !config.heads.is_multiple_of(config.kv_heads) {
            faults.push(fault("kv_heads", format!("a divisor of heads = {}", config.heads), config.kv_heads));
        }
        if !config.head_dim.is_multiple_of(2) {
            faults.push(fault("head_dim", "an even number".into(), config.head_dim));
        }
        if let RopeScaling::Factors { factors } = &config.rope.scaling
            && factors.len() != config.head_dim / 2
        {
            faults.push(fault("rope.scaling.factors", format!("{} of them", config.head_dim / 2), factors.len()));
        }
        Error::check(faults)
    }
}

/// Checks what no single value shows: heads in whole groups and heads of even width. `keys` are the names of
/// the query heads, the key/value heads and the head's width in the file. Malformed values are told alone.
pub(super) fn cross_check(config: &LlamaConfig, keys: [&str; 3], fields: &mut Fields) {
    if !fields.faults.is_empty() {
        return;
    }
    let [heads, kv_heads, head_dim] = keys;
    if !config.heads.is_multiple_of(config.kv_heads) {
        let fault = Diagnostic::error(Code::BadConfig, "the heads do not divide into whole groups");
        let need = format!("a divisor of {} = {}", fields.path(heads), config.heads);
        fields.fault(kv_heads, fault.need(need).have(config.kv_heads));
    }
    if !config.head_dim.is_multiple_of(2) || config.head_dim == 0 {
        let fault = Diagnostic::error(Code::BadConfig, "the rotary embedding needs heads of even width");
        fields.fault(head_dim, fault.need("an even number above zero").have(config.head_dim));
    }
}
