//! Whisper's configuration, and how `config.json` says it.
//!
//! A checkpoint holds two models: an encoder of sound and a decoder of text that attends to it. A configuration is of
//! both or of one, which [`WhisperConfig::stack`] says; graphs are built of one.
//!
//! An absent key takes the default that transformers documents for `WhisperConfig`, and only these: `activation_function`
//! gelu, `max_source_positions` 1500, `max_target_positions` 448, `num_mel_bins` 80, `scale_embedding` false,
//! `tie_word_embeddings` true.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::config::{ModelConfig, cross_check};
use super::config_hf::quantized;
use super::fields::{Fields, limit};
use crate::diag::{Code, Diagnostic};

/// Which of Whisper's two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stack {
    /// Both, as in a checkpoint.
    Both,
    /// The encoder, with the projections of what it hears to the keys and values of the decoder's layers.
    Encoder,
    /// The decoder, which is given these keys and values.
    Decoder,
}

/// The sizes of one of the models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackSizes {
    /// Number of layers.
    pub layers: usize,
    /// Heads; divides the width.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
}

/// Whisper: LayerNorm, attention with learned positions, GELU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhisperConfig {
    /// Which of the two models this configuration is of.
    pub stack: Stack,
    /// Bands of the log-mel spectrogram.
    pub mels: usize,
    /// Width of the residual streams of both.
    pub hidden: usize,
    /// The encoder's sizes.
    pub encoder: StackSizes,
    /// The decoder's sizes.
    pub decoder: StackSizes,
    /// Positions of the encoder, each of two frames of the spectrogram.
    pub source_positions: usize,
    /// Positions of the decoder.
    pub target_positions: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// Whether the head is the embedding table, decided by what is stored.
    pub tied: bool,
}

impl WhisperConfig {
    /// Epsilon of every normalisation. Source: the reference model's layers use PyTorch's default.
    pub const NORM_EPS: f32 = 1e-5;
    /// Frames of the spectrogram to a position of the encoder.
    pub const FRAMES_PER_POSITION: usize = 2;
    /// Taps of the encoder's two convolutions.
    pub const TAPS: usize = 3;

    /// The sizes of the configuration's model, the decoder's where it is of both.
    pub const fn sizes(&self) -> StackSizes {
        match self.stack {
            Stack::Encoder => self.encoder,
            Stack::Both | Stack::Decoder => self.decoder,
        }
    }

    /// The sizes to change.
    pub(super) const fn sizes_mut(&mut self) -> &mut StackSizes {
        match self.stack {
            Stack::Encoder => &mut self.encoder,
            Stack::Both | Stack::Decoder => &mut self.decoder,
        }
    }

    /// Positions of the configuration's model.
    pub const fn positions(&self) -> usize {
        match self.stack {
            Stack::Encoder => self.source_positions,
            Stack::Both | Stack::Decoder => self.target_positions,
        }
    }

    /// Frames of a window of sound.
    pub const fn frames(&self) -> usize {
        Self::FRAMES_PER_POSITION * self.source_positions
    }

    /// Width of a head; 0 without heads, which no checked configuration is.
    pub const fn head_dim(&self) -> usize {
        match self.hidden.checked_div(self.sizes().heads) {
            Some(width) => width,
            None => 0,
        }
    }

    /// The configuration of one of the models, or of both.
    #[must_use]
    pub fn of(&self, stack: Stack) -> WhisperConfig {
        WhisperConfig { stack, ..self.clone() }
    }
}

/// The configuration of an object whose architecture is Whisper; its faults are noted in `fields`.
pub(super) fn parse(object: &Map<String, Value>, fields: &mut Fields) -> ModelConfig {
    let mut stack = |name: &str| StackSizes {
        layers: fields.required_count(&format!("{name}_layers"), limit::LAYERS),
        heads: fields.required_count(&format!("{name}_attention_heads"), limit::HEADS),
        ffn: fields.required_count(&format!("{name}_ffn_dim"), limit::WIDTH),
    };
    let (encoder, decoder) = (stack("encoder"), stack("decoder"));
    let config = WhisperConfig {
        stack: Stack::Both,
        mels: fields.count("num_mel_bins", limit::BANDS).unwrap_or(80),
        hidden: fields.required_count("d_model", limit::WIDTH),
        encoder,
        decoder,
        source_positions: fields.count("max_source_positions", limit::POSITIONS).unwrap_or(1500),
        target_positions: fields.count("max_target_positions", limit::POSITIONS).unwrap_or(448),
        vocab: fields.required_count("vocab_size", limit::VOCAB),
        tied: fields.flag("tie_word_embeddings").unwrap_or(true),
    };
    refuse_variants(fields);
    quantized(object, fields);
    check(&config, ["encoder_attention_heads", "decoder_attention_heads", "d_model"], fields);
    ModelConfig::Whisper(config)
}

/// What other models of the architecture's name have.
fn refuse_variants(fields: &mut Fields) {
    if let Some(name) = fields.text("activation_function")
        && name != "gelu"
    {
        let fault = Diagnostic::error(Code::UnsupportedActivation, "the activation is not supported");
        fields.fault("activation_function", fault.need("gelu").have(name));
    }
    if fields.flag("scale_embedding") == Some(true) {
        let fault = Diagnostic::error(Code::UnsupportedArchitecture, "scaled embeddings are not supported");
        fields.fault("scale_embedding", fault.need(false).have(true));
    }
}

/// Both stacks have heads of one width, because the encoder makes the decoder's keys. The names are those that the file gives the
/// heads of both and the width.
pub(super) fn check(config: &WhisperConfig, [encoder, decoder, width]: [&str; 3], fields: &mut Fields) {
    for (stack, heads) in [(Stack::Encoder, encoder), (Stack::Decoder, decoder)] {
        let of = config.of(stack);
        if fields.faults.is_empty() && !of.hidden.is_multiple_of(of.sizes().heads) {
            let fault = Diagnostic::error(Code::BadConfig, "the width does not divide into heads");
            fields.fault(heads, fault.need(format!("a divisor of {width} = {}", of.hidden)).have(of.sizes().heads));
        }
        cross_check(&ModelConfig::Whisper(of), [heads, heads, width], fields);
    }
}
