//! A short, seeded mutation run over every parser of untrusted bytes: whatever is read, nothing panics.
//! The long runs are the cargo-fuzz targets in `/fuzz`, over the same entry points.

mod checkpoints;
mod mutants;

use std::fs;
use std::path::Path;

use checkpoints::gguf_writer::Meta;
use checkpoints::small::{HfFolder, safetensors_bytes, small_ct2, small_gguf};
use mutants::run;
use npuc::front::{config_hf, ct2, gguf, non_finite, open, safetensors};

#[test]
fn safetensors_headers() {
    run("safetensors", &safetensors_bytes(&HfFolder::default().weights), |bytes| safetensors::parse(bytes).is_ok());
}

#[test]
fn gguf_headers() {
    let mut writer = small_gguf();
    writer.set("tokenizer.ggml.model", "gpt2");
    writer.set("tokenizer.ggml.tokens", Meta::Strs(vec!["a".into(), "ü".into()]));
    writer.set("tokenizer.ggml.scores", Meta::F32s(vec![0.5, 1.5]));
    writer.set("tokenizer.ggml.add_bos_token", Meta::Bool(true));
    run("gguf", &writer.bytes(), |bytes| gguf::parse(bytes).is_ok());
}

#[test]
fn ct2_containers() {
    run("ct2", &small_ct2().bytes(), |bytes| match ct2::parse(bytes) {
        Ok(container) => {
            assert!(container.tensors.iter().all(|tensor| bytes.get(tensor.range.clone()).is_some()));
            assert!(container.aliases.iter().all(|(_, tensor)| *tensor < container.tensors.len()));
            true
        }
        Err(_) => false,
    });
}

#[test]
fn configurations() {
    let config = HfFolder::default().config.to_string();
    run("config.json", config.as_bytes(), |bytes| config_hf::parse(bytes, "config.json".as_ref()).is_ok());
}

/// The whole way: what opens at all can be read to its last byte.
#[test]
fn opened_checkpoints() {
    let opened = |path: &Path| match open(path) {
        Ok(checkpoint) => {
            for (name, tensor) in &checkpoint.tensors {
                assert_eq!(tensor.bytes().len(), tensor.byte_len(), "{name}");
            }
            non_finite(&checkpoint);
            true
        }
        Err(_) => false,
    };
    let folder = HfFolder::default().write();
    let file = folder.path().join("model.safetensors");
    run("open safetensors", &safetensors_bytes(&HfFolder::default().weights), |bytes| {
        fs::write(&file, bytes).expect("writable");
        opened(folder.path())
    });
    let file = folder.path().join("m.gguf");
    run("open gguf", &small_gguf().bytes(), |bytes| {
        fs::write(&file, bytes).expect("writable");
        opened(&file)
    });
    let file = folder.path().join("model.bin");
    run("open ct2", &small_ct2().bytes(), |bytes| {
        fs::write(&file, bytes).expect("writable");
        opened(&file)
    });
}

#[test]
fn ir_text() {
    const TEXT: &str = r#"graph "1t8c" {
  %0 = input "embeds" : f32[2, 64]
  %1 = weight "norm.weight" : f32[64]
  %2 = rms_norm(%0, %1) {eps = 1e-5} : f32[2, 64] @ "norm"
  %3 = slice(%2) {axis = 1, start = 0, len = 32} : f32[2, 32] @ "a \"b\"\u{7}"
  %4 = matmul(%3, %3) {transpose_b = true} : f32[2, 2]
  %5 = reshape(%4) {shape = [4, 1]} : f32[4, 1]
  output "logits" = %5
}"#;
    run("ir text", TEXT.as_bytes(), |bytes| {
        let graph = std::str::from_utf8(bytes).ok().and_then(|text| npuc::ir::text::parse(text).ok());
        graph.is_some_and(|graph| npuc::ir::verify::verify(&graph).is_ok())
    });
}
