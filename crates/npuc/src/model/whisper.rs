//! Whisper: an encoder of 30 s of sound, and a decoder of text that attends to what the encoder makes of it.
//!
//! They are two models with graphs of their own. The encoder runs once for a window and gives the keys and values of every
//! layer of the decoder, so that no step of the decoder computes them again. Names follow A. Radford et al., "Robust Speech
//! Recognition via Large-Scale Weak Supervision" (2022) and the layout of Hugging Face's checkpoints.

use super::blocks::{AttentionBlock, AttentionNames, StepBuilder};
use super::llama::EMBEDDING;
use super::step::{Port, StateKind};
use super::{Role, WeightSpec, spec};
use crate::front::config::{Stack, StackSizes, WhisperConfig};
use crate::ir::{Op, ValueId};

/// The decoder's table of learned positions, `[target positions, hidden]`; runners add its rows to those of the tokens.
pub const POSITIONS: &str = "embed_positions.weight";
/// The encoder's table of positions, `[source positions, hidden]`.
const SOUND_POSITIONS: &str = "encoder.embed_positions.weight";
/// The decoder's last norm.
const FINAL_NORM: &str = "layer_norm";
/// The encoder's last norm.
const ENCODER_NORM: &str = "encoder.layer_norm";

const ATTENTION: AttentionNames = AttentionNames { output: "out_proj", q_norm: "", k_norm: "" };

/// Every weight of the configuration's stack, in the order of the computation. Weights of the decoder have the names that
/// other families' have; those of the encoder begin with `encoder.`.
pub fn weight_specs(config: &WhisperConfig) -> Vec<WeightSpec> {
    let mut specs = Specs(Vec::new());
    match config.stack {
        Stack::Encoder => specs.encoder(config),
        Stack::Decoder => specs.decoder(config),
        Stack::Both => {
            specs.encoder(config);
            specs.decoder(config);
        }
    }
    specs.0
}

struct Specs(Vec<WeightSpec>);

impl Specs {
    fn add(&mut self, name: String, dims: &[usize], role: Role) {
        self.0.push(spec(name, dims, role));
    }

    fn linear(&mut self, path: &str, [rows, cols]: [usize; 2], role: Role, bias: bool) {
        self.add(format!("{path}.weight"), &[rows, cols], role);
        if bias {
            self.add(format!("{path}.bias"), &[rows], Role::Bias);
        }
    }

    fn norm(&mut self, path: &str, hidden: usize) {
        self.add(format!("{path}.weight"), &[hidden], Role::Norm);
        self.add(format!("{path}.bias"), &[hidden], Role::Bias);
    }

    /// Only the keys have no bias: it would move all scores of a row alike.
    fn self_attention(&mut self, layer: &str, hidden: usize) {
        for (name, bias) in [("q_proj", true), ("k_proj", false), ("v_proj", true), ("out_proj", true)] {
            self.linear(&format!("{layer}.self_attn.{name}"), [hidden, hidden], Role::Attention, bias);
        }
        self.norm(&format!("{layer}.self_attn_layer_norm"), hidden);
    }

    fn feed_forward(&mut self, layer: &str, hidden: usize, ffn: usize) {
        self.linear(&format!("{layer}.fc1"), [ffn, hidden], Role::FeedForward, true);
        self.linear(&format!("{layer}.fc2"), [hidden, ffn], Role::FeedForward, true);
        self.norm(&format!("{layer}.final_layer_norm"), hidden);
    }

    fn encoder(&mut self, config: &WhisperConfig) {
        let (hidden, StackSizes { layers, ffn, .. }) = (config.hidden, config.encoder);
        self.linear("encoder.conv1", [hidden, config.mels * WhisperConfig::TAPS], Role::Stem, true);
        self.linear("encoder.conv2", [hidden, hidden * WhisperConfig::TAPS], Role::Stem, true);
        self.add(SOUND_POSITIONS.into(), &[config.source_positions, hidden], Role::Position);
        for layer in 0..layers {
            let path = format!("encoder.layers.{layer}");
            self.self_attention(&path, hidden);
            self.feed_forward(&path, hidden, ffn);
        }
        self.norm(ENCODER_NORM, hidden);
        for layer in 0..config.decoder.layers {
            self.linear(&format!("layers.{layer}.encoder_attn.k_proj"), [hidden, hidden], Role::Attention, false);
            self.linear(&format!("layers.{layer}.encoder_attn.v_proj"), [hidden, hidden], Role::Attention, true);
        }
    }

    fn decoder(&mut self, config: &WhisperConfig) {
        let (hidden, StackSizes { layers, ffn, .. }) = (config.hidden, config.decoder);
        self.add(EMBEDDING.into(), &[config.vocab, hidden], Role::Embedding);
        self.add(POSITIONS.into(), &[config.target_positions, hidden], Role::Position);
        for layer in 0..layers {
            let path = format!("layers.{layer}");
            self.self_attention(&path, hidden);
            self.linear(&format!("{path}.encoder_attn.q_proj"), [hidden, hidden], Role::Attention, true);
            self.linear(&format!("{path}.encoder_attn.out_proj"), [hidden, hidden], Role::Attention, true);
            self.norm(&format!("{path}.encoder_attn_layer_norm"), hidden);
            self.feed_forward(&path, hidden, ffn);
        }
        self.norm(FINAL_NORM, hidden);
        if !config.tied {
            self.add(super::llama::HEAD.into(), &[config.vocab, hidden], Role::Head);
        }
    }
}

/// The last norm of the configuration's stack over `x [tokens, hidden]`.
pub(super) fn final_norm(step: &mut StepBuilder<'_>, config: &WhisperConfig, x: ValueId) -> ValueId {
    step.layer_norm(final_norm_name(config), x, WhisperConfig::NORM_EPS)
}

/// The name of that norm, without `.weight`.
pub(super) const fn final_norm_name(config: &WhisperConfig) -> &'static str {
    match config.stack {
        Stack::Encoder => ENCODER_NORM,
        Stack::Both | Stack::Decoder => FINAL_NORM,
    }
}

/// The encoder's entry: the spectrogram `[bands, frames]` through two convolutions over time, the second of which takes every
/// other frame, and the positions added; the result is `[positions, hidden]`.
pub(super) fn stem(step: &mut StepBuilder<'_>, config: &WhisperConfig) -> ValueId {
    let (mels, hidden, frames) = (config.mels, config.hidden, config.frames());
    let mel = step.input(Port::Mel, &[mels, frames]);
    let path = "encoder.conv1";
    let x = step.op(path, Op::Transpose { perm: vec![1, 0] }, &[mel]);
    let zero = zeros(step, path, x);
    let padded = step.op(path, Op::Concat { axis: 0 }, &[zero, x, zero]);
    let taps = [0, 1, 2].map(|start| step.op(path, Op::Slice { axis: 0, start, len: frames }, &[padded]));
    let x = convolved(step, path, taps, mels);

    // Position i reads the frames 2i - 1, 2i and 2i + 1: of pairs of frames its own two and the second of the pair before.
    let path = "encoder.conv2";
    let positions = config.source_positions;
    let pairs = step.op(path, Op::Reshape { shape: vec![positions, 2 * hidden] }, &[x]);
    let of_pair = |step: &mut StepBuilder<'_>, place: usize| {
        step.op(path, Op::Slice { axis: 1, start: place * hidden, len: hidden }, &[pairs])
    };
    let (even, odd) = (of_pair(step, 0), of_pair(step, 1));
    let before = match positions {
        1 => zeros(step, path, odd),
        _ => {
            let zero = zeros(step, path, odd);
            let earlier = step.op(path, Op::Slice { axis: 0, start: 0, len: positions - 1 }, &[odd]);
            step.op(path, Op::Concat { axis: 0 }, &[zero, earlier])
        }
    };
    let x = convolved(step, path, [before, even, odd], hidden);
    let table = step.weight(SOUND_POSITIONS);
    step.op("encoder.embed_positions", Op::Add {}, &[x, table])
}

/// A row of zeros as wide as `x`.
fn zeros(step: &mut StepBuilder<'_>, path: &str, x: ValueId) -> ValueId {
    let row = step.op(path, Op::Slice { axis: 0, start: 0, len: 1 }, &[x]);
    step.op(path, Op::Affine { scale: 0.0, offset: 0.0 }, &[row])
}

/// The projection of what each tap sees, `[rows, width]` each, and GELU. The weight has the taps of a channel side by side.
fn convolved(step: &mut StepBuilder<'_>, path: &str, taps: [ValueId; 3], width: usize) -> ValueId {
    let columns = taps.map(|tap| {
        let rows = step.shape_of(tap)[0];
        step.op(path, Op::Reshape { shape: vec![rows, width, 1] }, &[tap])
    });
    let rows = step.shape_of(columns[0])[0];
    let seen = step.op(path, Op::Concat { axis: 2 }, &columns);
    let seen = step.op(path, Op::Reshape { shape: vec![rows, WhisperConfig::TAPS * width] }, &[seen]);
    let x = step.linear(path, seen);
    step.op(path, Op::Gelu {}, &[x])
}

/// One layer of the encoder, `[positions, hidden]` in and out.
pub(super) fn encoder_layer(step: &mut StepBuilder<'_>, config: &WhisperConfig, layer: usize, x: ValueId) -> ValueId {
    let at = |name: &str| format!("encoder.layers.{layer}.{name}");
    let path = at("self_attn");
    let normed = step.layer_norm(&at("self_attn_layer_norm"), x, WhisperConfig::NORM_EPS);
    let head = |step: &mut StepBuilder<'_>, name: &str| {
        let path = format!("{path}.{name}");
        let rows = step.linear(&path, normed);
        step.split_heads(&path, rows, config.encoder.heads, config.hidden / config.encoder.heads)
    };
    let (q, k, v) = (head(step, "q_proj"), head(step, "k_proj"), head(step, "v_proj"));
    let attended = step.attend(&path, q, k, v);
    let attended = step.linear(&format!("{path}.out_proj"), attended);
    let x = step.op(&path, Op::Add {}, &[x, attended]);
    feed_forward(step, &at(""), x)
}

/// The encoder's last norm, and the keys and values of each layer of the decoder leave.
pub(super) fn leave_encoder(step: &mut StepBuilder<'_>, config: &WhisperConfig, x: ValueId) {
    let heard = final_norm(step, config, x);
    let heads = config.decoder.heads;
    for layer in 0..config.decoder.layers {
        for (name, kind) in [("k_proj", StateKind::Key), ("v_proj", StateKind::Value)] {
            let path = format!("layers.{layer}.encoder_attn.{name}");
            let rows = step.linear(&path, heard);
            let rows = step.split_heads(&path, rows, heads, config.hidden / heads);
            step.output(Port::Heard(kind, layer), rows);
        }
    }
}

/// The ports of what the decoder listens to: keys and values `[heads, positions, head_dim]` of the layers in `layers`.
pub(super) fn heard(
    step: &mut StepBuilder<'_>,
    config: &WhisperConfig,
    layers: std::ops::Range<usize>,
) -> Vec<[ValueId; 2]> {
    let dims = [config.decoder.heads, config.source_positions, config.hidden / config.decoder.heads];
    let of = |layer| [StateKind::Key, StateKind::Value].map(|kind| step.input(Port::Heard(kind, layer), &dims));
    layers.map(of).collect()
}

/// One layer of the decoder: attention to the text, to the sound, and the feed-forward layer; `[tokens, hidden]` in and out.
pub(super) fn decoder_layer(
    step: &mut StepBuilder<'_>,
    layer: usize,
    x: ValueId,
    attention: &AttentionBlock,
    [k, v]: [ValueId; 2],
) -> ValueId {
    let at = |name: &str| format!("layers.{layer}.{name}");
    let normed = step.layer_norm(&at("self_attn_layer_norm"), x, WhisperConfig::NORM_EPS);
    let attended = step.attention(&at("self_attn"), layer, normed, attention, &ATTENTION);
    let x = step.op(&at("self_attn"), Op::Add {}, &[x, attended]);

    let path = at("encoder_attn");
    let normed = step.layer_norm(&at("encoder_attn_layer_norm"), x, WhisperConfig::NORM_EPS);
    let q = step.linear(&format!("{path}.q_proj"), normed);
    let q = step.split_heads(&format!("{path}.q_proj"), q, attention.heads, attention.head_dim);
    let listened = step.attend(&path, q, k, v);
    let listened = step.linear(&format!("{path}.out_proj"), listened);
    let x = step.op(&path, Op::Add {}, &[x, listened]);
    feed_forward(step, &at(""), x)
}

/// `fc2(gelu(fc1(norm(x))))` added to the residual stream; `path` ends with a point.
fn feed_forward(step: &mut StepBuilder<'_>, path: &str, x: ValueId) -> ValueId {
    let normed = step.layer_norm(&format!("{path}final_layer_norm"), x, WhisperConfig::NORM_EPS);
    let wide = step.linear(&format!("{path}fc1"), normed);
    let wide = step.op(&format!("{path}fc1"), Op::Gelu {}, &[wide]);
    let fed = step.linear(&format!("{path}fc2"), wide);
    step.op(&format!("{path}fc2"), Op::Add {}, &[x, fed])
}
