//! `config.json`: every form that is read, and each value that is refused.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use npuc::front::config::{LlamaArchitecture, LlamaConfig, RopeScaling, Stack, StackSizes, WhisperConfig};
use npuc::front::{ModelConfig, config_hf};
use serde_json::{Value, json};

use super::checkpoints::open_good;
use super::checkpoints::small::HfFolder;

/// The small config.json with these keys set; null removes nothing, it is written.
fn config_json(keys: Value) -> Value {
    let mut config = HfFolder::default().config;
    for (key, value) in keys.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

fn parse(config: &Value) -> npuc::Result<config_hf::HfConfig> {
    config_hf::parse(config.to_string().as_bytes(), Path::new("config.json"))
}

fn good(keys: Value) -> LlamaConfig {
    let parsed = parse(&config_json(keys.clone())).unwrap_or_else(|e| panic!("{keys} must be read, but:\n{e}"));
    let ModelConfig::Llama(config) = parsed.model else { panic!("{keys} is of another family") };
    config
}

fn check(keys: Value, expected: &str) {
    match parse(&config_json(keys.clone())) {
        Ok(config) => panic!("{keys} must be refused, but gives {config:?}"),
        Err(e) => assert_eq!(e.to_string(), expected.trim_start(), "{keys}"),
    }
}

#[test]
fn rotary_embeddings_of_every_version() {
    let llama3 = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let with = |mut base: Value, key: &str, value: Value| {
        base[key] = value;
        base
    };
    let old_llama3 = json!({"type": "llama3", "factor": 32.0, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 8192});
    let scaled =
        RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions: 8192 };
    let linear = RopeScaling::Linear { factor: 2.0 };
    let cases = [
        (json!({}), 10000.0, RopeScaling::None),
        (json!({"rope_theta": 5e5}), 5e5, RopeScaling::None),
        (json!({"rope_theta": 500000, "rope_scaling": null}), 5e5, RopeScaling::None),
        (json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}}), 5e5, linear.clone()),
        (json!({"rope_theta": 5e5, "rope_scaling": llama3}), 5e5, scaled.clone()),
        (json!({"rope_theta": 5e5, "rope_scaling": old_llama3}), 5e5, scaled.clone()),
        (
            json!({"rope_theta": 5e5, "rope_scaling": with(llama3.clone(), "type", json!("llama3"))}),
            5e5,
            scaled.clone(),
        ),
        (json!({"rope_parameters": with(llama3.clone(), "rope_theta", json!(5e5))}), 5e5, scaled.clone()),
        (
            json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "rope_scaling": null}),
            5e5,
            RopeScaling::None,
        ),
        (json!({"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1e6}), 1e6, RopeScaling::None),
        (json!({"rope_parameters": null, "partial_rotary_factor": 1.0}), 10000.0, RopeScaling::None),
    ];
    for (keys, theta, scaling) in cases {
        let rope = good(keys.clone()).rope;
        assert_eq!((rope.theta, &rope.scaling), (theta, &scaling), "{keys}");
    }
}

#[test]
fn members_of_the_family() {
    let base = good(json!({}));
    let kind = |class: &str, kind: &str| json!({"architectures": [class], "model_type": kind, "sliding_window": null});
    let mistral = kind("MistralForCausalLM", "mistral");
    let qwen2 = kind("Qwen2ForCausalLM", "qwen2");
    let qwen3 = kind("Qwen3ForCausalLM", "qwen3");
    let and = |base: &Value, more: Value| {
        let mut keys = base.clone();
        keys.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        keys
    };
    use LlamaArchitecture::{Llama, Mistral, Qwen2, Qwen3};
    let qwen3_config = LlamaConfig { architecture: Qwen3, head_dim: 128, qk_norm: true, ..base.clone() };
    let cases = [
        (json!({"architectures": null}), base.clone()),
        (json!({"model_type": null}), base.clone()),
        (json!({"num_key_value_heads": null}), LlamaConfig { kv_heads: 2, ..base.clone() }),
        (json!({"head_dim": null}), base.clone()),
        (json!({"head_dim": 6}), LlamaConfig { head_dim: 6, ..base.clone() }),
        (json!({"attention_bias": true}), LlamaConfig { qkv_bias: true, o_bias: true, ..base.clone() }),
        (json!({"mlp_bias": true}), LlamaConfig { mlp_bias: true, ..base.clone() }),
        (json!({"rms_norm_eps": null, "hidden_act": null}), LlamaConfig { rms_eps: 1e-6, ..base.clone() }),
        (mistral.clone(), LlamaConfig { architecture: Mistral, ..base.clone() }),
        (and(&mistral, json!({"sliding_window": 64})), LlamaConfig { architecture: Mistral, ..base.clone() }),
        (qwen2.clone(), LlamaConfig { architecture: Qwen2, qkv_bias: true, ..base.clone() }),
        (
            and(&qwen2, json!({"sliding_window": 32, "use_sliding_window": false, "max_window_layers": 0})),
            LlamaConfig { architecture: Qwen2, qkv_bias: true, ..base.clone() },
        ),
        (
            and(&qwen2, json!({"sliding_window": 32, "use_sliding_window": true, "max_window_layers": 1})),
            LlamaConfig { architecture: Qwen2, qkv_bias: true, ..base.clone() },
        ),
        (qwen3.clone(), qwen3_config.clone()),
        (and(&qwen3, json!({"head_dim": 4})), LlamaConfig { head_dim: 4, ..qwen3_config.clone() }),
        (and(&qwen3, json!({"attention_bias": true})), LlamaConfig { qkv_bias: true, o_bias: true, ..qwen3_config }),
    ];
    assert_eq!((base.architecture, base.head_dim, base.kv_heads, base.tied), (Llama, 4, 1, true));
    for (keys, expected) in cases {
        assert_eq!(good(keys.clone()), expected, "{keys}");
    }
}

#[test]
fn special_ids() {
    let cases = [
        (json!({"eos_token_id": null, "bos_token_id": null}), None, vec![]),
        (json!({"eos_token_id": 7}), Some(1), vec![7]),
        (json!({"eos_token_id": [9, 7], "bos_token_id": 0}), Some(0), vec![9, 7]),
    ];
    for (keys, bos, eos) in cases {
        let config = parse(&config_json(keys.clone())).expect("good");
        assert_eq!((config.bos, config.eos), (bos, eos), "{keys}");
    }
    let folder = HfFolder::default().write();
    fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [5, 2, 6]}"#).expect("writable");
    let special = open_good(folder.path()).special;
    assert_eq!((special.bos, special.eos), (Some(1), BTreeSet::from([2, 5, 6])));
    check(
        json!({"eos_token_id": [2, "x"], "bos_token_id": -1}),
        "
error[bad-config]: the value is malformed
  --> config.json: bos_token_id
  = need: a token id, a whole number from 0
  = have: -1
error[bad-config]: the value is malformed
  --> config.json: eos_token_id
  = need: a token id, a whole number from 0
  = have: \"x\"",
    );
}

#[test]
fn ids_outside_the_vocabulary_are_told() {
    let folder = HfFolder::default().set("eos_token_id", json!([2, 16])).write();
    let warnings: Vec<String> = open_good(folder.path()).warnings.iter().map(|w| w.to_string()).collect();
    assert_eq!(
        warnings.join("\n").replace(&folder.path().display().to_string(), "DIR"),
        "warning[bad-token-id]: special ids are outside the model's vocabulary
  --> DIR
  = need: ids below 16
  = have: 16"
    );
}

#[test]
fn unsupported_architectures() {
    let cases = [
        (
            json!({"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}),
            "the architecture is",
            "architectures",
            "GemmaForCausalLM (model_type gemma)",
        ),
        (
            json!({"architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe"}),
            "the architecture is",
            "architectures",
            "Lfm2MoeForCausalLM (model_type lfm2_moe)",
        ),
        (
            json!({"architectures": ["WhisperForAudioClassification"], "model_type": "whisper"}),
            "the architecture is",
            "architectures",
            "WhisperForAudioClassification (model_type whisper)",
        ),
        (
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            "the architecture is",
            "architectures",
            "LlamaForSequenceClassification (model_type llama)",
        ),
        (
            json!({"architectures": null, "model_type": "phi3"}),
            "the architecture is",
            "architectures",
            "model_type phi3",
        ),
        (
            json!({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8}),
            "mixtures of experts are",
            "num_local_experts",
            "MixtralForCausalLM (model_type mixtral)",
        ),
        (
            json!({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 128}),
            "mixtures of experts are",
            "num_experts",
            "Qwen3MoeForCausalLM (model_type qwen3_moe)",
        ),
        (
            json!({"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "vision_config": {}}),
            "vision models are",
            "vision_config",
            "LlavaForConditionalGeneration (model_type llava)",
        ),
    ];
    for (keys, what, subject, have) in cases {
        check(
            keys,
            &format!(
                "error[unsupported-architecture]: {what} not supported
  --> config.json: {subject}
  = need: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Lfm2ForCausalLM or WhisperForConditionalGeneration
  = have: {have}"
            ),
        );
    }
    check(
        json!({"model_type": "qwen2"}),
        "
error[bad-config]: architectures and model_type name different models
  --> config.json: architectures
  = have: LlamaForCausalLM (model_type qwen2)",
    );
    check(
        json!({"architectures": null, "model_type": null}),
        "
error[bad-config]: the file does not say which architecture the model has
  --> config.json: architectures
  = need: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Lfm2ForCausalLM or WhisperForConditionalGeneration",
    );
}

#[test]
fn unsupported_features() {
    for kind in ["yarn", "dynamic", "longrope", "mrope"] {
        for key in ["rope_parameters", "rope_scaling"] {
            check(
                json!({key: {"rope_type": kind, "factor": 2.0}}),
                &format!(
                    "error[unsupported-rope]: the type of rotary embedding is not supported
  --> config.json: {key}.rope_type
  = need: default, linear or llama3
  = have: {kind}"
                ),
            );
        }
    }
    check(
        json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
        "
error[unsupported-rope]: rotary embeddings by kind of layer are not supported
  --> config.json: rope_parameters.full_attention
  = need: one for all layers
  = have: an object",
    );
    let part = |subject: &str| {
        format!(
            "error[unsupported-rope]: a rotary embedding of a part of each head is not supported
  --> config.json: {subject}
  = need: 1
  = have: 0.5"
        )
    };
    check(json!({"partial_rotary_factor": 0.5}), &part("partial_rotary_factor"));
    check(
        json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
        &part("rope_parameters.partial_rotary_factor"),
    );
    check(
        json!({"hidden_act": "gelu"}),
        "
error[unsupported-activation]: the activation is not supported
  --> config.json: hidden_act
  = need: silu
  = have: gelu",
    );
    check(
        json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
        "
error[unknown-tensor-type]: the weights are quantised in a form that npuc does not read
  --> config.json: quantization_config
  = need: F32, F16 or BF16 weights
  = have: gptq
  = help: use the checkpoint that was not quantised, or a GGUF of the model",
    );
}

#[test]
fn sliding_windows() {
    let window = |have: &str, window: u32, max: u32| {
        format!(
            "error[sliding-window]: attention over a sliding window is not supported
  --> config.json: sliding_window
  = need: no window, or one of at least max_position_embeddings = {max}
  = have: a window of {have}
  = help: set \"sliding_window\": null and \"max_position_embeddings\": {window} in config.json: contexts of up to \
             {window} tokens are not changed by the window"
        )
    };
    let mistral = |more: Value| {
        let mut keys = json!({"architectures": ["MistralForCausalLM"], "model_type": "mistral"});
        keys.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        keys
    };
    check(mistral(json!({"sliding_window": 63})), &window("63 tokens", 63, 64));
    check(
        mistral(json!({"max_position_embeddings": 32768})),
        &window("4096 tokens (the default where the key is absent)", 4096, 32768),
    );
    let qwen = |more: Value| {
        let mut keys = json!({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 32,
            "use_sliding_window": true});
        keys.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        keys
    };
    check(qwen(json!({"max_window_layers": 0})), &window("32 tokens", 32, 64));
    check(qwen(json!({"layer_types": ["sliding_attention"]})), &window("32 tokens", 32, 64));
    good(qwen(json!({"layer_types": ["full_attention"], "max_window_layers": 0})));
    check(
        json!({"layer_types": ["linear_attention"]}),
        "
error[unsupported-architecture]: a kind of layer is not supported
  --> config.json: layer_types
  = need: full_attention
  = have: linear_attention",
    );
}

#[test]
fn malformed_values() {
    let mut absent = HfFolder::default().unset("hidden_size").unset("vocab_size");
    absent.config["num_hidden_layers"] = Value::Null;
    assert_eq!(
        parse(&absent.config).expect_err("bad").to_string(),
        "error[bad-config]: a key that the model needs is absent
  --> config.json: hidden_size
error[bad-config]: a key that the model needs is absent
  --> config.json: num_hidden_layers
error[bad-config]: a key that the model needs is absent
  --> config.json: vocab_size"
    );
    let malformed = |key: &str, need: &str, have: &str| {
        format!(
            "error[bad-config]: the value is malformed\n  --> config.json: {key}\n  = need: {need}\n  = have: {have}"
        )
    };
    let width = "a whole number from 1 to 16777216";
    let positive = "a number above zero that 32 bits can hold";
    let cases = [
        (json!({"intermediate_size": 0}), malformed("intermediate_size", width, "0")),
        (json!({"intermediate_size": -4}), malformed("intermediate_size", width, "-4")),
        (json!({"intermediate_size": 1.5}), malformed("intermediate_size", width, "1.5")),
        (json!({"intermediate_size": u64::MAX}), malformed("intermediate_size", width, "18446744073709551615")),
        (json!({"intermediate_size": "12"}), malformed("intermediate_size", width, "the text \"12\"")),
        (json!({"intermediate_size": [12]}), malformed("intermediate_size", width, "a list")),
        (json!({"rms_norm_eps": 0}), malformed("rms_norm_eps", positive, "0")),
        (json!({"rms_norm_eps": "1e-5"}), malformed("rms_norm_eps", positive, "the text \"1e-5\"")),
        (json!({"rope_theta": -1.0}), malformed("rope_theta", positive, "-1")),
        (json!({"rope_theta": 1e39}), malformed("rope_theta", positive, "1000000000000000000000000000000000000000")),
        (json!({"tie_word_embeddings": 1}), malformed("tie_word_embeddings", "true or false", "1")),
        (json!({"hidden_act": 1}), malformed("hidden_act", "a text", "1")),
        (json!({"rope_scaling": 8}), malformed("rope_scaling", "an object", "8")),
        (
            json!({"rope_scaling": {"type": "linear"}}),
            "error[bad-config]: a key that the model needs is absent\n  --> config.json: rope_scaling.factor".into(),
        ),
        (
            json!({"rope_scaling": {"factor": 2.0}}),
            "error[bad-config]: a factor is given without the type of scaling
  --> config.json: rope_scaling.rope_type
  = need: default, linear or llama3"
                .into(),
        ),
        (
            json!({"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8}}),
            "error[bad-config]: rope_type and type differ
  --> config.json: rope_scaling.rope_type
  = have: llama3 and linear"
                .into(),
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8}}),
            "error[bad-config]: the frequency factors are out of order
  --> config.json: rope_scaling.high_freq_factor
  = need: more than low_freq_factor = 4
  = have: 4"
                .into(),
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}),
            "error[bad-config]: rope_parameters and rope_scaling differ
  --> config.json: rope_parameters
  = help: remove the one that is not the model's"
                .into(),
        ),
        (
            json!({"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
            "error[bad-config]: rope_theta is given twice and differs
  --> config.json: rope_parameters.rope_theta
  = need: 10000, as the outer rope_theta says
  = have: 500000"
                .into(),
        ),
        (
            json!({"num_attention_heads": 4, "num_key_value_heads": 3}),
            "error[bad-config]: the heads do not divide into whole groups
  --> config.json: num_key_value_heads
  = need: a divisor of num_attention_heads = 4
  = have: 3"
                .into(),
        ),
        (
            json!({"head_dim": 5}),
            "error[bad-config]: the rotary embedding needs heads of even width
  --> config.json: head_dim
  = need: an even number above zero
  = have: 5"
                .into(),
        ),
        (
            json!({"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 14}),
            "error[bad-config]: head_dim is absent and cannot be derived
  --> config.json: head_dim
  = need: hidden_size divisible by num_attention_heads
  = have: 14 and 3"
                .into(),
        ),
    ];
    for (keys, expected) in cases {
        check(keys, &expected);
    }
    for (text, expected) in [
        ("{\n\"a\": ]", "expected value at line 2 column 6"),
        ("[]", "invalid type: sequence, expected a map at line 1 column 0"),
    ] {
        assert_eq!(
            config_hf::parse(text.as_bytes(), Path::new("config.json")).expect_err("bad").to_string(),
            format!("error[bad-config]: the file is not a JSON object: {expected}\n  --> config.json")
        );
    }
}

/// A configuration that came through no front end, such as a bundle's, is refused and makes nothing divide by zero.
#[test]
fn whispers_heads_divide_its_width() {
    let sizes = |heads| StackSizes { layers: 1, heads, ffn: 12 };
    let of = |encoder, decoder| WhisperConfig {
        stack: Stack::Both,
        mels: 3,
        hidden: 8,
        encoder: sizes(encoder),
        decoder: sizes(decoder),
        source_positions: 4,
        target_positions: 5,
        vocab: 16,
        tied: true,
    };
    let check = |config: WhisperConfig, expected: &str| {
        let told = ModelConfig::Whisper(config).check().map_or_else(|e| e.to_string(), |()| String::new());
        assert_eq!(told.lines().filter(|line| line.contains("-->")).collect::<String>(), expected);
    };
    check(of(2, 2), "");
    check(of(0, 2), "  --> encoder.heads");
    check(of(2, 0), "  --> heads  --> kv_heads  --> head_dim");
    check(of(3, 2), "  --> encoder.heads");
    check(of(2, 3), "  --> heads");
    check(of(0, 2).of(Stack::Encoder), "  --> heads  --> kv_heads  --> head_dim  --> encoder.heads");
}
