//! GGUF metadata → [`ModelConfig`]. Keys as in the GGUF specification, e.g. `llama.attention.head_count`.
//!
//! Absent keys take the defaults that the specification gives: `head_count_kv` = `head_count`, `key_length`
//! and `rope.dimension_count` = width / heads, `rope.freq_base` 10000. Biases and per-head norms are
//! decided by presence, because the metadata does not say whether a model has them.

use std::collections::BTreeMap;

use super::config::{
    LayerKind, Lfm2Config, LlamaArchitecture, LlamaConfig, ModelConfig, Rope, RopeScaling, cross_check,
};
use super::fields::{Field, Fields, limit};
use super::gguf::{Array, Gguf, StoredTensor, Value};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::tensor::Tensor;

const ARCHITECTURES: &str = "llama (Llama, Mistral and SmolLM2), qwen2, qwen3 or lfm2";
/// What [`cross_check`] names.
const HEAD_KEYS: [&str; 3] = ["attention.head_count", "attention.head_count_kv", "attention.key_length"];

/// What a file says that its model is.
#[derive(Clone, Copy)]
enum Architecture {
    Llama(LlamaArchitecture),
    Lfm2,
}

/// Reads the configuration of a GGUF header. `rope_factors` is the tensor `rope_freqs.weight`, if there is one.
///
/// # Errors
/// Absent or implausible values and models that npuc does not build; all faults of the values at once.
pub(super) fn parse(gguf: &Gguf, rope_factors: Option<&Tensor>) -> Result<ModelConfig> {
    let (architecture, name) = architecture(&gguf.metadata)?;
    let prefix = format!("{name}.");
    let mut fields = Fields::new(prefix.clone(), |key| gguf.metadata.get(&format!("{prefix}{key}")).map(field));
    let config = match architecture {
        Architecture::Llama(member) => llama(gguf, member, rope_factors, &mut fields),
        Architecture::Lfm2 => lfm2(gguf, rope_factors, &mut fields),
    };
    Error::check(fields.faults)?;
    Ok(config)
}

fn architecture(metadata: &BTreeMap<String, Value>) -> Result<(Architecture, &'static str)> {
    let key = "general.architecture";
    let have = match metadata.get(key).map(field) {
        Some(Field::Text(name)) => name,
        Some(other) => {
            let fault = Diagnostic::error(Code::BadConfig, "the value is malformed").subject(key);
            return Err(fault.need(ARCHITECTURES).have(other.describe()).into());
        }
        None => {
            let fault = Diagnostic::error(Code::BadConfig, "the file does not say which architecture the model has");
            return Err(fault.subject(key).need(ARCHITECTURES).into());
        }
    };
    let unsupported = |message: &str, subject: &str| {
        Diagnostic::error(Code::UnsupportedArchitecture, message).subject(subject).need(ARCHITECTURES).have(&have)
    };
    let is = |key: &str, text: &str| matches!(metadata.get(key), Some(Value::String(value)) if value == text);
    if have == "clip" || is("general.type", "mmproj") {
        return Err(unsupported("the file is the vision or audio part of a model", key)
            .help("give the GGUF of the language model")
            .into());
    }
    let experts = format!("{have}.expert_count");
    if metadata.get(&experts).is_some_and(|count| !matches!(count, Value::Unsigned(0))) {
        return Err(unsupported("mixtures of experts are not supported", &experts).into());
    }
    Ok(match have.as_str() {
        "llama" => (Architecture::Llama(LlamaArchitecture::Llama), "llama"),
        "qwen2" => (Architecture::Llama(LlamaArchitecture::Qwen2), "qwen2"),
        "qwen3" => (Architecture::Llama(LlamaArchitecture::Qwen3), "qwen3"),
        "lfm2" => (Architecture::Lfm2, "lfm2"),
        _ => return Err(unsupported("the architecture is not supported", key).into()),
    })
}

/// A metadata value as a field. An array whose elements are all equal, one for each layer, is one number.
fn field(value: &Value) -> Field {
    fn all_equal<T: Copy + PartialEq>(values: &[T]) -> Option<T> {
        values.first().copied().filter(|first| values.iter().all(|value| value == first))
    }
    match value {
        Value::Unsigned(value) => Field::Int((*value).into()),
        Value::Signed(value) => Field::Int((*value).into()),
        Value::Float(value) => Field::Float(*value),
        Value::Bool(value) => Field::Bool(*value),
        Value::String(text) => Field::Text(text.clone()),
        Value::Array(array) => {
            let one = match array {
                Array::Unsigned(values) => all_equal(values).map(i128::from),
                Array::Signed(values) => all_equal(values).map(i128::from),
                Array::Float(_) | Array::Bool(_) | Array::String(_) | Array::Array(_) => None,
            };
            one.map_or_else(|| Field::Other(format!("{} that differ", value.kind())), Field::Int)
        }
    }
}

fn llama(gguf: &Gguf, architecture: LlamaArchitecture, factors: Option<&Tensor>, fields: &mut Fields) -> ModelConfig {
    let hidden = fields.required_count("embedding_length", limit::WIDTH);
    let heads = fields.required_count("attention.head_count", limit::HEADS);
    let kv_heads = fields.count("attention.head_count_kv", limit::HEADS).unwrap_or(heads);
    let head_dim = head_dim(hidden, heads, fields);
    let tensor = |name: &str| gguf.tensors.iter().find(|tensor| tensor.name == name);
    let config = LlamaConfig {
        architecture,
        hidden,
        ffn: fields.required_count("feed_forward_length", limit::WIDTH),
        layers: fields.required_count("block_count", limit::LAYERS),
        heads,
        kv_heads,
        head_dim,
        vocab: vocab(gguf, tensor("token_embd.weight"), fields),
        max_positions: fields.required_count("context_length", limit::POSITIONS),
        rms_eps: fields.required_positive("attention.layer_norm_rms_epsilon"),
        rope: rope(head_dim, factors, fields),
        qkv_bias: architecture == LlamaArchitecture::Qwen2 || tensor("blk.0.attn_q.bias").is_some(),
        o_bias: tensor("blk.0.attn_output.bias").is_some(),
        mlp_bias: tensor("blk.0.ffn_down.bias").is_some(),
        qk_norm: architecture == LlamaArchitecture::Qwen3 || tensor("blk.0.attn_q_norm.weight").is_some(),
        tied: tensor("output.weight").is_none(),
    };
    if config.qk_norm && architecture == LlamaArchitecture::Llama {
        // The rows of `llama` are interleaved; no converter writes what that means for a gain of each head.
        let fault =
            Diagnostic::error(Code::UnsupportedArchitecture, "norms of queries and keys are not supported here");
        fields.faults.push(fault.subject("blk.0.attn_q_norm.weight").need("qwen3").have("llama"));
    }
    extras(fields);
    if let Some(window) = fields.count("attention.sliding_window", limit::ANY)
        && (1..config.max_positions).contains(&window)
    {
        let fault = Diagnostic::error(Code::SlidingWindow, "attention over a sliding window is not supported");
        let need = format!("no window, or one of at least context_length = {}", config.max_positions);
        fields.fault("attention.sliding_window", fault.need(need).have(format!("a window of {window} tokens")));
    }
    let config = ModelConfig::Llama(config);
    cross_check(&config, HEAD_KEYS, fields);
    config
}

/// LFM2 says with a key/value head count for each layer which layers have attention: those with a convolution have none.
/// The feed-forward width is the one that is stored, already adjusted.
fn lfm2(gguf: &Gguf, factors: Option<&Tensor>, fields: &mut Fields) -> ModelConfig {
    let hidden = fields.required_count("embedding_length", limit::WIDTH);
    let heads = fields.required_count("attention.head_count", limit::HEADS);
    let layers = fields.required_count("block_count", limit::LAYERS);
    let head_dim = head_dim(hidden, heads, fields);
    let (kinds, kv_heads) = head_counts(gguf, layers, heads, fields);
    let tensor = |name: &str| gguf.tensors.iter().find(|tensor| tensor.name == name);
    let first = kinds.iter().position(|&kind| kind == LayerKind::Convolution);
    let config = ModelConfig::Lfm2(Lfm2Config {
        hidden,
        ffn: fields.required_count("feed_forward_length", limit::WIDTH),
        kinds,
        heads,
        kv_heads,
        head_dim,
        vocab: vocab(gguf, tensor("token_embd.weight"), fields),
        max_positions: fields.required_count("context_length", limit::POSITIONS),
        rms_eps: fields.required_positive("attention.layer_norm_rms_epsilon"),
        rope: rope(head_dim, factors, fields),
        window: fields.required_count("shortconv.l_cache", limit::WINDOW),
        conv_bias: first.is_some_and(|layer| tensor(&format!("blk.{layer}.shortconv.conv.bias")).is_some()),
        tied: tensor("output.weight").is_none(),
    });
    extras(fields);
    cross_check(&config, HEAD_KEYS, fields);
    config
}

/// The kind of each layer and the key/value heads of those with attention.
fn head_counts(gguf: &Gguf, layers: usize, heads: usize, fields: &mut Fields) -> (Vec<LayerKind>, usize) {
    let key = "attention.head_count_kv";
    let counts: Vec<i128> = match gguf.metadata.get(&fields.path(key)) {
        Some(Value::Array(Array::Unsigned(counts))) => counts.iter().map(|&count| count.into()).collect(),
        Some(Value::Array(Array::Signed(counts))) => counts.iter().map(|&count| count.into()).collect(),
        Some(_) => vec![fields.count(key, limit::HEADS).map_or(1, |count| count as i128); layers],
        None => vec![heads as i128; layers],
    };
    if counts.len() != layers {
        let fault = Diagnostic::error(Code::BadConfig, "there is not one head count for each layer");
        fields.fault(key, fault.need(format!("block_count = {layers} of them")).have(counts.len()));
    }
    let kind = |&count: &i128| if count == 0 { LayerKind::Convolution } else { LayerKind::Attention };
    let present = counts.iter().copied().find(|&count| count != 0);
    // Without attention there are no such heads, and any count will do.
    let Some(kv_heads) = present else { return (counts.iter().map(kind).collect(), heads) };
    if let Some(other) = counts.iter().find(|&&count| count != 0 && count != kv_heads) {
        let fault =
            Diagnostic::error(Code::UnsupportedArchitecture, "layers with different head counts are not supported");
        fields.fault(key, fault.need(format!("{kv_heads}, or 0 where there is a convolution")).have(other));
    }
    let within = usize::try_from(kv_heads).ok().filter(|count| limit::HEADS.contains(count));
    if within.is_none() {
        let fault = Diagnostic::error(Code::BadConfig, "the value is malformed");
        let need = format!("a whole number from {} to {}", limit::HEADS.start(), limit::HEADS.end());
        fields.fault(key, fault.need(need).have(kv_heads));
    }
    (counts.iter().map(kind).collect(), within.unwrap_or(heads))
}

fn head_dim(hidden: usize, heads: usize, fields: &mut Fields) -> usize {
    let key = fields.count("attention.key_length", limit::HEADS);
    if fields.faults.is_empty() && key.is_none() && !hidden.is_multiple_of(heads) {
        let fault = Diagnostic::error(Code::BadConfig, "the width of a head is absent and cannot be derived");
        let need = "embedding_length divisible by attention.head_count";
        fields.fault("attention.key_length", fault.need(need).have(format!("{hidden} and {heads}")));
    }
    let head_dim = key.unwrap_or(hidden / heads);
    if let Some(value) = fields.count("attention.value_length", limit::HEADS)
        && value != head_dim
    {
        let fault =
            Diagnostic::error(Code::UnsupportedArchitecture, "values of another width than keys are not supported");
        fields.fault("attention.value_length", fault.need(head_dim).have(value));
    }
    head_dim
}

/// `vocab_size`, else the rows of the embedding table, else the number of tokens.
fn vocab(gguf: &Gguf, embedding: Option<&StoredTensor>, fields: &mut Fields) -> usize {
    if fields.get("vocab_size").is_some() {
        return fields.required_count("vocab_size", limit::VOCAB);
    }
    let rows = embedding.and_then(|tensor| tensor.shape.first().copied());
    let tokens = || match gguf.metadata.get("tokenizer.ggml.tokens") {
        Some(Value::Array(Array::String(tokens))) => Some(tokens.len()),
        Some(_) | None => None,
    };
    match rows.or_else(tokens).filter(|n| limit::VOCAB.contains(n)) {
        Some(vocab) => vocab,
        None => fields.required_count("vocab_size", limit::VOCAB),
    }
}

fn rope(head_dim: usize, factors: Option<&Tensor>, fields: &mut Fields) -> Rope {
    if let Some(rotated) = fields.count("rope.dimension_count", limit::HEADS)
        && rotated != head_dim
    {
        let fault =
            Diagnostic::error(Code::UnsupportedRope, "a rotary embedding of a part of each head is not supported");
        fields.fault("rope.dimension_count", fault.need(format!("{head_dim}, the width of a head")).have(rotated));
    }
    let theta = fields.positive("rope.freq_base").unwrap_or(10000.0);
    let old = fields.positive("rope.scale_linear");
    let scaling = match fields.text("rope.scaling.type").as_deref() {
        None if old.is_some_and(|factor| factor != 1.0) => RopeScaling::Linear { factor: old.unwrap_or(1.0) },
        None | Some("none") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: fields.required_positive("rope.scaling.factor") },
        Some(other) => {
            let fault = Diagnostic::error(Code::UnsupportedRope, "the type of rotary embedding is not supported");
            fields.fault("rope.scaling.type", fault.need("none, linear or factors in rope_freqs.weight").have(other));
            RopeScaling::None
        }
    };
    let Some(tensor) = factors else {
        return Rope { theta, scaling };
    };
    if scaling != RopeScaling::None {
        let fault = Diagnostic::error(Code::UnsupportedRope, "the rotary embedding is scaled twice");
        fields.fault("rope.scaling.type", fault.need("none beside rope_freqs.weight").have("linear"));
    }
    Rope { theta, scaling: RopeScaling::Factors { factors: rope_factors(head_dim, tensor, fields) } }
}

fn rope_factors(head_dim: usize, tensor: &Tensor, fields: &mut Fields) -> Vec<f32> {
    let name = "rope_freqs.weight";
    let need = format!("f32 [{}]", head_dim / 2);
    let have = format!("{} {}", tensor.dtype, tensor.shape);
    if need != have {
        let fault = Diagnostic::error(Code::WrongShape, "the rotary factors have another shape than the heads need");
        fields.faults.push(fault.subject(name).need(need).have(have));
        return Vec::new();
    }
    let bytes = tensor.bytes();
    let factors: Vec<f32> = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    if let Some(bad) = factors.iter().find(|factor| !factor.is_finite() || **factor <= 0.0) {
        let fault = Diagnostic::error(Code::UnsupportedRope, "a rotary factor is impossible");
        fields.faults.push(fault.subject(name).need("finite numbers above zero").have(bad));
    }
    factors
}

/// Keys that change the computation in ways that npuc does not build, and the value that changes nothing.
fn extras(fields: &mut Fields) {
    for key in ["logit_scale", "residual_scale", "embedding_scale", "attention.scale"] {
        if let Some(scale) = fields.positive(key)
            && scale != 1.0
        {
            let fault = Diagnostic::error(Code::UnsupportedArchitecture, "a scale that the model has is not supported");
            fields.fault(key, fault.need("1, or no such key").have(scale));
        }
    }
    if fields.flag("attention.causal") == Some(false) {
        let fault = Diagnostic::error(Code::UnsupportedArchitecture, "attention that is not causal is not supported");
        fields.fault("attention.causal", fault.need(true).have(false));
    }
}
