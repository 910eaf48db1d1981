//! Whole small models as modules: built by the program, then executed by IREE on this CPU, on a software Vulkan and in Torq's
//! simulator, against the host in the same numbers. The tools are fetched on first use.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use npuc_run::toolchain::{Tool, install};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

mod program;

fn npuc(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_npuc")).args(args).output().unwrap()
}

fn good(args: &[&str]) -> Value {
    let output = npuc(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

fn installed(tools: &[Tool]) {
    for tool in tools {
        let installed = install(*tool, &mut |line| eprintln!("{line}"));
        installed.unwrap_or_else(|error| panic!("these tests need {}:\n{error}", tool.name()));
    }
}

/// A small LFM2 whose extents Torq folds: two layers of convolution, one of attention.
fn small_lfm2(folder: &Path) -> PathBuf {
    let config = json!({
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 256, "block_dim": 256, "conv_dim": 256,
        "block_ff_dim": 768, "block_auto_adjust_ff_dim": true, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "conv_L_cache": 3, "conv_bias": false,
        "full_attn_idxs": [2], "vocab_size": 1024, "max_position_embeddings": 512, "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0, "tie_embedding": true, "bos_token_id": 1, "eos_token_id": 7, "torch_dtype": "bfloat16"
    });
    let path = folder.join("lfm2.json");
    fs::write(&path, serde_json::to_vec(&config).unwrap()).unwrap();
    let model = folder.join("model");
    good(&["--json", "synth", path.to_str().unwrap(), "-o", model.to_str().unwrap()]);
    model
}

/// Builds `model` with `flags` and compares what executes it with the host; gives the report.
fn compared(model: &Path, bundle: &Path, flags: &[&str], on: &str, gate: &str) -> (Value, Value) {
    let (model, bundle) = (model.to_str().unwrap(), bundle.to_str().unwrap());
    let built = good(&[&["--json", "build", model, "-o", bundle, "--no-tokenizer"], flags].concat());
    let report = good(&["--json", "verify", bundle, "--on", on, "--gate", gate]);
    eprintln!("{flags:?} {on}: {} {}", report["cosine_min"], report["max_abs"]);
    (built, report)
}

#[test]
fn iree_computes_as_the_host() {
    installed(&[Tool::Iree, Tool::Vulkan]);
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    // The largest difference beside scores of about 3 is 1e-5 of them.
    let exact = "max_abs<=3e-5,top1>=1,greedy>=1";
    for (name, target, on, flags) in [
        ("lfm2-f32", "iree-cpu", "iree-cpu", &["--shapes", "1t40c,4t40c", "--weights", "left"][..]),
        ("lfm2-f32", "iree-cpu", "iree-cpu", &["--shapes", "1t16c", "--recipe", "q4_0", "--parameters", "inline"]),
        ("lfm2-bf16", "iree-cpu", "iree-cpu", &["--shapes", "1t40c", "--weights", "right"]),
        ("llama-gqa3-f32", "iree-cpu", "iree-cpu", &["--shapes", "1t40c", "--parameters", "inline"]),
        ("llama-gqa3-f32", "iree-cpu", "iree-cpu", &["--shapes", "16t40c,1t40c", "--recipe", "q8_0"]),
        ("lfm2-f32", "iree-cpu", "iree-cpu", &["--shapes", "4t40c,1t40c", "--recipe", "q4_0"]),
        ("lfm2-f32", "iree-vulkan", "iree-vulkan", &["--shapes", "4t40c,1t40c", "--recipe", "stored"]),
        ("lfm2-bf16", "mali-valhall", "iree-vulkan", &["--shapes", "1t40c", "--parameters", "external-bf16"]),
    ] {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures").join(name);
        if !model.is_dir() {
            eprintln!("NOT RUN: {name}, because ../shared/fixtures is absent");
            continue;
        }
        let flags = [&["--target", target], flags].concat();
        compared(&model, &bundle, &flags, on, exact);
        every_operation(&bundle, on);
        let reference = model.join("expected.safetensors");
        if !flags.contains(&"--recipe") && !flags.contains(&"external-bf16") {
            let args = ["verify", bundle.to_str().unwrap(), "--on", on, "--reference", reference.to_str().unwrap()];
            good(&[&args[..], &["--gate", "cosine>=0.9999,top1>=0.99"]].concat());
        }
    }
}

/// Every packed product of a whole model is folded, nothing leaves the slices, and the simulator gives the host's scores over
/// decode steps with the states fed back. Gives the bundle and the folder that it is in.
fn on_torq(recipe: &str, chunks: &str, modules: usize) -> (PathBuf, TempDir) {
    installed(&[Tool::Torq]);
    let folder = tempfile::tempdir().unwrap();
    let (model, bundle) = (small_lfm2(folder.path()), folder.path().join("bundle"));
    let mixed = folder.path().join("mixed.toml");
    fs::write(&mixed, "linear = \"q8_0\"\nlm_head = \"q4_0\"\n").unwrap();
    let recipe = if recipe == "mixed" { mixed.to_str().unwrap() } else { recipe };
    let flags = ["--target", "sl2610", "--shapes", "1t64c", "--recipe", recipe, "--chunks", chunks, "--profile"];
    let (built, report) = compared(&model, &bundle, &flags, "torq-sim", "cosine>=0.9999");
    assert!(report["cosine_min"].as_f64().unwrap() >= 0.9999, "{recipe}: {}", report["cosine_min"]);
    let packed: u64 = built["modules"].as_array().unwrap().iter().map(|m| m["packed"].as_u64().unwrap()).sum();
    // Two projections and three of the feed-forward layer for each convolution, four and three for attention, and the head.
    assert_eq!(packed, 2 * 5 + 7 + 1, "{recipe}");
    let compiled = built["compiled"].as_array().unwrap();
    assert_eq!(compiled.len(), modules, "{recipe}");
    for module in compiled {
        assert_eq!(module["estimate"]["css"]["events"], 0, "{recipe}");
        assert!(module["estimate"]["cycles"].as_u64().unwrap() > 100_000, "{recipe}");
    }
    let proved = built["products"].as_array().unwrap();
    assert!(proved.len() >= 5, "{recipe}: {proved:?}");
    assert!(proved.iter().all(|product| product["cosine"].as_f64().unwrap() > 0.99999), "{recipe}: {proved:?}");
    (bundle, folder)
}

#[test]
fn torq_computes_4_bits_as_the_host() {
    on_torq("q4_0", "1", 1);
}

#[test]
fn torq_computes_8_bits_as_the_host() {
    on_torq("q8_0", "1", 1);
}

#[test]
fn torq_computes_both_in_two_modules_as_the_host() {
    let (bundle, _folder) = on_torq("mixed", "2,1", 2);
    every_operation(&bundle, "torq-sim");
    golden_outputs(&bundle);
}

/// Products of a single head have one row each, which the compiler would take off the slices.
#[test]
fn torq_computes_head_by_head_as_the_host() {
    installed(&[Tool::Torq]);
    let folder = tempfile::tempdir().unwrap();
    let (model, bundle) = (small_lfm2(folder.path()), folder.path().join("bundle"));
    let (model, path) = (model.to_str().unwrap(), bundle.to_str().unwrap());
    let flags = ["--target", "sl2610", "--shapes", "1t64c", "--recipe", "q8_0", "--attention", "split-head"];
    good(&[&["--json", "build", model, "-o", path, "--no-tokenizer"], &flags[..]].concat());
    every_operation(&bundle, "torq-sim");
}

/// Every operation of a bundle on its device, from the operands that the device has, is that of the host.
fn every_operation(bundle: &Path, on: &str) {
    let bundle = bundle.to_str().unwrap();
    let report = good(&["--json", "diff", bundle, bundle, "--on", on, "--steps", "6"]);
    for step in report["steps"].as_array().unwrap() {
        let own = step["own"].as_array().unwrap();
        assert!(own.len() > 8, "{step}");
        for operation in own {
            let least = operation["least_sqnr_db"].as_f64();
            assert!(least.is_none_or(|db| db > 60.0), "{on}: {operation}");
        }
    }
}

/// The fastest form of those that are tried is built, and the tries are kept.
#[test]
fn forms_are_tried() {
    installed(&[Tool::Torq]);
    let folder = tempfile::tempdir().unwrap();
    let model = small_lfm2(folder.path());
    let bundle = folder.path().join("bundle");
    let (model, bundle) = (model.to_str().unwrap(), bundle.to_str().unwrap());
    let flags = ["--target", "sl2610", "--shapes", "1t64c", "--recipe", "q4_0", "--no-tokenizer", "--profile"];
    let built = good(&[&["--json", "tune", model, "-o", bundle], &flags[..]].concat());
    let tries: Value = serde_json::from_slice(&fs::read(format!("{bundle}/tune.json")).unwrap()).unwrap();
    let cycles = |tried: &Value| tried["estimated_cycles"].as_u64();
    let tries = tries.as_array().unwrap();
    let least = tries.iter().filter_map(cycles).min().unwrap();
    assert!(tries.len() >= 8 && tries.iter().any(|tried| cycles(tried).unwrap() > least + least / 20), "{tries:?}");
    let compiled = built["compiled"].as_array().unwrap();
    let whole: u64 = compiled.iter().map(|module| module["estimate"]["cycles"].as_u64().unwrap()).sum();
    assert_eq!(whole, least, "the bundle is not the fastest form");
    for (flags, message) in [
        (&["--target", "iree-cpu"][..], "forms are tried for Torq alone"),
        (&["--target", "sl2610", "--chunks", "1"], "--chunks and --no-compile have no use here"),
    ] {
        let output = npuc(&[&["tune", model, "-o", &format!("{bundle}.not")], flags].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(message), "{flags:?}: {said}");
    }
}

/// A bundle's own golden outputs are what a perfect board gives; others are told apart.
fn golden_outputs(bundle: &Path) {
    let bundle = bundle.to_str().unwrap();
    let greedy = format!("{bundle}/golden/greedy.safetensors");
    let report = good(&["--json", "verify", bundle, "--device-outputs", &greedy]);
    assert_eq!(
        (&report["cosine_min"], &report["greedy"], &report["measured_on"]),
        (&json!(1.0), &json!(1.0), &json!("device"))
    );
    let step = format!("{bundle}/golden/step.safetensors");
    let report = good(&["--json", "verify", bundle, "--device-outputs", &step]);
    assert_eq!(report["step"].as_array().unwrap().len(), 5);
    // A board whose scores have the other sign is told apart.
    let bytes = fs::read(&greedy).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let logits = tensors.tensor("logits").unwrap();
    let turned: Vec<u8> = logits
        .data()
        .chunks_exact(4)
        .flat_map(|b| (-f32::from_le_bytes([b[0], b[1], b[2], b[3]])).to_le_bytes())
        .collect();
    let view = TensorView::new(Dtype::F32, logits.shape().to_vec(), &turned).unwrap();
    let wrong = format!("{bundle}.wrong.safetensors");
    fs::write(&wrong, safetensors::serialize([("logits", view)], None).unwrap()).unwrap();
    let output = npuc(&["--json", "verify", bundle, "--device-outputs", &wrong]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["faithful"], &report["greedy"]), (Some(1), &json!(false), &json!(0.0)));
    // So are ports that are wrong, not the step's, or of another shape.
    let bytes = fs::read(&step).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let scores = tensors.tensor("out.logits").unwrap();
    let zeros = vec![0; scores.data().len()];
    let turned = [scores.shape()[1], scores.shape()[0]];
    for (name, shape, code, message) in [
        ("out.logits", scores.shape(), 1, "a figure breaks a condition of the gate"),
        ("out.logits", &turned, 3, "an output of the step has another shape"),
        ("out.nothing", scores.shape(), 3, "the golden step has no such output"),
    ] {
        let view = TensorView::new(Dtype::F32, shape.to_vec(), &zeros).unwrap();
        fs::write(&wrong, safetensors::serialize([(name, view)], None).unwrap()).unwrap();
        let output = npuc(&["verify", bundle, "--device-outputs", &wrong]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(code) && said.contains(message),
            "{name} {shape:?}: {:?} {said}",
            output.status
        );
    }
    let output = npuc(&["verify", bundle, "--device-outputs", &greedy, "--on", "torq-sim"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("leave out --on, --shapes and --chunks"));
    for (file, message) in [
        (format!("{bundle}/manifest.json"), "the file is not a safetensors file"),
        (format!("{bundle}/parameters.safetensors"), "the file has nothing to compare"),
        (format!("{bundle}/absent"), "cannot read the file"),
    ] {
        let output = npuc(&["verify", bundle, "--device-outputs", &file]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(message), "{file}: {said}");
    }
}

/// What cannot be built or run says why, before any compiler is asked.
#[test]
fn what_modules_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    let (model, bundle) = (program::checkpoint("mistral-bf16"), bundle.to_str().unwrap());
    let model = model.to_str().unwrap();
    let build = |flags: &[&str]| {
        let mut command = program::npuc();
        let output = command.args(["build", model, "--no-tokenizer", "-o", bundle]).args(flags).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (flags, message) in [
        (&["--target", "iree-cpu", "--shapes", "1t0c", "--no-compile"][..], "`1t0c` is not a possible step"),
        (&["--target", "iree-cpu", "--shapes", "1t16c"], "run `npuc toolchain install iree`"),
        (&["--target", "sl2610", "--shapes", "1t16c"], "or write the modules alone with --no-compile"),
        (
            &["--target", "sl2610", "--shapes", "4t16c,1t16c", "--recipe", "q8_0", "--no-compile"],
            "`linear` computes 4 rows at once",
        ),
        (
            &["--target", "sl2610", "--shapes", "1t16c", "--parameters", "external", "--no-compile"],
            "modules for Torq hold their weights",
        ),
        (
            &["--target", "iree-cpu", "--recipe", "bf16", "--parameters", "external-bf16", "--no-compile"],
            "is a recipe of its own",
        ),
        (&["--target", "iree-cpu", "--twins"], "--twins is for other chips"),
        (&["--target", "iree-cpu", "--shapes", "4t16c", "--no-compile"], "no step shape decodes"),
        (&["--target", "iree-cpu", "--shapes", "1t16c,1t16c", "--no-compile"], "a step shape is given twice"),
        (&["--target", "sl2610", "--shapes", "1t1c", "--no-compile"], "a capacity of at least 2 rows"),
    ] {
        let said = build(flags);
        assert!(said.contains(message), "{flags:?}: {said}");
        assert!(!Path::new(bundle).exists(), "{flags:?}");
    }
    let quantised = folder.path().join("q4_0.gguf");
    let args = ["quantize", model, "--recipe", "q4_0", "--quality", "fast", "-o", quantised.to_str().unwrap()];
    assert!(program::npuc().args(args).output().unwrap().status.success());
    let args = [
        "build",
        quantised.to_str().unwrap(),
        "--target",
        "sl2610",
        "--shapes",
        "1t16c",
        "--no-compile",
        "--no-tokenizer",
    ];
    let output = program::npuc().args(args).args(["-o", &format!("{bundle}.q4_0")]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("stored blocks are rounded anew"), "{said}");
    assert_eq!(build(&["--target", "iree-cpu", "--shapes", "1t16c", "--no-compile"]), "");
    let output = program::npuc().args(["verify", bundle, "--on", "iree-cpu"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the bundle holds no compiled modules"), "{said}");
}
