//! A short, seeded mutation run over every parser of untrusted bytes: whatever is read, nothing panics.
//! The long runs are the cargo-fuzz targets in `/fuzz`, over the same entry points.

mod checkpoints;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use checkpoints::gguf_writer::Meta;
use checkpoints::small::{HfFolder, safetensors_bytes, small_gguf};
use npuc::front::{config_hf, gguf, non_finite, open, safetensors};

/// Mutants of each seed file, at most; slow machines stop at `LIMIT`.
const MUTANTS: usize = 20_000;
const LIMIT: Duration = Duration::from_secs(2);

/// xorshift64*, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Numbers that break careless arithmetic.
const EDGES: [u64; 10] = [0, 1, 2, 7, 31, 32, 1 << 31, 1 << 32, 1 << 63, u64::MAX];

/// One to four changes: a flipped bit, an edge number, a cut, a doubled or dropped piece.
fn mutate(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let piece = at..(at + 1 + random.below(24)).min(bytes.len());
        match random.below(6) {
            0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let width = [4, 8][random.below(2)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&edge[..width]);
            }
            3 => bytes.truncate(at),
            4 => {
                let copy = bytes[piece.clone()].to_vec();
                bytes.splice(piece.start..piece.start, copy);
            }
            _ => drop(bytes.drain(piece)),
        }
    }
    bytes
}

/// Parses mutants of `seed`, which itself is good.
fn run(name: &str, seed: &[u8], parse: impl Fn(&[u8]) -> bool) {
    assert!(parse(seed), "{name}: the seed must parse");
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let start = Instant::now();
    let (mut good, mut bad) = (0, 0);
    while good + bad < MUTANTS && start.elapsed() < LIMIT {
        if parse(&mutate(seed, &mut random)) { good += 1 } else { bad += 1 }
    }
    // A run that only ever fails or only ever succeeds tests nothing.
    assert!(good > 0 && bad > 0, "{name}: {good} good and {bad} bad mutants");
}

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
