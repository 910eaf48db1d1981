//! SmolLM2-135M-Instruct against what independent programs say of it. `cargo xtask real` fetches the model and
//! names it in `NPUC_REAL_MODEL`; without that nothing is run here, and the test says so.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use npuc::bundle::Bundle;
use npuc_run::fidelity::{DEFAULT_CONTEXT, Windows, best_id, perplexity};
use npuc_run::program::Program;
use npuc_run::session::Session;
use npuc_run::text::Tokenizer;
use serde::Deserialize;

mod data;

#[derive(Deserialize)]
struct Reference {
    prompts: BTreeMap<String, Prompt>,
}

/// Scores of a numpy program in f64 over the dequantised weights (`tools/smollm2_reference.py`).
#[derive(Deserialize)]
struct Prompt {
    text: String,
    ids: Vec<u32>,
    top_ids: Vec<Vec<u32>>,
    top_logits: Vec<Vec<f32>>,
    greedy_ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Row {
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Rows {
    rows: Vec<Row>,
}

fn model() -> Option<PathBuf> {
    let model = std::env::var_os("NPUC_REAL_MODEL").map(PathBuf::from);
    if model.is_none() {
        eprintln!("NOT RUN: the real model is not named; `cargo xtask real` fetches it and runs this test");
    }
    model
}

fn read<T: for<'de> Deserialize<'de>>(path: &str) -> T {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn ids_of_texts() {
    let Some(model) = model() else { return };
    let program = Program::open(&model, None).unwrap();
    let tokenizer: &Tokenizer = &program.text.as_ref().unwrap().as_ref().unwrap().tokenizer;
    let hugging_face: Rows = read("tests/data/smollm2_ids.json");
    let mut llama_cpp: BTreeMap<String, Vec<Row>> = read("../../tests/data/tokenizer_reference.json");
    let rows = llama_cpp.remove("SmolLM2-135M-Instruct.Q4_1.gguf").unwrap();
    for Row { text, ids } in hugging_face.rows.into_iter().chain(rows) {
        assert_eq!(tokenizer.encode(&text, true).unwrap(), ids, "{text:?}");
    }
}

#[test]
fn scores_and_greedy_ids() {
    let Some(model) = model() else { return };
    let reference: Reference = read("../../tests/data/smollm2_reference.json");
    for shapes in ["1t96c", "32t96c,1t96c", "96t96c,1t96c"] {
        let program = Program::open(&model, Some(data::shapes(shapes))).unwrap();
        let tokenizer = &program.text.as_ref().unwrap().as_ref().unwrap().tokenizer;
        let mut session = Session::new(&program, 2, &[]).unwrap();
        for Prompt { text, ids, top_ids, top_logits, greedy_ids } in reference.prompts.values() {
            assert_eq!(&tokenizer.encode(text, true).unwrap(), ids);
            session.reset();
            let mut position = 0;
            session
                .feed(ids, |logits| {
                    for (&id, &expected) in top_ids[position].iter().zip(&top_logits[position]) {
                        let off = (logits[id as usize] - expected).abs();
                        assert!(off <= 1e-3, "{shapes}: position {position}, id {id} is off by {off}");
                    }
                    assert_eq!(best_id(logits), Some(top_ids[position][0]), "{shapes}: position {position}");
                    position += 1;
                })
                .unwrap();
            for (step, &id) in greedy_ids.iter().enumerate() {
                assert_eq!(session.logits().and_then(best_id), Some(id), "{shapes}: greedy id {step}");
                session.decode(id).unwrap();
            }
        }
    }
}

/// `llama-perplexity -m SmolLM2-135M-Instruct.Q4_1.gguf -f tests/data/prose.txt -c 512` (llama.cpp b11434) gives 29.1665,
/// with activations rounded to 8 bits for every product; with the weights widened by
/// `llama-quantize --allow-requantize IN OUT F32`, as here, 29.1707.
#[test]
fn perplexity_of_llama_cpp() {
    let Some(model) = model() else { return };
    let text = std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/prose.txt"));
    for shapes in ["128t512c,1t512c", "16t2048c,1t2048c"] {
        let program = Program::open(&model, Some(data::shapes(shapes))).unwrap();
        let tokenizer = &program.text.as_ref().unwrap().as_ref().unwrap().tokenizer;
        let ids = tokenizer.encode(text.as_ref().unwrap(), true).unwrap();
        let windows = Windows::new(ids, DEFAULT_CONTEXT, tokenizer.first_id().unwrap(), None).unwrap();
        let mut session = Session::new(&program, 2, &[]).unwrap();
        let have = perplexity(&mut session, &windows).unwrap();
        let value = have.perplexity.value;
        assert_eq!((have.windows, have.perplexity.ids), (2, 510));
        assert!((value / 29.1665 - 1.0).abs() < 0.005, "{shapes}: {value}");
        assert!((value / 29.1707 - 1.0).abs() < 0.0005, "{shapes}: {value}");
    }
}

#[test]
fn a_bundle_gives_the_same_scores_as_its_checkpoint() {
    let (Some(model), Some(bundle)) = (model(), std::env::var_os("NPUC_REAL_BUNDLE")) else { return };
    let bundle = PathBuf::from(bundle);
    let shapes: Vec<_> = Bundle::open(&bundle).unwrap().manifest.graphs.iter().map(|graph| graph.shape).collect();
    let scores = |program: &Program| {
        let mut session = Session::new(program, 2, &[]).unwrap();
        let mut all = Vec::new();
        session.feed(&[504, 1296, 3995, 7626, 282, 1910], |logits| all.push(logits.to_vec())).unwrap();
        all
    };
    let direct = scores(&Program::open(&model, Some(shapes)).unwrap());
    assert!(scores(&Program::open(&bundle, None).unwrap()) == direct);
}
