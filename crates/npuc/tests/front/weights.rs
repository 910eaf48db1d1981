//! From stored tensors to the model's weights: heads, shapes, leftovers, values that are not finite.

use npuc::front::{Checkpoint, ModelConfig, non_finite};
use serde_json::json;

use super::checkpoints::gguf_writer::Meta;
use super::checkpoints::small::{HfFolder, Weight, small_gguf, write_file};
use super::checkpoints::{open_bad, open_good};

fn check(folder: &HfFolder, expected: &str) {
    let folder = folder.write();
    assert_eq!(open_bad(folder.path(), folder.path()), expected.trim_start());
}

fn warnings(checkpoint: &Checkpoint) -> String {
    let texts: Vec<String> = checkpoint.warnings.iter().map(|w| w.to_string()).collect();
    texts.join("\n").replace(&checkpoint.path.display().to_string(), "DIR")
}

fn tied(checkpoint: &Checkpoint) -> bool {
    checkpoint.config.tied()
}

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A folder that says `tied` and stores these of the pair; `equal` makes the head a copy of the embedding table.
fn pair(tied: bool, embedding: bool, head: bool, equal: bool) -> HfFolder {
    let mut folder = HfFolder::default().set("tie_word_embeddings", json!(tied));
    let table = folder.weight(EMBEDDING).clone();
    if head {
        let other = Weight::new(HEAD, &[16, 8]);
        folder.weights.push(if equal { Weight { name: HEAD.into(), ..table } } else { other });
    }
    if !embedding {
        folder.weights.retain(|weight| weight.name != EMBEDDING);
    }
    folder
}

#[test]
fn heads_are_decided_by_presence() {
    let cases = [
        (pair(true, true, false, false), true, ""),
        (pair(false, true, true, false), false, ""),
        (
            pair(true, true, true, true),
            true,
            "warning[tied-head]: the head is tied and stored all the same; it equals the embedding table, which is used
  --> DIR: lm_head.weight",
        ),
        (
            pair(true, true, true, false),
            false,
            "warning[tied-head]: the configuration ties the head, but another one is stored; the stored head is used
  --> DIR: lm_head.weight",
        ),
        (
            pair(true, false, true, false),
            true,
            "warning[tied-head]: only the head of a tied pair is stored; it is used as the embedding table too
  --> DIR: lm_head.weight",
        ),
    ];
    for (number, (written, is_tied, expected)) in cases.into_iter().enumerate() {
        let folder = written.write();
        let checkpoint = open_good(folder.path());
        assert_eq!(tied(&checkpoint), is_tied, "case {number}");
        assert_eq!(warnings(&checkpoint), expected, "case {number}");
        let stored = |name: &str| written.weights.iter().find(|w| w.name == name).map(|w| w.data.as_slice());
        let opened = |name: &str| checkpoint.tensors.get(name).map(|tensor| tensor.bytes().into_owned());
        assert_eq!(opened("embed_tokens.weight").as_deref(), stored(EMBEDDING).or(stored(HEAD)), "case {number}");
        assert_eq!(opened("lm_head.weight").as_deref(), stored(HEAD).filter(|_| !is_tied), "case {number}");
    }
    let untied = |message: &str, absent: &str, present: &str| {
        format!(
            "error[tied-head]: {message}
  --> DIR: tie_word_embeddings
  = need: {absent}, because tie_word_embeddings is false
  = have: {present} only
  = help: if the model's head is its embedding table, set \"tie_word_embeddings\": true in config.json
  = help: otherwise export the model again with {absent}"
        )
    };
    let message = "the head is not tied and not stored";
    check(&pair(false, true, false, false), &untied(message, HEAD, EMBEDDING));
    let message = "the embedding table is not stored and not tied to the head";
    check(&pair(false, false, true, false), &untied(message, EMBEDDING, HEAD));
    for (tied, absent) in [(true, EMBEDDING), (false, "model.embed_tokens.weight, lm_head.weight")] {
        check(
            &pair(tied, false, false, false),
            &format!(
                "error[missing-tensor]: tensors that the model needs are absent
  --> DIR: {absent}
  = need: shape [16, 8]"
            ),
        );
    }
}

#[test]
fn gguf_heads() {
    for head in [false, true] {
        let mut writer = small_gguf();
        if head {
            writer.tensor("output.weight", 0, &[16, 8], vec![0; 512]);
        }
        let (_folder, path) = write_file("m.gguf", &writer.bytes());
        assert_eq!(tied(&open_good(&path)), !head);
    }
}

#[test]
fn absent_and_misshapen_weights_are_told_at_once() {
    let mut folder = HfFolder::default();
    folder.weights.retain(|weight| !weight.name.contains("layernorm"));
    *folder.weight("q_proj.weight") = Weight::new("model.layers.0.self_attn.q_proj.weight", &[4, 8]);
    *folder.weight("gate_proj.weight") = Weight::new("model.layers.0.mlp.gate_proj.weight", &[8, 12]);
    *folder.weight("up_proj.weight") = Weight::new("model.layers.0.mlp.up_proj.weight", &[8, 12]);
    check(
        &folder,
        "
error[wrong-shape]: tensors have another shape than the configuration says
  --> DIR: model.layers.0.self_attn.q_proj.weight
  = need: [8, 8]
  = have: [4, 8]
error[wrong-shape]: tensors have another shape than the configuration says
  --> DIR: model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight
  = need: [12, 8]
  = have: [8, 12]
error[missing-tensor]: tensors that the model needs are absent
  --> DIR: model.layers.0.input_layernorm.weight, model.layers.0.post_attention_layernorm.weight
  = need: shape [8]",
    );
    let mut writer = small_gguf();
    writer.set("llama.block_count", Meta::U32(2));
    writer.tensors.retain(|tensor| tensor.name != "blk.0.ffn_down.weight");
    let (folder, path) = write_file("m.gguf", &writer.bytes());
    assert_eq!(
        open_bad(&path, folder.path()),
        "error[missing-tensor]: tensors that the model needs are absent
  --> DIR/m.gguf: blk.0.ffn_down.weight, blk.1.ffn_down.weight
  = need: shape [8, 12]
error[missing-tensor]: tensors that the model needs are absent
  --> DIR/m.gguf: blk.1.attn_q.weight, blk.1.attn_output.weight
  = need: shape [8, 8]
error[missing-tensor]: tensors that the model needs are absent
  --> DIR/m.gguf: blk.1.attn_k.weight, blk.1.attn_v.weight
  = need: shape [4, 8]
error[missing-tensor]: tensors that the model needs are absent
  --> DIR/m.gguf: blk.1.ffn_gate.weight, blk.1.ffn_up.weight
  = need: shape [12, 8]
error[missing-tensor]: tensors that the model needs are absent
  --> DIR/m.gguf: blk.1.attn_norm.weight, blk.1.ffn_norm.weight
  = need: shape [8]"
    );
    // Names without the leading `model.` are the same weights.
    let mut folder = HfFolder::default();
    for weight in &mut folder.weights {
        weight.name = weight.name.replacen("model.", "", 1);
    }
    assert_eq!(open_good(folder.write().path()).tensors.len(), 11);
    folder.weights.push(Weight::new("model.norm.weight", &[8]));
    check(
        &folder,
        "
error[duplicate-name]: two tensors are the same weight of the model
  --> DIR: model.norm.weight",
    );
}

#[test]
fn unused_tensors_are_listed() {
    let mut folder = HfFolder::default();
    for name in ["inv_freq", "a.bias", "b.bias", "c.bias", "d.bias"] {
        folder.weights.push(Weight::new(&format!("model.layers.0.self_attn.{name}"), &[4]));
    }
    let folder = folder.write();
    assert_eq!(
        warnings(&open_good(folder.path())),
        "warning[unused-tensors]: the checkpoint has 5 tensors that the model does not use
  --> DIR: model.layers.0.self_attn.a.bias, model.layers.0.self_attn.b.bias, model.layers.0.self_attn.c.bias, \
         model.layers.0.self_attn.d.bias and 1 more"
    );
    let mut writer = small_gguf();
    writer.tensor("blk.0.attn_rot_embd.weight", 0, &[2], vec![0; 8]);
    let (_folder, path) = write_file("m.gguf", &writer.bytes());
    assert_eq!(
        warnings(&open_good(&path)),
        "warning[unused-tensors]: the checkpoint has 1 tensor that the model does not use
  --> DIR: blk.0.attn_rot_embd.weight"
    );
}

/// Biases and per-head norms of GGUF files are found by presence, and biases of `llama` are interleaved too.
#[test]
fn gguf_biases() {
    let ramp = |n: u32| (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect::<Vec<u8>>();
    let mut writer = small_gguf();
    for (name, rows) in [("attn_q", 8), ("attn_k", 4), ("attn_v", 4), ("attn_output", 8)] {
        writer.tensor(&format!("blk.0.{name}.bias"), 0, &[rows as usize], ramp(rows));
    }
    for (name, rows) in [("ffn_gate", 12), ("ffn_up", 12), ("ffn_down", 8)] {
        writer.tensor(&format!("blk.0.{name}.bias"), 0, &[rows as usize], ramp(rows));
    }
    let (_folder, path) = write_file("m.gguf", &writer.bytes());
    let checkpoint = open_good(&path);
    let ModelConfig::Llama(config) = &checkpoint.config else { panic!("another family") };
    assert!(config.qkv_bias && config.o_bias && config.mlp_bias && !config.qk_norm);
    let bias = |name: &str| {
        let bytes = checkpoint.tensors[&format!("layers.0.self_attn.{name}.bias")].bytes().into_owned();
        bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect::<Vec<f32>>()
    };
    assert_eq!(bias("q_proj"), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    assert_eq!(bias("k_proj"), [0.0, 2.0, 1.0, 3.0]);
    assert_eq!(bias("v_proj"), [0.0, 1.0, 2.0, 3.0]);
}

/// `qwen2` and `qwen3` store their rows in order.
#[test]
fn gguf_rows_of_qwen_stay() {
    for arch in ["qwen2", "qwen3"] {
        let mut writer = small_gguf();
        for (key, _) in &mut writer.metadata {
            *key = key.replace("llama.", &format!("{arch}."));
        }
        writer.set("general.architecture", arch);
        for (name, rows) in [("attn_q", 8), ("attn_k", 4), ("attn_v", 4)] {
            writer.tensor(&format!("blk.0.{name}.bias"), 0, &[rows], vec![0; 4 * rows]);
        }
        for name in ["attn_q_norm", "attn_k_norm"] {
            writer.tensor(&format!("blk.0.{name}.weight"), 0, &[4], vec![0; 16]);
        }
        let (_folder, path) = write_file("m.gguf", &writer.bytes());
        let checkpoint = open_good(&path);
        let ModelConfig::Llama(config) = &checkpoint.config else { panic!("another family") };
        assert!(config.qkv_bias && config.qk_norm, "{arch}");
        let stored = writer.find("blk.0.attn_q.weight").data.clone();
        assert_eq!(*checkpoint.tensors["layers.0.self_attn.q_proj.weight"].bytes(), stored, "{arch}");
    }
}

#[test]
fn values_that_are_not_finite_are_counted() {
    let folder = HfFolder::default().write();
    assert_eq!(non_finite(&open_good(folder.path())), []);
    let mut bad = HfFolder::default();
    let gate = "model.layers.0.mlp.gate_proj.weight";
    let mut values = [0.5; 96];
    (values[0], values[50], values[95]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    *bad.weight(gate) = Weight::of(gate, &[12, 8], &values);
    *bad.weight("model.norm.weight") = Weight::of("model.norm.weight", &[8], &[f32::NAN; 8]);
    let folder = bad.write();
    let texts: Vec<String> = non_finite(&open_good(folder.path())).iter().map(|w| w.to_string()).collect();
    assert_eq!(
        texts.join("\n").replace(&folder.path().display().to_string(), "DIR"),
        "warning[non-finite-weights]: a weight holds values that are not finite
  --> DIR/model.safetensors: model.layers.0.mlp.gate_proj.weight
  = need: finite values
  = have: 1 NaN and 2 infinite of 96
warning[non-finite-weights]: a weight holds values that are not finite
  --> DIR/model.safetensors: model.norm.weight
  = need: finite values
  = have: 8 NaN and 0 infinite of 8"
    );
}
