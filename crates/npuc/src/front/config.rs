//! Model configurations: the numbers a graph is built from, one type per family, already validated.

use serde::{Deserialize, Serialize};

/// The configuration of a model of any family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub enum ModelConfig {
    /// Llama and its kin.
    Llama(LlamaConfig),
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
