//! LFM2's configuration, and how `config.json` says it, in the form of today and of the first checkpoints.
//!
//! An absent key takes the default that transformers documents for `Lfm2Config`, and only these: `num_key_value_heads` 8,
//! `max_position_embeddings` 128000, `norm_eps` 1e-5, `rope_theta` (once `theta`) 1e6, `head_dim` hidden / heads,
//! `conv_L_cache` 3, `conv_bias` false, `block_auto_adjust_ff_dim` true, `block_ffn_dim_multiplier` 1,
//! `block_multiple_of` 256, `tie_embedding` (today `tie_word_embeddings`) true; without `layer_types` and `full_attn_idxs` all
//! layers have attention. Older keys go first, as they do there.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::config::{LayerKind, ModelConfig, Rope, cross_check};
use super::config_hf::{HEAD_KEYS, field, quantized, rope};
use super::fields::{Fields, limit};
use crate::diag::{Code, Diagnostic};

/// A decoder of the LFM2 family: RMSNorm, layers of gated short convolutions or of rotary attention with normalised
/// queries and keys, SwiGLU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lfm2Config {
    /// Width of the residual stream, and of the convolutions.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// What each layer mixes the tokens with.
    pub kinds: Vec<LayerKind>,
    /// Query heads of a layer with attention.
    pub heads: usize,
    /// Key/value heads of a layer with attention; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// Longest context the model was made for.
    pub max_positions: usize,
    /// Epsilon of the RMS normalisations.
    pub rms_eps: f32,
    /// The rotary embedding.
    pub rope: Rope,
    /// Tokens that a convolution reads, the current one among them; at least 2.
    pub window: usize,
    /// Whether the convolution and the projections around it have biases.
    pub conv_bias: bool,
    /// Whether the head is the embedding table, decided by what is stored.
    pub tied: bool,
}

/// The configuration of an object whose architecture is LFM2; its faults are noted in `fields`.
pub(super) fn parse(object: &Map<String, Value>, fields: &mut Fields) -> ModelConfig {
    let hidden = width(fields);
    let heads = fields.required_count("num_attention_heads", limit::HEADS);
    let kv_heads = if object.contains_key("num_key_value_heads") { heads } else { 8 };
    if fields.faults.is_empty() && fields.get("head_dim").is_none() && !hidden.is_multiple_of(heads) {
        let fault = Diagnostic::error(Code::BadConfig, "head_dim is absent and cannot be derived")
            .need("hidden_size divisible by num_attention_heads")
            .have(format!("{hidden} and {heads}"));
        fields.fault("head_dim", fault);
    }
    let layers = fields.required_count("num_hidden_layers", limit::LAYERS);
    let theta = fields.positive("theta").unwrap_or(1e6);
    let tied = fields.flag("tie_embedding").or_else(|| fields.flag("tie_word_embeddings"));
    let config = ModelConfig::Lfm2(Lfm2Config {
        hidden,
        ffn: feed_forward(fields),
        kinds: kinds(object, layers, fields),
        heads,
        kv_heads: fields.count("num_key_value_heads", limit::HEADS).unwrap_or(kv_heads),
        head_dim: fields.count("head_dim", limit::HEADS).unwrap_or(hidden / heads),
        vocab: fields.required_count("vocab_size", limit::VOCAB),
        max_positions: fields.count("max_position_embeddings", limit::POSITIONS).unwrap_or(128_000),
        rms_eps: fields.positive("norm_eps").unwrap_or(1e-5),
        rope: rope(object, theta, fields),
        window: fields.count("conv_L_cache", limit::WINDOW).unwrap_or(3),
        conv_bias: fields.flag("conv_bias").unwrap_or(false),
        tied: tied.unwrap_or(true),
    });
    quantized(object, fields);
    cross_check(&config, HEAD_KEYS, fields);
    config
}

/// `hidden_size`, or `block_dim` in the first checkpoints; no part of the model may have another width.
fn width(fields: &mut Fields) -> usize {
    let main = if fields.get("hidden_size").is_some() { "hidden_size" } else { "block_dim" };
    let hidden = match fields.get(main) {
        Some(_) => fields.required_count(main, limit::WIDTH),
        None => fields.required_count("hidden_size", limit::WIDTH),
    };
    for key in ["block_dim", "conv_dim", "conv_dim_out"] {
        if let Some(other) = fields.count(key, limit::WIDTH)
            && other != hidden
        {
            let fault = Diagnostic::error(
                Code::UnsupportedArchitecture,
                "layers of another width than the model are not supported",
            );
            fields.fault(key, fault.need(format!("{main} = {hidden}")).have(other));
        }
    }
    hidden
}

/// The width of the feed-forward layers: `block_ff_dim` or `intermediate_size`, of which the model's own code takes two thirds
/// times a factor, rounded up to a multiple, where it is told to adjust it.
fn feed_forward(fields: &mut Fields) -> usize {
    let key = if fields.get("block_ff_dim").is_some() { "block_ff_dim" } else { "intermediate_size" };
    let stated = fields.required_count(key, limit::WIDTH);
    let adjusts = fields.flag("block_auto_adjust_ff_dim").unwrap_or(true);
    let factor = fields.wide_positive("block_ffn_dim_multiplier").unwrap_or(1.0);
    let multiple = fields.count("block_multiple_of", limit::WIDTH).unwrap_or(256);
    if !adjusts {
        return stated;
    }
    // Saturates where the factor is absurd, and is refused with all else that is too wide.
    let scaled = (factor * (2 * stated / 3) as f64) as usize;
    let adjusted = scaled.min(usize::MAX / 2).div_ceil(multiple).saturating_mul(multiple);
    if !limit::WIDTH.contains(&adjusted) {
        let fault = Diagnostic::error(Code::BadConfig, "the adjusted width of the feed-forward layers is not possible");
        let need = format!("{} to {}", limit::WIDTH.start(), limit::WIDTH.end());
        let have = format!("{adjusted}, from {key} = {stated}, a factor of {factor} and multiples of {multiple}");
        fields.fault(key, fault.need(need).have(have));
        return stated;
    }
    adjusted
}

/// What each of `layers` layers is, from `layer_types` or `full_attn_idxs`, which must not contradict.
fn kinds(object: &Map<String, Value>, layers: usize, fields: &mut Fields) -> Vec<LayerKind> {
    let by_type = layer_types(object, layers, fields);
    let by_index = attention_indices(object, layers, fields);
    match (by_type, by_index) {
        (Some(by_type), Some(by_index)) => {
            if let Some(layer) = (0..layers).find(|&layer| by_type.get(layer) != by_index.get(layer))
                && by_type.len() == layers
            {
                let fault = Diagnostic::error(Code::BadConfig, "layer_types and full_attn_idxs name different layers")
                    .have(format!("layer {layer} is {} by layer_types", shown(by_type[layer])))
                    .help("remove the one that is not the model's");
                fields.fault("full_attn_idxs", fault);
            }
            by_type
        }
        (Some(kinds), None) | (None, Some(kinds)) => kinds,
        (None, None) => vec![LayerKind::Attention; layers],
    }
}

const fn shown(kind: LayerKind) -> &'static str {
    match kind {
        LayerKind::Attention => "full_attention",
        LayerKind::Convolution => "conv",
        LayerKind::Encoder => "encoder",
    }
}

/// A list that is there and not null.
fn list<'a>(object: &'a Map<String, Value>, key: &str, fields: &mut Fields) -> Option<&'a Vec<Value>> {
    let value = object.get(key).filter(|value| !value.is_null())?;
    if let Value::Array(list) = value {
        return Some(list);
    }
    let fault = Diagnostic::error(Code::BadConfig, "the value is malformed").need("a list");
    fields.fault(key, fault.have(field(value).map_or("null".into(), |field| field.describe())));
    None
}

fn layer_types(object: &Map<String, Value>, layers: usize, fields: &mut Fields) -> Option<Vec<LayerKind>> {
    let key = "layer_types";
    let types = list(object, key, fields)?;
    if types.len() != layers {
        let fault = Diagnostic::error(Code::BadConfig, "there is not one type for each layer");
        fields.fault(key, fault.need(format!("num_hidden_layers = {layers} of them")).have(types.len()));
        return None;
    }
    let kind = |value: &Value| match value.as_str() {
        Some("full_attention") => Some(LayerKind::Attention),
        Some("conv") => Some(LayerKind::Convolution),
        Some(_) | None => None,
    };
    let kinds: Option<Vec<LayerKind>> = types.iter().map(kind).collect();
    if let Some(other) = types.iter().find(|value| kind(value).is_none()) {
        let fault = Diagnostic::error(Code::UnsupportedArchitecture, "a kind of layer is not supported");
        fields.fault(key, fault.need("full_attention or conv").have(other));
    }
    kinds
}

fn attention_indices(object: &Map<String, Value>, layers: usize, fields: &mut Fields) -> Option<Vec<LayerKind>> {
    let key = "full_attn_idxs";
    let mut kinds = vec![LayerKind::Convolution; layers];
    for value in list(object, key, fields)? {
        let place = value.as_u64().and_then(|index| usize::try_from(index).ok()).and_then(|index| kinds.get_mut(index));
        match place {
            Some(kind) => *kind = LayerKind::Attention,
            None => {
                let fault = Diagnostic::error(Code::BadConfig, "a layer with attention is not a layer of the model");
                fields.fault(key, fault.need(format!("whole numbers below num_hidden_layers = {layers}")).have(value));
                return None;
            }
        }
    }
    Some(kinds)
}
