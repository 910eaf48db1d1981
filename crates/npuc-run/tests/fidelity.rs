//! Figures of small models: perplexity against scores that other programs computed, divergence against the plain formula,
//! and where a perturbed weight shows.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use npuc_run::fidelity::{Difference, Reference, Tracer, Windows, compare_text, layers, perplexity};
use npuc_run::program::Program;
use npuc_run::session::Session;

mod data;

use data::{checkpoints, fixtures, shapes};

/// The first row of prompts of a reference file.
fn ids(reference: &Path) -> Vec<u32> {
    Reference::read(reference).unwrap().prompts[0].clone()
}

/// The perplexity of one window, and its standard error, as numpy has them from the scores of the reference file.
fn check_perplexity(model: &Path, reference: &Path, expected: (f64, f64)) {
    let ids = ids(reference);
    let windows = Windows::new(ids.clone(), ids.len(), None, None).unwrap();
    for steps in ["1t64c", "16t64c,1t64c"] {
        let program = Program::open(model, Some(shapes(steps))).unwrap();
        let mut session = Session::new(&program, 2, &[]).unwrap();
        let have = perplexity(&mut session, &windows).unwrap().perplexity;
        let off = (have.value / expected.0 - 1.0).abs().max((have.standard_error / expected.1 - 1.0).abs());
        assert!(off < 1e-3, "{} as {steps}: {have:?}, not {expected:?}", model.display());
        assert_eq!(have.ids, ids.len() / 2 - 1);
    }
}

#[test]
fn perplexity_of_numpys_scores() {
    for (model, reference, expected) in [
        ("qwen3-bf16", "qwen3-bf16/expected.safetensors", (706.6750662598331, 494.64179723365584)),
        ("llama3-tied-q4_0.gguf", "llama3-tied-q4_0.expected.safetensors", (868.1073500882102, 406.7899289450291)),
        ("llama-gqa3-q8_0.gguf", "llama-gqa3-q8_0.expected.safetensors", (1224.928137005882, 531.2541068162451)),
    ] {
        check_perplexity(&checkpoints().join(model), &checkpoints().join(reference), expected);
    }
}

#[test]
fn perplexity_of_transformers_scores() {
    let Some(fixtures) = fixtures() else { return };
    let folder = fixtures.join("llama-gqa3-f32");
    check_perplexity(&folder, &folder.join("expected.safetensors"), (1151.8925548838404, 418.79597191216396));
}

/// `llama-perplexity -m MODEL.gguf -f tests/data/prose.txt -c 64` (llama.cpp b11434), which rounds activations to 8 bits for
/// products with q8_0 weights. The first two tokenizers begin a text with BOS, the third does not; without the rule of BOS the first
/// two are off by 1 % and 4.5 %.
#[test]
fn perplexity_of_llama_cpp() {
    let text = fs::read_to_string(checkpoints().join("../prose.txt")).unwrap();
    for (name, begins_with, windows, expected, error) in [
        ("mistral-spm-q8_0.gguf", Some(1), 46, 980.5589, 35.84474),
        ("llama3-tied-bf16.gguf", Some(0), 40, 1442.3726, 58.41922),
        ("qwen2-q8_0.gguf", None, 50, 843.6148, 29.85355),
    ] {
        let program = Program::open(&checkpoints().join(name), Some(shapes("64t64c,1t64c"))).unwrap();
        let tokenizer = &program.text.as_ref().unwrap().as_ref().unwrap().tokenizer;
        let bos = tokenizer.first_id().unwrap();
        let cut = Windows::new(tokenizer.encode(&text, true).unwrap(), 64, bos, None).unwrap();
        let mut session = Session::new(&program, 2, &[]).unwrap();
        let figures = perplexity(&mut session, &cut).unwrap();
        assert_eq!((bos, figures.windows), (begins_with, windows), "{name}");
        let have = figures.perplexity;
        let off = (have.value / expected - 1.0).abs().max((have.standard_error / error - 1.0).abs());
        assert!(off < 0.005, "{name}: {have:?}, not {expected} +/- {error}");
    }
}

fn open(name: &str) -> Program {
    Program::open(&checkpoints().join(name), Some(shapes("8t32c,1t32c"))).unwrap()
}

fn text_ids(count: u32) -> Vec<u32> {
    (0..count).map(|i| i * 7919 % 251).collect()
}

#[test]
fn a_model_against_itself() {
    let program = open("qwen3-bf16");
    let session = || Session::new(&program, 2, &[]).unwrap();
    let windows = Windows::new(text_ids(50), 16, None, None).unwrap();
    let fidelity = compare_text(&mut session(), &mut session(), &windows).unwrap();
    let text = fidelity.text.as_ref().unwrap();
    let kl = text.kl.unwrap();
    assert_eq!((kl.mean, kl.median, kl.p99, kl.max, text.perplexity_ratio), (0.0, 0.0, 0.0, 0.0, Some(1.0)));
    assert_eq!((fidelity.top1, fidelity.top10, fidelity.max_abs), (Some(1.0), Some(1.0), Some(0.0)));
    assert_eq!((fidelity.greedy, fidelity.greedy_ids, fidelity.greedy_length), (Some(1.0), 24, Some(8.0)));
    assert!((fidelity.cosine_min.unwrap() - 1.0).abs() < 1e-12);
    assert_eq!((fidelity.positions, text.windows, text.left_out_ids), (21, 3, 2));
    let alone = perplexity(&mut session(), &windows).unwrap();
    assert_eq!(Some(alone.perplexity), text.reference_perplexity);
    assert_eq!(alone.perplexity, text.perplexity);
    let inside = layers(&program, &program, &text_ids(50), 2).unwrap();
    assert_eq!((inside.prefill_tokens, inside.decode_steps, inside.unpaired.model), (8, 4, 0));
    assert!(inside.values.len() > 20 && inside.values.iter().all(|value| value.equal));
}

/// The divergences of two models' scores, written with probabilities instead of logarithms of sums.
fn plain_divergences(reference: &Program, model: &Program, windows: &Windows) -> Vec<f64> {
    let probabilities = |program: &Program| {
        let mut session = Session::new(program, 2, &[]).unwrap();
        let mut rows = Vec::new();
        for ids in windows.iter() {
            session.reset();
            session
                .feed(&ids, |scores| {
                    let weights: Vec<f64> = scores.iter().map(|&score| f64::from(score).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    rows.push(weights.iter().map(|weight| weight / sum).collect::<Vec<f64>>());
                })
                .unwrap();
        }
        rows
    };
    let rows = probabilities(reference).into_iter().zip(probabilities(model));
    let kept = rows.enumerate().filter(|(row, _)| windows.scored().contains(&(row % windows.context())));
    kept.map(|(_, (p, q))| p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum()).collect()
}

#[test]
fn two_models_by_the_plain_formula() {
    for (reference, model) in [
        ("llama-gqa3-f16.gguf", "llama-gqa3-q8_0.gguf"),
        ("llama-gqa3-q8_0.gguf", "llama-gqa3-q4_0.gguf"),
        ("llama3-tied-bf16.gguf", "llama3-tied-q8_0.gguf"),
    ] {
        let (reference, model) = (open(reference), open(model));
        let windows = Windows::new(text_ids(48), 12, Some(1), None).unwrap();
        let mut expected = plain_divergences(&reference, &model, &windows);
        let session = |program: &Program| Session::new(program, 2, &[]).unwrap();
        let fidelity = compare_text(&mut session(&model), &mut session(&reference), &windows).unwrap();
        let kl = fidelity.text.unwrap().kl.unwrap();
        expected.sort_by(f64::total_cmp);
        let mean = expected.iter().sum::<f64>() / expected.len() as f64;
        let middle = (expected[9] + expected[10]) / 2.0;
        assert_eq!(expected.len(), 20);
        for (have, expected) in [(kl.mean, mean), (kl.median, middle), (kl.max, expected[19])] {
            assert!((have - expected).abs() < 1e-9 * expected.max(1e-3) && have > 0.0, "{have} is not {expected}");
        }
    }
}

/// A copy of a folder whose named weight has some of its bytes flipped.
fn perturbed(folder: &Path, to: &Path, weight: &str) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    let file = to.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let index: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let offset = header + index[weight]["data_offsets"][0].as_u64().unwrap() as usize;
    // The signs of some f32.
    (0..64).for_each(|i| bytes[offset + 4 * i + 3] ^= 0x80);
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_perturbed_weight_is_where_forms_part() {
    let own = checkpoints().join("llama-biases-f32");
    let folders = [Some(own), fixtures().map(|fixtures| fixtures.join("llama-gqa3-f32"))];
    let paths =
        ["layers.1.mlp.down_proj", "layers.0.self_attn.o_proj", "layers.1.self_attn.q_proj", "layers.0.mlp.up_proj"];
    for (folder, path) in folders.iter().flatten().flat_map(|folder| paths.map(|path| (folder, path))) {
        let other = tempfile::tempdir().unwrap();
        let weight = format!("model.{path}.weight");
        perturbed(folder, other.path(), &weight);
        let [good, bad] =
            [folder.as_path(), other.path()].map(|path| Program::open(path, Some(shapes("8t32c,1t32c"))).unwrap());
        let mut tracer = Tracer::new(&good, &bad, 2).unwrap();
        for ids in [&text_ids(8)[..], &[3]] {
            let differences = tracer.step(ids).unwrap();
            let parts = |difference: &&Difference| difference.distance.sqnr_db() < 40.0;
            let first = differences.iter().find(parts).unwrap();
            assert_eq!((first.at.path.as_str(), first.at.op), (path, "linear"), "{weight}");
        }
        let table = layers(&good, &bad, &text_ids(30), 2).unwrap();
        assert!(table.values.windows(2).all(|two| two[0].sqnr_db.unwrap_or(1e9) <= two[1].sqnr_db.unwrap_or(1e9)));
        assert!(table.values.iter().any(|value| value.path == path && !value.equal));
    }
}

#[test]
fn other_steps_and_vocabularies_are_refused() {
    let (small, other) = (open("qwen3-bf16"), open("llama-gqa3-q8_0.gguf"));
    let error = Tracer::new(&small, &other, 1).err().unwrap();
    assert!(error.to_string().contains("different vocabularies"), "{error}");
    let error = Tracer::new(&small, &small, 1).unwrap().step(&[1, 2, 3]).err().unwrap();
    assert!(error.to_string().contains("no step of both models takes as many tokens"), "{error}");
    let windows = Windows::new(text_ids(64), 64, None, None).unwrap();
    let mut session = Session::new(&small, 1, &[]).unwrap();
    let error = perplexity(&mut session, &windows).err().unwrap();
    assert!(error.to_string().contains("a window does not fit the context"), "{error}");
}
