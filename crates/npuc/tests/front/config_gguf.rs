//! GGUF metadata: what it says of a model, and each value that is refused.

use npuc::front::config::RopeScaling;

use super::checkpoints::gguf_writer::{GgufWriter, Meta};
use super::checkpoints::small::{small_gguf, write_file};
use super::checkpoints::{open_bad, open_good};

/// What opening says when the metadata of a good GGUF file is changed.
fn check(change: impl FnOnce(&mut GgufWriter), expected: &str) {
    let mut writer = small_gguf();
    change(&mut writer);
    let (folder, path) = write_file("m.gguf", &writer.bytes());
    assert_eq!(open_bad(&path, folder.path()), expected.trim_start());
}

#[test]
fn metadata() {
    let mut writer = small_gguf();
    writer.set("llama.rope.scaling.type", "linear");
    writer.set("llama.rope.scaling.factor", Meta::F32(4.0));
    writer.set("llama.feed_forward_length", Meta::I32s(vec![12, 12]));
    writer.set("llama.attention.sliding_window", Meta::U32(64));
    writer.set("llama.expert_count", Meta::U32(0));
    let (_folder, path) = write_file("m.gguf", &writer.bytes());
    let config = open_good(&path).config;
    assert_eq!(
        (config.rope().unwrap().theta, &config.rope().unwrap().scaling),
        (10000.0, &RopeScaling::Linear { factor: 4.0 })
    );
    assert_eq!((config.ffn(), config.vocab(), config.head_dim(), config.tied()), (12, 16, 4, true));

    let unsupported = "llama (Llama, Mistral and SmolLM2), qwen2, qwen3 or lfm2";
    for (arch, have) in [("gemma3", "gemma3"), ("lfm2moe", "lfm2moe"), ("qwen3moe", "qwen3moe")] {
        check(
            |writer| writer.set("general.architecture", arch),
            &format!(
                "error[unsupported-architecture]: the architecture is not supported
  --> DIR/m.gguf: general.architecture
  = need: {unsupported}
  = have: {have}"
            ),
        );
    }
    check(
        |writer| writer.set("general.architecture", "clip"),
        &format!(
            "error[unsupported-architecture]: the file is the vision or audio part of a model
  --> DIR/m.gguf: general.architecture
  = need: {unsupported}
  = have: clip
  = help: give the GGUF of the language model"
        ),
    );
    check(
        |writer| writer.set("llama.expert_count", Meta::U32(8)),
        &format!(
            "error[unsupported-architecture]: mixtures of experts are not supported
  --> DIR/m.gguf: llama.expert_count
  = need: {unsupported}
  = have: llama"
        ),
    );
    check(
        |writer| {
            writer.metadata.retain(|(key, _)| key != "llama.block_count" && key != "llama.context_length");
            writer.set("llama.attention.head_count", "two");
        },
        "
error[bad-config]: the value is malformed
  --> DIR/m.gguf: llama.attention.head_count
  = need: a whole number from 1 to 65536
  = have: the text \"two\"
error[bad-config]: a key that the model needs is absent
  --> DIR/m.gguf: llama.block_count
error[bad-config]: a key that the model needs is absent
  --> DIR/m.gguf: llama.context_length",
    );
    let cases = [
        (
            "llama.rope.scaling.type",
            Meta::from("yarn"),
            "unsupported-rope]: the type of rotary embedding is not supported",
            "none, linear or factors in rope_freqs.weight",
            "yarn",
        ),
        (
            "llama.rope.dimension_count",
            Meta::U32(2),
            "unsupported-rope]: a rotary embedding of a part of each head is not supported",
            "4, the width of a head",
            "2",
        ),
        (
            "llama.attention.value_length",
            Meta::U32(8),
            "unsupported-architecture]: values of another width than keys are not supported",
            "4",
            "8",
        ),
        (
            "llama.attention.sliding_window",
            Meta::U32(63),
            "sliding-window]: attention over a sliding window is not supported",
            "no window, or one of at least context_length = 64",
            "a window of 63 tokens",
        ),
        (
            "llama.feed_forward_length",
            Meta::I32s(vec![12, 16]),
            "bad-config]: the value is malformed",
            "a whole number from 1 to 16777216",
            "an array of whole numbers that differ",
        ),
        (
            "llama.attention.layer_norm_rms_epsilon",
            Meta::F32(f32::NAN),
            "bad-config]: the value is malformed",
            "a number above zero that 32 bits can hold",
            "NaN",
        ),
        (
            "llama.attention.scale",
            Meta::F32(0.5),
            "unsupported-architecture]: a scale that the model has is not supported",
            "1, or no such key",
            "0.5",
        ),
    ];
    for (key, value, message, need, have) in cases {
        check(
            |writer| writer.set(key, value),
            &format!("error[{message}\n  --> DIR/m.gguf: {key}\n  = need: {need}\n  = have: {have}"),
        );
    }
}

#[test]
fn rotary_factors() {
    let with = |values: &[f32], scaled: bool| {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let count = values.len();
        move |writer: &mut GgufWriter| {
            writer.tensor("rope_freqs.weight", 0, &[count], data);
            if scaled {
                writer.set("llama.rope.scaling.type", "linear");
                writer.set("llama.rope.scaling.factor", Meta::F32(2.0));
            }
        }
    };
    check(
        with(&[1.0, 8.0, 8.0], false),
        "
error[wrong-shape]: the rotary factors have another shape than the heads need
  --> DIR/m.gguf: rope_freqs.weight
  = need: f32 [2]
  = have: f32 [3]",
    );
    check(
        with(&[1.0, 0.0], false),
        "
error[unsupported-rope]: a rotary factor is impossible
  --> DIR/m.gguf: rope_freqs.weight
  = need: finite numbers above zero
  = have: 0",
    );
    check(
        with(&[1.0, 8.0], true),
        "
error[unsupported-rope]: the rotary embedding is scaled twice
  --> DIR/m.gguf: llama.rope.scaling.type
  = need: none beside rope_freqs.weight
  = have: linear",
    );
}
