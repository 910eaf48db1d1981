//! Every small checkpoint against outputs that another program computed: Hugging Face transformers for the
//! fixtures in `../shared`, numpy in f64 for those in `tests/data/checkpoints`.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use npuc::front::ModelConfig;
use npuc::front::config::{Rope, RopeScaling};
use npuc::model::rope::frequencies;
use npuc_run::fidelity::{Gate, Reference, compare};
use npuc_run::program::Program;
use npuc_run::session::Session;

mod data;

use data::{checkpoints, fixtures, shapes};

/// The steps that every checkpoint is run with.
const STEPS: [&str; 4] = ["1t64c", "16t64c,1t64c", "32t64c,1t64c", "64t64c,1t64c"];

fn check(model: &Path, reference: &Path, max_abs: &str, round: Option<fn(f32) -> f32>) {
    let reference = Reference::read(reference).unwrap();
    let gate: Gate = format!("max_abs<={max_abs},greedy>=1,cosine>=0.999999").parse().unwrap();
    for steps in STEPS {
        let mut program = Program::open(model, Some(shapes(steps))).unwrap();
        if let Some(round) = round {
            round_frequencies(&mut program, round);
        }
        let mut session = Session::new(&program, 2, &[]).unwrap();
        let fidelity = compare(&mut session, &reference).unwrap();
        gate.check(&fidelity).unwrap_or_else(|e| panic!("{} as {steps}: {e}\n{fidelity:?}", model.display()));
    }
}

/// Rounds the rotary frequencies as the script did that computed the outputs of the 16-bit fixtures: it cast the
/// model with its frequency buffer to 16 bits and back. A model that is loaded keeps them in f32.
fn round_frequencies(program: &mut Program, round: fn(f32) -> f32) {
    let head_dim = program.config.head_dim();
    let rope = match &mut program.config {
        ModelConfig::Llama(config) => &mut config.rope,
        ModelConfig::Lfm2(config) => &mut config.rope,
        ModelConfig::Whisper(_) => panic!("Whisper turns nothing"),
    };
    let scaled = frequencies(rope, head_dim);
    let plain = frequencies(&Rope { scaling: RopeScaling::None, ..rope.clone() }, head_dim);
    let factors = plain.iter().zip(scaled).map(|(plain, scaled)| plain / round(scaled)).collect();
    rope.scaling = RopeScaling::Factors { factors };
}

#[test]
fn fixtures_of_transformers() {
    let Some(fixtures) = fixtures() else { return };
    let bf16_round: fn(f32) -> f32 = |x| bf16::from_f32(x).to_f32();
    let f16_round: fn(f32) -> f32 = |x| f16::from_f32(x).to_f32();
    for (name, max_abs, round) in [
        ("llama-gqa3-f32", "2e-4", None),
        ("llama-untied-sharded-f16", "2e-3", Some(f16_round)),
        ("llama3-tied-bf16", "2e-3", Some(bf16_round)),
        ("lfm2-f32", "2e-4", None),
        ("lfm2-bf16", "2e-3", Some(bf16_round)),
    ] {
        let folder = fixtures.join(name);
        check(&folder, &folder.join("expected.safetensors"), max_abs, round);
    }
}

#[test]
fn fixtures_with_frequencies_in_f32() {
    let Some(fixtures) = fixtures() else { return };
    for name in ["llama-untied-sharded-f16", "llama3-tied-bf16"] {
        let reference = checkpoints().join(format!("fixtures/{name}.expected.safetensors"));
        check(&fixtures.join(name), &reference, "2e-4", None);
    }
}

#[test]
fn folders_and_ggufs_of_numpy() {
    let mut checked = 0;
    for entry in std::fs::read_dir(checkpoints()).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        let reference = if path.is_dir() && path.join("config.json").is_file() {
            path.join("expected.safetensors")
        } else if path.extension().is_some_and(|ext| ext == "gguf") {
            path.with_extension("expected.safetensors")
        } else {
            continue;
        };
        check(&path, &reference, "2e-4", None);
        checked += 1;
    }
    assert!(checked >= 25, "only {checked} checkpoints in {}", checkpoints().display());
}
