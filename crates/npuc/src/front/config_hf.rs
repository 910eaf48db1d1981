//! `config.json` of Hugging Face transformers → [`ModelConfig`], in the form of today and of older versions.
//!
//! An absent key takes the default that transformers itself documents for the architecture, and only these:
//! `hidden_act` silu, `rms_norm_eps` 1e-6, `rope_theta` 10000, `head_dim` hidden / heads (Qwen3: 128),
//! `num_key_value_heads` = `num_attention_heads`, `tie_word_embeddings` false, `attention_bias` and `mlp_bias`
//! false, `sliding_window` 4096 (Mistral and Qwen2/3), `use_sliding_window` false, `max_window_layers` 28.
//! Those of LFM2 and Whisper are in files of their own.
//! Null counts as absent, except that `"sliding_window": null` says that there is no window.

use std::path::Path;

use serde_json::{Map, Value};

use super::config::{LlamaArchitecture, LlamaConfig, ModelConfig, Rope, RopeScaling, cross_check};
use super::fields::{Field, Fields, limit};
use super::{config_lfm2, config_whisper};
use crate::diag::{Code, Diagnostic, Error, Result};

/// What is said where an architecture, rope type or activation is not supported.
pub(super) const ARCHITECTURES: &str = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Lfm2ForCausalLM or \
     WhisperForConditionalGeneration";

/// What `config.json` says.
#[derive(Clone, Debug, PartialEq)]
pub struct HfConfig {
    /// The model's shape; `tied` is what the file says, not yet what is stored.
    pub model: ModelConfig,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`, one or a list, in its order.
    pub eos: Vec<u32>,
}

/// Reads the text of a `config.json`; `file` is named in messages.
///
/// # Errors
/// Malformed JSON, absent or implausible values, and models that npuc does not build; all faults of the
/// values at once.
pub fn parse(text: &[u8], file: &Path) -> Result<HfConfig> {
    let object = object(text, file)?;
    let architecture = architecture(&object).map_err(|e| e.in_file(file))?;
    let mut fields = Fields::new("", |key| object.get(key).and_then(field));
    let model = match architecture {
        Architecture::Llama(member) => llama(&object, member, &mut fields),
        Architecture::Lfm2 => config_lfm2::parse(&object, &mut fields),
        Architecture::Whisper => config_whisper::parse(&object, &mut fields),
    };
    let mut bos_eos = special_ids(&object);
    let mut faults = std::mem::take(&mut fields.faults);
    faults.append(&mut bos_eos.faults);
    Error::check(faults).map_err(|e| e.in_file(file))?;
    Ok(HfConfig { model, bos: bos_eos.bos, eos: bos_eos.eos })
}

/// The `bos_token_id` and `eos_token_id` of a `generation_config.json`.
pub(super) fn parse_generation(text: &[u8], file: &Path) -> Result<(Option<u32>, Vec<u32>)> {
    let ids = special_ids(&object(text, file)?);
    Error::check(ids.faults).map_err(|e| e.in_file(file))?;
    Ok((ids.bos, ids.eos))
}

/// What a file says that its model is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Architecture {
    Llama(LlamaArchitecture),
    Lfm2,
    Whisper,
}

fn object(text: &[u8], file: &Path) -> Result<Map<String, Value>> {
    serde_json::from_slice(text).map_err(|e| {
        Diagnostic::error(Code::BadConfig, format!("the file is not a JSON object: {e}")).file(file).into()
    })
}

/// A JSON value as a field; null is absent.
pub(super) fn field(value: &Value) -> Option<Field> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => Field::Bool(*value),
        Value::Number(number) => match number.as_i128() {
            Some(value) => Field::Int(value),
            None => Field::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Field::Text(text.clone()),
        Value::Array(_) => Field::Other("a list".into()),
        Value::Object(_) => Field::Other("an object".into()),
    })
}

/// The architecture by `architectures` or, where that is absent, by `model_type`; they must not contradict.
fn architecture(object: &Map<String, Value>) -> Result<Architecture> {
    let texts = |key: &str| -> Vec<String> {
        match object.get(key) {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => Vec::new(),
        }
    };
    let (classes, kind) = (texts("architectures"), texts("model_type").pop());
    let have = match (classes.first(), &kind) {
        (Some(class), Some(kind)) => format!("{class} (model_type {kind})"),
        (Some(class), None) => class.clone(),
        (None, Some(kind)) => format!("model_type {kind}"),
        (None, None) => {
            return Err(Diagnostic::error(Code::BadConfig, "the file does not say which architecture the model has")
                .subject("architectures")
                .need(ARCHITECTURES)
                .into());
        }
    };
    let unsupported = |message: &str, subject: &str| {
        Diagnostic::error(Code::UnsupportedArchitecture, message).subject(subject).need(ARCHITECTURES).have(&have)
    };
    let by_class = classes.first().map(|class| match class.as_str() {
        "LlamaForCausalLM" => Some(Architecture::Llama(LlamaArchitecture::Llama)),
        "MistralForCausalLM" => Some(Architecture::Llama(LlamaArchitecture::Mistral)),
        "Qwen2ForCausalLM" => Some(Architecture::Llama(LlamaArchitecture::Qwen2)),
        "Qwen3ForCausalLM" => Some(Architecture::Llama(LlamaArchitecture::Qwen3)),
        "Lfm2ForCausalLM" => Some(Architecture::Lfm2),
        "WhisperForConditionalGeneration" => Some(Architecture::Whisper),
        _ => None,
    });
    let by_kind = kind.as_deref().map(|kind| match kind {
        "llama" => Some(Architecture::Llama(LlamaArchitecture::Llama)),
        "mistral" => Some(Architecture::Llama(LlamaArchitecture::Mistral)),
        "qwen2" => Some(Architecture::Llama(LlamaArchitecture::Qwen2)),
        "qwen3" => Some(Architecture::Llama(LlamaArchitecture::Qwen3)),
        "lfm2" => Some(Architecture::Lfm2),
        "whisper" => Some(Architecture::Whisper),
        _ => None,
    });
    if object.get("vision_config").is_some_and(|v| !v.is_null()) {
        return Err(unsupported("vision models are not supported", "vision_config").into());
    }
    for key in ["num_experts", "num_local_experts", "n_routed_experts"] {
        if object.get(key).and_then(Value::as_u64).is_some_and(|n| n > 0) {
            return Err(unsupported("mixtures of experts are not supported", key).into());
        }
    }
    let named: Vec<Option<Architecture>> = [by_class, by_kind].into_iter().flatten().collect();
    match named[..] {
        [Some(class), Some(kind)] if class != kind => {
            let fault = Diagnostic::error(Code::BadConfig, "architectures and model_type name different models");
            Err(fault.subject("architectures").have(have).into())
        }
        [Some(found)] | [Some(found), Some(_)] => Ok(found),
        _ => Err(unsupported("the architecture is not supported", "architectures").into()),
    }
}

fn llama(object: &Map<String, Value>, architecture: LlamaArchitecture, fields: &mut Fields) -> ModelConfig {
    let hidden = fields.required_count("hidden_size", limit::WIDTH);
    let heads = fields.required_count("num_attention_heads", limit::HEADS);
    let kv_heads = fields.count("num_key_value_heads", limit::HEADS).unwrap_or(heads);
    let default_dim = match architecture {
        LlamaArchitecture::Qwen3 if !object.contains_key("head_dim") => 128,
        LlamaArchitecture::Llama | LlamaArchitecture::Mistral | LlamaArchitecture::Qwen2 | LlamaArchitecture::Qwen3 => {
            if fields.faults.is_empty() && fields.get("head_dim").is_none() && !hidden.is_multiple_of(heads) {
                let fault = Diagnostic::error(Code::BadConfig, "head_dim is absent and cannot be derived")
                    .need("hidden_size divisible by num_attention_heads")
                    .have(format!("{hidden} and {heads}"));
                fields.fault("head_dim", fault);
            }
            hidden / heads
        }
    };
    let qkv_and_o_bias = match architecture {
        LlamaArchitecture::Llama | LlamaArchitecture::Qwen3 => {
            let bias = fields.flag("attention_bias").unwrap_or(false);
            (bias, bias)
        }
        LlamaArchitecture::Qwen2 => (true, false),
        LlamaArchitecture::Mistral => (false, false),
    };
    let mlp_bias = match architecture {
        LlamaArchitecture::Llama => fields.flag("mlp_bias").unwrap_or(false),
        LlamaArchitecture::Mistral | LlamaArchitecture::Qwen2 | LlamaArchitecture::Qwen3 => false,
    };
    let config = LlamaConfig {
        architecture,
        hidden,
        ffn: fields.required_count("intermediate_size", limit::WIDTH),
        layers: fields.required_count("num_hidden_layers", limit::LAYERS),
        heads,
        kv_heads,
        head_dim: fields.count("head_dim", limit::HEADS).unwrap_or(default_dim),
        vocab: fields.required_count("vocab_size", limit::VOCAB),
        max_positions: fields.required_count("max_position_embeddings", limit::POSITIONS),
        rms_eps: fields.positive("rms_norm_eps").unwrap_or(1e-6),
        rope: rope(object, 10000.0, fields),
        qkv_bias: qkv_and_o_bias.0,
        o_bias: qkv_and_o_bias.1,
        mlp_bias,
        qk_norm: architecture == LlamaArchitecture::Qwen3,
        tied: fields.flag("tie_word_embeddings").unwrap_or(false),
    };
    activation(fields);
    quantized(object, fields);
    sliding_window(object, &config, fields);
    let config = ModelConfig::Llama(config);
    cross_check(&config, HEAD_KEYS, fields);
    config
}

/// What [`cross_check`] names.
pub(super) const HEAD_KEYS: [&str; 3] = ["num_attention_heads", "num_key_value_heads", "head_dim"];

fn activation(fields: &mut Fields) {
    if let Some(name) = fields.text("hidden_act")
        && name != "silu"
    {
        let fault = Diagnostic::error(Code::UnsupportedActivation, "the activation is not supported");
        fields.fault("hidden_act", fault.need("silu").have(name));
    }
}

/// Weights of GPTQ, AWQ, bitsandbytes and others are no plain tensors.
pub(super) fn quantized(object: &Map<String, Value>, fields: &mut Fields) {
    let Some(quantization) = object.get("quantization_config").filter(|q| !q.is_null()) else {
        return;
    };
    let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("an unnamed method");
    let fault =
        Diagnostic::error(Code::UnknownTensorType, "the weights are quantised in a form that npuc does not read")
            .need("F32, F16 or BF16 weights")
            .have(method)
            .help("use the checkpoint that was not quantised, or a GGUF of the model");
    fields.fault("quantization_config", fault);
}

/// Faults a window that some layer attends over and that is shorter than the longest context.
fn sliding_window(object: &Map<String, Value>, config: &LlamaConfig, fields: &mut Fields) {
    let layer_types: Vec<&str> = match object.get("layer_types").and_then(Value::as_array) {
        Some(types) => types.iter().map(|kind| kind.as_str().unwrap_or("no text")).collect(),
        None => Vec::new(),
    };
    if let Some(other) = layer_types.iter().find(|t| !["full_attention", "sliding_attention"].contains(t)) {
        let fault = Diagnostic::error(Code::UnsupportedArchitecture, "a kind of layer is not supported");
        fields.fault("layer_types", fault.need("full_attention").have(*other));
    }
    let asked = match config.architecture {
        LlamaArchitecture::Llama => layer_types.contains(&"sliding_attention"),
        LlamaArchitecture::Mistral => true,
        LlamaArchitecture::Qwen2 | LlamaArchitecture::Qwen3 => {
            let used = fields.flag("use_sliding_window").unwrap_or(false);
            let first = fields.count("max_window_layers", limit::ANY).unwrap_or(28);
            let by_type = layer_types.contains(&"sliding_attention");
            used && if layer_types.is_empty() { first < config.layers } else { by_type }
        }
    };
    if !asked || object.get("sliding_window").is_some_and(Value::is_null) {
        return;
    }
    let stated = fields.count("sliding_window", limit::POSITIONS);
    let window = stated.unwrap_or(4096);
    if window < config.max_positions {
        let origin = if stated.is_none() { " (the default where the key is absent)" } else { "" };
        let fault = Diagnostic::error(Code::SlidingWindow, "attention over a sliding window is not supported")
            .need(format!("no window, or one of at least max_position_embeddings = {}", config.max_positions))
            .have(format!("a window of {window} tokens{origin}"))
            .help(format!(
                "set \"sliding_window\": null and \"max_position_embeddings\": {window} in config.json: contexts of up \
                 to {window} tokens are not changed by the window"
            ));
        fields.fault("sliding_window", fault);
    }
}

/// The rotary embedding from `rope_parameters` or from `rope_theta` and `rope_scaling`. `theta` is the base where the file names
/// none.
pub(super) fn rope(object: &Map<String, Value>, theta: f32, fields: &mut Fields) -> Rope {
    full_rotation(fields);
    let outer_theta = fields.positive("rope_theta");
    let present = |key: &str| object.get(key).filter(|value| !value.is_null());
    let (key, value) = match (present("rope_parameters"), present("rope_scaling")) {
        (Some(new), None) => ("rope_parameters", new),
        (None, Some(old)) => ("rope_scaling", old),
        (Some(new), Some(old)) if new == old => ("rope_parameters", new),
        (Some(_), Some(_)) => {
            let fault = Diagnostic::error(Code::BadConfig, "rope_parameters and rope_scaling differ")
                .help("remove the one that is not the model's");
            fields.fault("rope_parameters", fault);
            return Rope { theta: 1.0, scaling: RopeScaling::None };
        }
        (None, None) => return Rope { theta: outer_theta.unwrap_or(theta), scaling: RopeScaling::None },
    };
    let Value::Object(inner) = value else {
        let fault = Diagnostic::error(Code::BadConfig, "the value is malformed").need("an object");
        fields.fault(key, fault.have(field(value).map_or("null".into(), |f| f.describe())));
        return Rope { theta: 1.0, scaling: RopeScaling::None };
    };
    if let Some((part, _)) = inner.iter().find(|(_, value)| value.is_object()) {
        let fault = Diagnostic::error(Code::UnsupportedRope, "rotary embeddings by kind of layer are not supported");
        fields.fault(&format!("{key}.{part}"), fault.need("one for all layers").have("an object"));
    }
    let mut rope = Fields::new(format!("{key}."), |key| inner.get(key).and_then(field));
    full_rotation(&mut rope);
    let inner_theta = rope.positive("rope_theta");
    if let (Some(outer), Some(inner)) = (outer_theta, inner_theta)
        && outer != inner
    {
        let fault = Diagnostic::error(Code::BadConfig, "rope_theta is given twice and differs");
        rope.fault("rope_theta", fault.need(format!("{outer}, as the outer rope_theta says")).have(inner));
    }
    let scaling = scaling(&mut rope);
    fields.faults.append(&mut rope.faults);
    Rope { theta: inner_theta.or(outer_theta).unwrap_or(theta), scaling }
}

fn full_rotation(fields: &mut Fields) {
    if let Some(factor) = fields.positive("partial_rotary_factor")
        && factor != 1.0
    {
        let fault =
            Diagnostic::error(Code::UnsupportedRope, "a rotary embedding of a part of each head is not supported");
        fields.fault("partial_rotary_factor", fault.need(1).have(factor));
    }
}

/// The scaling that the object of `rope_parameters` or `rope_scaling` says, by `rope_type` or the older `type`.
fn scaling(rope: &mut Fields) -> RopeScaling {
    let (new, old) = (rope.text("rope_type"), rope.text("type"));
    if let (Some(new), Some(old)) = (&new, &old)
        && new != old
    {
        let fault = Diagnostic::error(Code::BadConfig, "rope_type and type differ");
        rope.fault("rope_type", fault.have(format!("{new} and {old}")));
    }
    let kind = new.or(old);
    match kind.as_deref() {
        Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: rope.required_positive("factor") },
        Some("llama3") => {
            let scaling = RopeScaling::Llama3 {
                factor: rope.required_positive("factor"),
                low_freq_factor: rope.required_positive("low_freq_factor"),
                high_freq_factor: rope.required_positive("high_freq_factor"),
                original_max_positions: rope.required_count("original_max_position_embeddings", limit::POSITIONS),
            };
            if let RopeScaling::Llama3 { low_freq_factor: low, high_freq_factor: high, .. } = scaling
                && rope.faults.is_empty()
                && low >= high
            {
                let fault = Diagnostic::error(Code::BadConfig, "the frequency factors are out of order");
                rope.fault("high_freq_factor", fault.need(format!("more than low_freq_factor = {low}")).have(high));
            }
            scaling
        }
        None if rope.get("factor").is_none() => RopeScaling::None,
        None => {
            let fault = Diagnostic::error(Code::BadConfig, "a factor is given without the type of scaling");
            rope.fault("rope_type", fault.need("default, linear or llama3"));
            RopeScaling::None
        }
        Some(other) => {
            let fault = Diagnostic::error(Code::UnsupportedRope, "the type of rotary embedding is not supported");
            rope.fault("rope_type", fault.need("default, linear or llama3").have(other));
            RopeScaling::None
        }
    }
}

struct SpecialIds {
    bos: Option<u32>,
    eos: Vec<u32>,
    faults: Vec<Diagnostic>,
}

/// `bos_token_id` and `eos_token_id`: a number, null or absent; for EOS also a list.
fn special_ids(object: &Map<String, Value>) -> SpecialIds {
    let mut ids = SpecialIds { bos: None, eos: Vec::new(), faults: Vec::new() };
    let mut id = |key: &str, value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        if id.is_none() {
            ids.faults.push(
                Diagnostic::error(Code::BadConfig, "the value is malformed")
                    .subject(key)
                    .need("a token id, a whole number from 0")
                    .have(value),
            );
        }
        id
    };
    match object.get("bos_token_id") {
        None | Some(Value::Null) => {}
        Some(value) => ids.bos = id("bos_token_id", value),
    }
    match object.get("eos_token_id") {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => ids.eos = list.iter().filter_map(|value| id("eos_token_id", value)).collect(),
        Some(value) => ids.eos = id("eos_token_id", value).into_iter().collect(),
    }
    ids
}
