//! Files that npuc writes, in the hands of llama.cpp: they load, their perplexity is npuc's own, and rounding to the nearest
//! gives the same bytes. `cargo xtask peer` builds llama.cpp and names its programs' folder in `NPUC_PEER_BIN`; without that
//! nothing is run here, and the tests say so.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use npuc::back::gguf::Layout;
use npuc::front::{self, gguf};
use npuc::quant::fold::Folds;
use npuc::quant::plan::{Destination, Plan};
use npuc::quant::recipe::Recipe;
use npuc_kernels::quantize::Search;
use npuc_run::fidelity::{Windows, perplexity};
use npuc_run::program::Program;
use npuc_run::session::Session;
use npuc_run::text::gguf_vocab;

mod data;

use data::{checkpoints, shapes};

/// How often llama-perplexity is asked: the thread that prints its last line is sometimes ended before it has.
const ATTEMPTS: usize = 8;

/// The folder of llama.cpp's programs, if the tests that need it are to be run.
fn tools() -> Option<PathBuf> {
    let tools = std::env::var_os("NPUC_PEER_BIN").map(PathBuf::from);
    if tools.is_none() {
        eprintln!("NOT RUN: `cargo xtask peer` builds llama.cpp and runs this test");
    }
    tools
}

/// SmolLM2-135M-Instruct, if the tests that need it are to be run.
fn smollm2() -> Option<PathBuf> {
    let model = std::env::var_os("NPUC_REAL_MODEL").map(PathBuf::from);
    if model.is_none() {
        eprintln!("NOT RUN: `cargo xtask peer` fetches SmolLM2-135M-Instruct and runs this test");
    }
    model
}

/// Writes a model after a recipe, rounded to the nearest.
fn write(model: &Path, recipe: &str, to: &Path) {
    let checkpoint = front::open(model).unwrap();
    let recipe = Recipe::named(recipe).unwrap();
    let plan = Plan::new(&checkpoint, &Folds::none(&checkpoint.config), &recipe, &Destination::Gguf, false).unwrap();
    let vocab = checkpoint.tokenizer.as_ref().map(|source| gguf_vocab(source, checkpoint.config.vocab()).unwrap());
    let layout = Layout::new(&checkpoint, &plan, &BTreeMap::new(), vocab.as_ref()).unwrap();
    layout.write(to, Search::Plain, &mut |_, _| {}).unwrap();
}

fn prose() -> PathBuf {
    checkpoints().join("../prose.txt")
}

/// What llama-perplexity says of the prose.
fn of_llama_cpp(tools: &Path, model: &Path, context: usize) -> f64 {
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let mut command = Command::new(tools.join("llama-perplexity"));
        command.arg("-m").arg(model).arg("-f").arg(prose()).args(["-c", &context.to_string(), "--no-warmup"]);
        let output = command.output().unwrap();
        said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", model.display());
        if let Some((_, rest)) = said.split_once("Final estimate: PPL = ") {
            return rest.split(' ').next().unwrap().parse().unwrap();
        }
    }
    panic!("{}: no perplexity in {said}", model.display());
}

/// What npuc measures, over the same windows.
fn of_npuc(model: &Path, context: usize) -> f64 {
    let program = Program::open(model, Some(shapes(&format!("32t{context}c,1t{context}c")))).unwrap();
    let tokenizer = &program.text.as_ref().unwrap().as_ref().unwrap().tokenizer;
    let ids = tokenizer.encode(&fs::read_to_string(prose()).unwrap(), true).unwrap();
    let windows = Windows::new(ids, context, tokenizer.first_id().unwrap(), None).unwrap();
    perplexity(&mut Session::new(&program, 2, &[]).unwrap(), &windows).unwrap().perplexity.value
}

/// Holds both perplexities of a file against each other.
fn check_perplexity(tools: &Path, model: &Path, context: usize, tolerance: f64, what: &str) {
    let (theirs, ours) = (of_llama_cpp(tools, model, context), of_npuc(model, context));
    eprintln!("{what}: perplexity {theirs} by llama.cpp, {ours:.4} by npuc");
    assert!((theirs / ours - 1.0).abs() < tolerance, "{what}: {theirs} by llama.cpp, {ours} by npuc");
}

/// In f32 neither program rounds activations: what differs would be the file. Of biases, q/k norms, rotary factors and
/// scales, own and tied heads, and every kind of tokenizer that the checkpoints have.
#[test]
fn small_models_mean_the_same() {
    let Some(tools) = tools() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for entry in fs::read_dir(checkpoints()).unwrap() {
        let model = entry.unwrap().path();
        let is_model = model.is_dir() && model.join("config.json").is_file();
        if !is_model && model.extension().is_none_or(|ending| ending != "gguf") {
            continue;
        }
        if front::open(&model).unwrap().tokenizer.is_none() {
            continue;
        }
        for recipe in ["f32", "stored"] {
            let written = folder.path().join("written.gguf");
            write(&model, recipe, &written);
            // Blocks are multiplied with activations in 8 bits there.
            let tolerance = if recipe == "f32" { 0.0005 } else { 0.005 };
            check_perplexity(&tools, &written, 64, tolerance, &format!("{} as {recipe}", model.display()));
        }
        checked += 1;
    }
    assert!(checked >= 18, "only {checked} models with a tokenizer");
}

#[test]
fn a_real_model_has_the_same_perplexity() {
    let (Some(tools), Some(model)) = (tools(), smollm2()) else { return };
    let folder = tempfile::tempdir().unwrap();
    for recipe in ["f16", "bf16", "q8_0", "q4_1", "q4_0"] {
        let written = folder.path().join("written.gguf");
        write(&model, recipe, &written);
        check_perplexity(&tools, &written, 512, 0.005, &format!("SmolLM2 as {recipe}"));
    }
}

/// The tensors of a file: format and bytes by name.
fn tensors(path: &Path) -> BTreeMap<String, (&'static str, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let tensors = gguf::parse(&bytes).unwrap().tensors;
    tensors.into_iter().map(|t| (t.name, (t.dtype.name(), bytes[t.range].to_vec()))).collect()
}

#[test]
fn nearest_rounding_gives_the_bytes_of_llama_quantize() {
    let (Some(tools), Some(model)) = (tools(), smollm2()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let [source, ours, theirs] = ["source", "ours", "theirs"].map(|name| folder.path().join(format!("{name}.gguf")));
    for model in [model, checkpoints().join("llama-gqa3-f16.gguf"), checkpoints().join("qwen2-bf16")] {
        write(&model, "f16", &source);
        for recipe in ["q4_0", "q4_1", "q8_0"] {
            write(&source, recipe, &ours);
            let mut quantize = Command::new(tools.join("llama-quantize"));
            let output = quantize.arg("--pure").arg(&source).arg(&theirs).arg(recipe).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} as {recipe}: {said}", model.display());
            let (have, expected) = (tensors(&ours), tensors(&theirs));
            assert!(have.keys().eq(expected.keys()), "{} as {recipe}", model.display());
            for (name, (dtype, bytes)) in &expected {
                assert_eq!(have[name].0, *dtype, "{} as {recipe}: {name}", model.display());
                assert!(have[name].1 == *bytes, "{} as {recipe}: the bytes of {name}", model.display());
            }
        }
    }
}
