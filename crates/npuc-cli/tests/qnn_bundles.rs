//! Whole small models: built for Qualcomm's chips by the program, then computed in the vendor's emulation and, in the same
//! numbers, by the host. The models are fixtures and two layers of SmolLM2 with its own weights and a slice of its vocabulary.
//! Libraries and SmolLM2 are fetched with pip on first use.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use half::f16;
use npuc::back::qnn::Description;
use npuc::back::qnn::description::Param;
use npuc::bundle;
use npuc::exec::to_f32;
use npuc::front;
use npuc::ir::Def;
use npuc::{Code, Tensor};
use npuc_run::contexts;
use npuc_run::device::qnn::{Context, Qnn, Start};
use npuc_run::fidelity::{OfStep, emulated};
use npuc_run::program::Program;
use npuc_run::session::Session;
use npuc_run::toolchain::{Tool, install};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};
use serde_json::json;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(900);

/// The tokens of the cut's vocabulary.
const VOCAB: usize = 1024;

fn start() -> Qnn {
    let libraries = install(Tool::Qnn, &mut |line| eprintln!("{line}"));
    let libraries = libraries.unwrap_or_else(|e| panic!("these tests need Qualcomm's libraries:\n{e}")).libraries();
    let (program, args) = (Path::new(env!("CARGO_BIN_EXE_npuc")), [OsString::from("qnn-worker")]);
    Qnn::start(&Start { program, args: &args, libraries: &libraries, limit: LIMIT, log: None }).unwrap()
}

/// Two layers of SmolLM2 and the first rows of its table, as a Hugging Face folder in f16.
fn cut(folder: &Path) {
    let path = npuc_fetch::models::smollm2(&mut |line| eprintln!("{line}")).unwrap_or_else(|e| panic!("{e}"));
    let checkpoint = front::open(&path).unwrap();
    let config = &checkpoint.config;
    let kept =
        |name: &str| !name.starts_with("layers.") || name.starts_with("layers.0.") || name.starts_with("layers.1.");
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, tensor) in checkpoint.tensors.iter().filter(|(name, _)| kept(name)) {
        let rows = if name.starts_with("embed_tokens") { VOCAB } else { tensor.shape[0] };
        let tensor: Tensor = tensor.materialized().rows(0..rows).unwrap_or_else(|| tensor.clone());
        let bytes = to_f32(&tensor).iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        tensors.push((format!("model.{name}"), tensor.shape.to_vec(), bytes));
    }
    let views = tensors
        .iter()
        .map(|(name, dims, data)| (name.as_str(), TensorView::new(Dtype::F16, dims.clone(), data).unwrap()));
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": config.hidden(),
        "intermediate_size": config.ffn(), "num_hidden_layers": 2, "num_attention_heads": config.heads(),
        "num_key_value_heads": config.kv_heads(), "head_dim": config.head_dim(), "vocab_size": VOCAB,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "hidden_act": "silu",
        "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

fn build(model: &Path, target: &str, flags: &[&str], bundle: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_npuc"));
    command
        .arg("build")
        .arg(model)
        .args(["--target", target, "--shapes", "32t64c,1t64c", "-o"])
        .arg(bundle)
        .args(flags);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {target} {flags:?}: {said}", model.display());
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The least cosine of the scores of two sessions over a prompt longer than the prefill step, so that a part of it is padding
/// and the cache is filled, eight tokens after it, and the rest up to the whole capacity.
fn least_cosine(host: &mut Session, emulated: &mut Session) -> f64 {
    let vocab = host.vocab();
    let ids: Vec<u32> = (0..host.capacity()).map(|i| ((i * 7919 + 11) % vocab) as u32).collect();
    let (prompt, rest) = ids.split_at(40);
    let (decoded, last) = rest.split_at(8);
    let mut scores = [Vec::new(), Vec::new()];
    for (session, scores) in [host, emulated].into_iter().zip(&mut scores) {
        session.feed(prompt, |row| scores.push(row.to_vec())).unwrap();
        for &id in decoded {
            session.decode(id).unwrap();
            scores.push(session.logits().unwrap().to_vec());
        }
        session.feed(last, |row| scores.push(row.to_vec())).unwrap();
        let full = session.decode(ids[0]).unwrap_err();
        assert_eq!(full.diagnostics()[0].code, Code::ContextExceeded);
    }
    let [host, emulated] = scores;
    assert_eq!((host.len(), emulated.len()), (64, 64));
    host.iter().zip(&emulated).map(|(a, b)| cosine(a, b)).fold(1.0, f64::min)
}

/// Builds, reads back what was made, and computes it in emulation and on the host.
fn check(model: &Path, target: &str, flags: &[&str], layers: usize, contexts_expected: usize) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("bundle");
    build(model, target, flags, &path);
    let manifest = bundle::manifest(&path).unwrap();
    let soc = npuc::target::find(target).unwrap().soc_model.unwrap();
    assert_eq!(manifest.contexts.len(), contexts_expected, "{flags:?}");
    let mut qnn = start();
    for (part, context) in manifest.contexts.iter().enumerate() {
        assert_eq!(context.graphs, [format!("model.{part}.s32"), format!("model.{part}.s1")]);
        assert_eq!((context.soc_model, context.bytes), (soc, fs::metadata(path.join(&context.file)).unwrap().len()));
    }
    let requests = contexts::requests(&path, &manifest, soc, true).unwrap();
    let made: Vec<_> = requests.iter().map(|request| qnn.prepare(request, &mut |_| ()).unwrap()).collect();
    let ports =
        |count: fn(&npuc_run::device::qnn::Graph) -> usize| made.iter().map(|c| count(&c.graphs[0])).sum::<usize>();
    // Every context has the mask and the rotary table, and one port for what enters and one for what leaves.
    assert_eq!(ports(|graph| graph.inputs.len()), 2 * layers + 3 * contexts_expected);
    assert_eq!(ports(|graph| graph.outputs.len()), 2 * layers + contexts_expected);
    let program = Program::open(&path, None).unwrap();
    let mut host = Session::new(&program, 2, &[]).unwrap();
    let mut emulated = Session::on_qnn(&program, made, qnn).unwrap();
    let cosine = least_cosine(&mut host, &mut emulated);
    eprintln!("{} {target} {flags:?}: least cosine {cosine:.7}", model.display());
    assert!(cosine >= 0.999, "{} {target} {flags:?}: {cosine}", model.display());
}

const U16: [&str; 8] = ["--recipe", "w4a16-lpbq-g32", "--quality", "fast", "--samples", "2", "--tokens", "48"];
const F16: [&str; 4] = ["--recipe", "f16-bw4-g32", "--quality", "fast"];

/// Two layers of SmolLM2 on a chip, built with several flags into so many contexts.
fn two_layers(target: &str, cases: &[(&[&str], usize)]) {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("cut");
    cut(&model);
    for (flags, contexts) in cases {
        check(&model, target, flags, 2, *contexts);
    }
}

#[test]
fn two_layers_of_smollm2_on_v75() {
    two_layers("sm8650", &[(&U16, 1), (&F16, 1)]);
}

#[test]
fn two_layers_of_smollm2_on_v79() {
    two_layers("sm8750", &[(&U16, 1), (&F16, 1)]);
}

#[test]
fn two_layers_of_smollm2_in_other_forms() {
    let heads = [&U16[..], &["--attention", "split-head"]].concat();
    let [u16, f16] = [(&U16[..], "2"), (&F16, "1,1")].map(|(flags, parts)| [flags, &["--contexts", parts]].concat());
    two_layers("sm8650", &[(&heads, 1), (&u16, 2), (&f16, 2)]);
}

/// A context between two others takes and gives the residual stream.
#[test]
fn three_contexts() {
    for flags in [&U16[..], &["--recipe", "f16"]] {
        check(&data("llama-gqa3-f16.gguf"), "sm8650", &[flags, &["--contexts", "3"]].concat(), 3, 3);
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints").join(name)
}

#[test]
fn models_of_other_shapes() {
    let whole = ["--recipe", "w8a16", "--quality", "fast", "--samples", "2", "--tokens", "48"];
    for (name, layers, flags) in [
        // Biases; norms of queries and keys with heads of 24; no tie and one key/value head.
        ("qwen2-bf16", 2, &U16[..]),
        ("qwen2-bf16", 2, &F16),
        ("qwen3-bf16", 2, &U16),
        ("qwen3-bf16", 2, &F16),
        ("mistral-bf16", 2, &whole),
        ("llama3-old-bf16", 2, &["--recipe", "f16"]),
        // Blocks of 32 pass as they are stored.
        ("llama-gqa3-q4_1.gguf", 3, &["--recipe", "f16-bw4-g32", "--quality", "fast"]),
    ] {
        check(&data(name), "sm8650", flags, layers, 1);
    }
}

#[test]
fn fixtures_on_both_chips() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    if !fixtures.is_dir() {
        eprintln!("NOT RUN: the fixtures, because ../shared/fixtures is absent");
        return;
    }
    for name in ["llama-gqa3-f32", "llama3-tied-bf16", "llama-untied-sharded-f16"] {
        for target in ["sm8650", "sm8750"] {
            check(&fixtures.join(name), target, &U16, 3, 1);
            check(&fixtures.join(name), target, &F16, 3, 1);
        }
    }
}

/// A bundle of a small model in half precision.
fn half_bundle(folder: &TempDir, flags: &[&str]) -> PathBuf {
    let path = folder.path().join("bundle");
    build(&data("qwen3-bf16"), "sm8650", &[&["--recipe", "f16"], flags].concat(), &path);
    path
}

/// What the emulation computes otherwise than this machine is led back to the operation.
#[test]
fn the_first_wrong_value_is_found() {
    let folder = TempDir::new().unwrap();
    let path = half_bundle(&folder, &[]);
    let manifest = bundle::manifest(&path).unwrap();
    let program = Program::open(&path, None).unwrap();
    let ids: Vec<u32> = (0..36).map(|i| i * 37 % 320).collect();
    let (prefill, decoded) = ids.split_at(32);
    let fed: Vec<&[u32]> = [prefill].into_iter().chain(decoded.chunks(1)).collect();
    let bundle = (path.as_path(), &manifest);
    let mut qnn = start();
    let good = emulated(&program, bundle, 57, &mut qnn, &fed, 2).unwrap();
    assert_eq!(good.iter().map(|step| step.step).collect::<Vec<_>>(), [0, 1], "prefill, then decode steps");
    for OfStep { step, differences, alone, .. } in &good {
        let values = &program.steps[*step].segments[0].graph.values;
        let computed = values.iter().filter(|value| matches!(value.def, Def::Op { .. })).count();
        assert_eq!(differences.len() + alone, computed);
        assert!(differences.iter().all(|difference| difference.distance.sqnr_db() >= 30.0), "{differences:?}");
    }

    for step in [0, 1] {
        let mut changed = Program::open(&path, None).unwrap();
        let emitted = changed.steps[step].segments[0].emitted.clone().unwrap();
        let mut description = Description::parse(&fs::read_to_string(emitted).unwrap()).unwrap();
        let wrong = description.nodes.iter_mut().rfind(|node| node.op == "Softmax").unwrap();
        wrong.params.push(("beta".into(), Param::F32(0.5)));
        let name = wrong.name.clone();
        let file = folder.path().join("changed.json");
        fs::write(&file, description.to_text()).unwrap();
        changed.steps[step].segments[0].emitted = Some(file);
        let found = emulated(&changed, bundle, 57, &mut qnn, &fed, 2).unwrap();
        let far = |step: &OfStep| step.differences.iter().find(|d| d.distance.sqnr_db() < 30.0).cloned();
        let first = far(&found[step]).unwrap();
        assert_eq!(format!("{}/{}.{}", first.at.path, first.at.op, first.at.model), name);
        assert!(far(&found[1 - step]).is_none());
    }
}

/// A twin that is loaded computes what graphs do that are prepared anew.
#[test]
fn twins_load_and_compute_the_same() {
    let folder = TempDir::new().unwrap();
    let path = half_bundle(&folder, &["--twins"]);
    let manifest = bundle::manifest(&path).unwrap();
    let shared: Vec<bool> = manifest.contexts.iter().map(|context| context.shared).collect();
    assert_eq!(shared, [true, false]);
    let program = Program::open(&path, None).unwrap();
    let scores = |contexts: &dyn Fn(&mut Qnn) -> Vec<Context>| {
        let mut qnn = start();
        let contexts = contexts(&mut qnn);
        let mut session = Session::on_qnn(&program, contexts, qnn).unwrap();
        let mut scores = Vec::new();
        session.feed(&(0..33).collect::<Vec<u32>>(), |row| scores.extend_from_slice(row)).unwrap();
        scores
    };
    let loaded = scores(&|qnn| contexts::emulated(&path, &manifest, 57, qnn).unwrap());
    let prepared = scores(&|qnn| {
        let requests = contexts::requests(&path, &manifest, 57, true).unwrap();
        requests.iter().map(|request| qnn.prepare(request, &mut |_| ()).unwrap()).collect()
    });
    assert!(loaded == prepared && loaded.len() == 33 * 320);
}

/// The parent and the number of every worker on this machine.
fn workers() -> Vec<(u32, u32)> {
    let of = |entry: fs::DirEntry| {
        let id: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        line.contains("qnn-worker").then_some((parent, id))
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.ok()?)).collect()
}

/// A worker in the middle of a graph ends with the program that started it, and leaves nothing that looks whole.
#[test]
fn a_killed_build_leaves_no_worker() {
    drop(start());
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("bundle");
    let mut command = Command::new(env!("CARGO_BIN_EXE_npuc"));
    command.arg("build").arg(data("qwen3-bf16")).args(["--target", "sm8650", "--recipe", "f16"]);
    let mut build = command.args(["--shapes", "2048t2048c,1t2048c", "-o"]).arg(&path).spawn().unwrap();
    // The first worker only looks whether there are libraries.
    let log = folder.path().join("bundle.qnn.log");
    let deadline = Instant::now() + Duration::from_secs(120);
    let worker = loop {
        let found = workers().into_iter().find(|(parent, _)| *parent == build.id());
        if let Some((_, worker)) = found.filter(|_| log.is_file()) {
            break worker;
        }
        assert!(Instant::now() < deadline && build.try_wait().unwrap().is_none(), "the build has no worker");
        std::thread::sleep(Duration::from_millis(50));
    };
    build.kill().unwrap();
    build.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while workers().iter().any(|(_, id)| *id == worker) {
        assert!(Instant::now() < deadline, "the worker is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!path.exists());
}
