//! Model configurations: the numbers a graph is built from, one type per family, already validated.

use serde::{Deserialize, Serialize};

pub use super::config_lfm2::Lfm2Config;
pub use super::config_whisper::{Stack, StackSizes, WhisperConfig};
use super::fields::{Fields, limit};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::model::whisper;

/// The configuration of a model of any family. What all families have is told by methods, whatever a family calls it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub enum ModelConfig {
    /// Llama and its kin.
    Llama(LlamaConfig),
    /// LFM2: short convolutions beside attention.
    Lfm2(Lfm2Config),
    /// Whisper, both of its models or one of them.
    Whisper(WhisperConfig),
}

/// What a layer mixes the tokens with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// Attention over a cache of keys and values.
    Attention,
    /// A gated convolution over the last few tokens.
    Convolution,
    /// Attention among all positions of the step, which leaves nothing behind.
    Encoder,
}

/// A method that reads a field that the other families have under the same name, and Whisper's where it is another.
macro_rules! shared {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty, $w:ident => $whisper:expr);+ $(;)?) => {
        $($(#[doc = $doc])+ pub const fn $name(&self) -> $type {
            match self {
                ModelConfig::Llama(config) => config.$name,
                ModelConfig::Lfm2(config) => config.$name,
                ModelConfig::Whisper($w) => $whisper,
            }
        })+
    };
}

impl ModelConfig {
    shared! {
        /// Width of the residual stream.
        hidden: usize, w => w.hidden;
        /// Width of the feed-forward layer.
        ffn: usize, w => w.sizes().ffn;
        /// Query heads of a layer with attention.
        heads: usize, w => w.sizes().heads;
        /// Key/value heads of a layer with attention; divides [`ModelConfig::heads`].
        kv_heads: usize, w => w.sizes().heads;
        /// Width of a head; even.
        head_dim: usize, w => w.head_dim();
        /// The number of token ids.
        vocab: usize, w => w.vocab;
        /// Longest context the model was made for.
        max_positions: usize, w => w.positions();
        /// Epsilon of the normalisations.
        rms_eps: f32, w => { let _ = w; WhisperConfig::NORM_EPS };
        /// Whether the head is the embedding table.
        tied: bool, w => w.tied;
    }

    /// The number of layers.
    pub const fn layers(&self) -> usize {
        match self {
            ModelConfig::Llama(config) => config.layers,
            ModelConfig::Lfm2(config) => config.kinds.len(),
            ModelConfig::Whisper(config) => config.sizes().layers,
        }
    }

    /// The rotary embedding; Whisper has none.
    pub const fn rope(&self) -> Option<&Rope> {
        match self {
            ModelConfig::Llama(config) => Some(&config.rope),
            ModelConfig::Lfm2(config) => Some(&config.rope),
            ModelConfig::Whisper(_) => None,
        }
    }

    /// The models that graphs are built of, in the order in which they run: itself, or Whisper's encoder and decoder.
    pub fn models(&self) -> Vec<ModelConfig> {
        match self {
            ModelConfig::Whisper(config) if config.stack == Stack::Both => {
                [Stack::Encoder, Stack::Decoder].map(|stack| ModelConfig::Whisper(config.of(stack))).into()
            }
            ModelConfig::Llama(_) | ModelConfig::Lfm2(_) | ModelConfig::Whisper(_) => vec![self.clone()],
        }
    }

    /// Whether the model reads token ids; an encoder of sound does not.
    pub fn reads_tokens(&self) -> bool {
        !self.has(LayerKind::Encoder)
    }

    /// The name of the table of positions whose rows are added to those of the tokens, where the model has one.
    pub const fn positions_table(&self) -> Option<&'static str> {
        match self {
            ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => None,
            ModelConfig::Whisper(config) => match config.stack {
                Stack::Both | Stack::Decoder => Some(whisper::POSITIONS),
                Stack::Encoder => None,
            },
        }
    }

    /// Positions of what the decoder listens to, rows of the keys and values that it is given; 0 for models that only read.
    pub const fn heard_positions(&self) -> usize {
        match self {
            ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => 0,
            ModelConfig::Whisper(config) => match config.stack {
                Stack::Both | Stack::Decoder => config.source_positions,
                Stack::Encoder => 0,
            },
        }
    }

    /// The name of the family, as messages tell it.
    pub const fn family(&self) -> &'static str {
        match self {
            ModelConfig::Llama(_) => "Llama",
            ModelConfig::Lfm2(_) => "LFM2",
            ModelConfig::Whisper(_) => "Whisper",
        }
    }

    /// What the layer of that number mixes the tokens with.
    ///
    /// # Panics
    /// If the model has no such layer.
    pub fn kind(&self, layer: usize) -> LayerKind {
        match self {
            ModelConfig::Llama(_) => LayerKind::Attention,
            ModelConfig::Lfm2(config) => config.kinds[layer],
            ModelConfig::Whisper(config) => match config.stack {
                Stack::Encoder => LayerKind::Encoder,
                Stack::Both | Stack::Decoder => LayerKind::Attention,
            },
        }
    }

    /// Whether one of the layers is of that kind.
    pub fn has(&self, kind: LayerKind) -> bool {
        (0..self.layers()).any(|layer| self.kind(layer) == kind)
    }

    /// The tokens before a step that its convolutions read: rows of each such layer's state. 0 where no layer has one.
    pub fn history(&self) -> usize {
        match self {
            ModelConfig::Llama(_) | ModelConfig::Whisper(_) => 0,
            ModelConfig::Lfm2(config) if self.has(LayerKind::Convolution) => config.window - 1,
            ModelConfig::Lfm2(_) => 0,
        }
    }

    /// Whether rows of zeros stay zeros in every layer, so that padding before the first token leaves no trace in the
    /// histories of convolutions.
    pub fn padding_stays_zero(&self) -> bool {
        match self {
            ModelConfig::Llama(_) | ModelConfig::Whisper(_) => true,
            ModelConfig::Lfm2(config) => !config.conv_bias || !self.has(LayerKind::Convolution),
        }
    }

    /// The same model with a head of its own, or without one.
    #[must_use]
    pub fn with_tied(mut self, value: bool) -> ModelConfig {
        match &mut self {
            ModelConfig::Llama(config) => config.tied = value,
            ModelConfig::Lfm2(config) => config.tied = value,
            ModelConfig::Whisper(config) => config.tied = value,
        }
        self
    }

    /// The model of the first `layers` layers, which it has.
    #[must_use]
    pub fn with_layers(mut self, layers: usize) -> ModelConfig {
        match &mut self {
            ModelConfig::Llama(config) => config.layers = layers,
            ModelConfig::Lfm2(config) => config.kinds.truncate(layers),
            ModelConfig::Whisper(config) => config.sizes_mut().layers = layers,
        }
        self
    }

    /// The configuration if it is of the Llama family.
    ///
    /// Errors: [`Code::UnsupportedArchitecture`] that names `what` is not done for the model's family, and `help`.
    pub fn llama_only(&self, what: &str, help: &str) -> Result<&LlamaConfig> {
        match self {
            ModelConfig::Llama(config) => Ok(config),
            ModelConfig::Lfm2(_) | ModelConfig::Whisper(_) => Err(Diagnostic::error(
                Code::UnsupportedArchitecture,
                format!("{what} is not done for models of the family {}", self.family()),
            )
            .need("a model of the Llama family (Llama, Mistral, Qwen2, Qwen3)")
            .have(self.family())
            .help(help)
            .into()),
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
        let mut ranges = vec![
            ("hidden", self.hidden(), limit::WIDTH),
            ("ffn", self.ffn(), limit::WIDTH),
            ("layers", self.layers(), limit::LAYERS),
            ("heads", self.heads(), limit::HEADS),
            ("kv_heads", self.kv_heads(), limit::HEADS),
            ("head_dim", self.head_dim(), limit::HEADS),
            ("vocab", self.vocab(), limit::VOCAB),
            ("max_positions", self.max_positions(), limit::POSITIONS),
        ];
        match self {
            ModelConfig::Llama(_) => {}
            ModelConfig::Lfm2(config) => ranges.push(("window", config.window, limit::WINDOW)),
            ModelConfig::Whisper(config) => ranges.extend([
                ("mels", config.mels, limit::BANDS),
                ("source_positions", config.source_positions, limit::POSITIONS),
                ("encoder.layers", config.encoder.layers, limit::LAYERS),
                ("encoder.heads", config.encoder.heads, limit::HEADS),
                ("encoder.ffn", config.encoder.ffn, limit::WIDTH),
            ]),
        }
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
        if faults.is_empty() && !self.heads().is_multiple_of(self.kv_heads()) {
            faults.push(fault("kv_heads", format!("a divisor of heads = {}", self.heads()), self.kv_heads()));
        }
        if let ModelConfig::Whisper(config) = self
            && faults.is_empty()
        {
            for (key, sizes) in [("encoder.heads", config.encoder), ("heads", config.decoder)] {
                if !config.hidden.is_multiple_of(sizes.heads) {
                    faults.push(fault(key, format!("a divisor of hidden = {}", config.hidden), sizes.heads));
                }
            }
        }
        if let ModelConfig::Lfm2(config) = self
            && let Some(layer) = config.kinds.iter().position(|kind| *kind == LayerKind::Encoder)
        {
            faults
                .push(fault("kinds", "attention or convolution".into(), layer).help("a layer of LFM2 is no encoder's"));
        }
        if !self.head_dim().is_multiple_of(2) {
            faults.push(fault("head_dim", "an even number".into(), self.head_dim()));
        }
        if let Some(RopeScaling::Factors { factors }) = self.rope().map(|rope| &rope.scaling)
            && factors.len() != self.head_dim() / 2
        {
            faults.push(fault("rope.scaling.factors", format!("{} of them", self.head_dim() / 2), factors.len()));
        }
        Error::check(faults)
    }
}

/// Checks what no single value shows: heads in whole groups and heads of even width. `keys` are the names of
/// the query heads, the key/value heads and the head's width in the file. Malformed values are told alone.
pub(super) fn cross_check(config: &ModelConfig, keys: [&str; 3], fields: &mut Fields) {
    if !fields.faults.is_empty() {
        return;
    }
    let [heads, kv_heads, head_dim] = keys;
    if !config.heads().is_multiple_of(config.kv_heads()) {
        let fault = Diagnostic::error(Code::BadConfig, "the heads do not divide into whole groups");
        let need = format!("a divisor of {} = {}", fields.path(heads), config.heads());
        fields.fault(kv_heads, fault.need(need).have(config.kv_heads()));
    }
    if !config.head_dim().is_multiple_of(2) || config.head_dim() == 0 {
        let fault = Diagnostic::error(Code::BadConfig, "the rotary embedding needs heads of even width");
        fields.fault(head_dim, fault.need("an even number above zero").have(config.head_dim()));
    }
}
