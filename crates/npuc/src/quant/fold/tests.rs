//! Tests of folding: a model with folded weights gives the scores of the model itself.

use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;
use crate::build::weight_types;
use crate::exec::Executor;
use crate::front;
use crate::ir::Def;
use crate::model::{CacheProtocol, Port, StepShape, rope};
use crate::tensor::DType;

const TOKENS: usize = 12;

/// Checkpoints of the repository that between them have biases, per-head norms, grouped and single heads, tied heads and
/// heads of their own, interleaved rows, blocks.
const OWN: [&str; 9] = [
    "llama-biases-f32",
    "llama-gqa3-f16.gguf",
    "llama-k-quants.gguf",
    "llama-reverse-tied-f32",
    "llama3-tied-q4_0.gguf",
    "mistral-bf16",
    "qwen2-bf16",
    "qwen2-q8_0.gguf",
    "qwen3-bf16",
];
/// Fixtures beside the repository.
const SHARED: [&str; 3] = ["llama-gqa3-f32", "llama-untied-sharded-f16", "llama3-tied-bf16"];

#[allow(clippy::print_stderr)]
fn models() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = OWN.map(|name| root.join("../../tests/data/checkpoints").join(name));
    let shared = SHARED.map(|name| root.join("../../../shared/fixtures").join(name));
    let is_there = |path: &PathBuf| {
        if !path.exists() {
            eprintln!("NOT RUN: the fixture is absent at {}", path.display());
        }
        path.exists()
    };
    own.into_iter().chain(shared.into_iter().filter(is_there)).collect()
}

/// The scores of the first tokens, `[TOKENS, vocab]`.
fn logits(config: &ModelConfig, tensors: &BTreeMap<String, Tensor>) -> Vec<f32> {
    let shape = StepShape { tokens: TOKENS, capacity: TOKENS };
    let graph = model::build_step(config, &weight_types(tensors), shape, CacheProtocol::Append).unwrap();
    let frequencies = rope::frequencies(config.rope().unwrap(), config.head_dim());
    let angles = (0..TOKENS).flat_map(|position| frequencies.iter().map(move |&f| rope::angle(position, f)));
    let content = |name: &str, len: usize| -> Vec<f32> {
        match name.parse().unwrap() {
            Port::Embeds => {
                let row = |token: usize| to_f32(&tensors[llama::EMBEDDING].rows(token * 3 + 1..token * 3 + 2).unwrap());
                (0..TOKENS).flat_map(row).collect()
            }
            Port::RopeCos => angles.clone().map(f32::cos).collect(),
            Port::RopeSin => angles.clone().map(f32::sin).collect(),
            Port::Mask => {
                let visible = |i: usize| (TOKENS..=TOKENS + i / (2 * TOKENS)).contains(&(i % (2 * TOKENS)));
                (0..len).map(|i| if visible(i) { 0.0 } else { -1e9 }).collect()
            }
            Port::Past(..) => vec![0.0; len],
            port @ (Port::Mel
            | Port::Heard(..)
            | Port::WriteMask
            | Port::History
            | Port::Hidden
            | Port::Logits
            | Port::LogitsPart(_)) => {
                panic!("{port} enters a step")
            }
            port @ (Port::New(..) | Port::Next(..) | Port::Cross(_)) => panic!("{port} enters a step"),
        }
    };
    let inputs = graph.values.iter().filter(|value| value.def == Def::Input);
    let inputs: Vec<Vec<f32>> = inputs.map(|value| content(&value.name, value.ty.shape.elements().unwrap())).collect();
    let mut executor = Executor::new(&graph, tensors, &[]).unwrap();
    executor.run(&[&inputs]);
    let port = executor.outputs().position(|(name, _)| name == Port::Logits.to_string()).unwrap();
    executor.output(port).to_vec()
}

fn folded(folds: &Folds, tensors: &BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    let fold = |spec: model::WeightSpec| {
        let values = folds.rows(&spec.name, tensors, 0..spec.shape[0]).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        (spec.name, Tensor::in_memory(DType::F32, spec.shape, bytes.into()).unwrap())
    };
    model::weight_specs(folds.config()).into_iter().map(fold).collect()
}

/// The folded model gives the same scores, up to rounding.
fn check(what: &str, folds: &Folds, checkpoint: &front::Checkpoint) {
    let before = logits(&checkpoint.config, &checkpoint.tensors);
    let after = logits(folds.config(), &folded(folds, &checkpoint.tensors));
    let largest = before.iter().fold(1.0f32, |a, b| a.max(b.abs()));
    let off = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(before.len() == after.len() && before.iter().all(|x| x.is_finite()), "{what}");
    assert!(off < 1e-4 * largest, "{what}: scores up to {largest} are off by {off}");
}

fn rotated(config: &ModelConfig) -> Folds {
    Folds::rotated(config, &Arc::new(Rotation::of(config.hidden(), 1)), &Arc::new(Rotation::of(config.head_dim(), 2)))
}

/// Random scales from 1/4 to 4 at every site.
fn scale_all(folds: &mut Folds, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut scale = || ((random.next_u32() >> 8) as f32 / (1 << 22) as f32 - 2.0).exp2();
    let config = folds.config().clone();
    for site in Site::all(&config) {
        let scales: Vec<f32> = (0..site.width(&config)).map(|_| scale()).collect();
        folds.scale(site, &scales);
    }
}

#[test]
fn folding_keeps_the_function() {
    for path in models() {
        let checkpoint = front::open(&path).unwrap();
        let name = path.display();
        check(&format!("{name}, rotated"), &rotated(&checkpoint.config), &checkpoint);
        let mut folds = Folds::none(&checkpoint.config);
        scale_all(&mut folds, 3);
        scale_all(&mut folds, 4);
        check(&format!("{name}, scaled"), &folds, &checkpoint);
        let mut folds = rotated(&checkpoint.config);
        scale_all(&mut folds, 5);
        check(&format!("{name}, rotated and scaled"), &folds, &checkpoint);
    }
}

/// The head is made of the tied table, gains are gone, and any rows of a weight are those of the whole.
#[test]
fn weights_are_folded_row_by_row() {
    for path in &models()[..OWN.len()] {
        let checkpoint = front::open(path).unwrap();
        let mut folds = rotated(&checkpoint.config);
        assert!(!folds.config().tied());
        scale_all(&mut folds, 6);
        for spec in model::weight_specs(folds.config()) {
            let (count, cols) = (spec.shape[0], spec.shape.elements().unwrap() / spec.shape[0]);
            let whole = folds.rows(&spec.name, &checkpoint.tensors, 0..count).unwrap();
            assert_eq!(whole.len(), count * cols, "{}", spec.name);
            for rows in [0..1, count / 2..count / 2 + 1, 1..count, count - 1..count] {
                let part = folds.rows(&spec.name, &checkpoint.tensors, rows.clone()).unwrap();
                assert!(part == whole[rows.start * cols..rows.end * cols], "{} {rows:?}", spec.name);
            }
            let is_head_norm = spec.name.ends_with("q_norm.weight") || spec.name.ends_with("k_norm.weight");
            let kept = folds.get(&spec.name).unwrap().is_kept();
            let bias = |projection: &str| spec.name.ends_with(&format!("{projection}_proj.bias"));
            assert_eq!(kept, is_head_norm || bias("q") || bias("k") || bias("gate"), "{}", spec.name);
            if spec.name == FINAL_NORM {
                assert!(whole.iter().all(|&x| x == 1.0));
            }
        }
    }
}

#[test]
fn what_is_not_there_is_named() {
    let checkpoint = front::open(&models()[5]).unwrap();
    let folds = rotated(&checkpoint.config);
    let mut fewer = checkpoint.tensors.clone();
    fewer.remove("layers.0.input_layernorm.weight");
    for (tensors, name, rows, code, subject) in [
        (&fewer, "layers.0.self_attn.q_proj.weight", 0..1, Code::MissingTensor, "layers.0.input_layernorm.weight"),
        (
            &checkpoint.tensors,
            "layers.99.mlp.up_proj.weight",
            0..1,
            Code::MissingTensor,
            "layers.99.mlp.up_proj.weight",
        ),
        (&checkpoint.tensors, "embed_tokens.weight", 1 << 30..1 << 31, Code::WrongShape, "embed_tokens.weight"),
        (&checkpoint.tensors, "embed_tokens.weight", 3..3, Code::WrongShape, "embed_tokens.weight"),
        (&checkpoint.tensors, "embed_tokens.weight", 0..1 << 20, Code::WrongShape, "embed_tokens.weight"),
    ] {
        let error = folds.rows(name, tensors, rows).unwrap_err();
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, fault.subject.as_deref()), (code, Some(subject)));
    }
}
