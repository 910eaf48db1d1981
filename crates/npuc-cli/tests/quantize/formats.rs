//! Every format that npuc writes, with every quality, against recorded outputs; rotations, scales and a head of its own.

use super::*;

/// The recipes with what they cost at most: the cosine of the logits, on average and at least, with searched scales. The
/// weights of these models are random, which spreads their logits far less than those of a trained model: 4 bits cost more.
const RECIPES: [(&str, f64, f64); 17] = [
    ("stored", 0.999_999_9, 0.999_999),
    ("f32", 0.999_999_9, 0.999_999),
    ("f16", 0.999_99, 0.999_98),
    ("bf16", 0.9999, 0.9998),
    ("q8_0", 0.9995, 0.997),
    ("w8", 0.9995, 0.998),
    ("w8a16", 0.9995, 0.998),
    ("q4_1", 0.91, 0.70),
    ("q4_0", 0.87, 0.70),
    ("w4a16", 0.87, 0.60),
    ("w4a16-lpbq-g16", 0.91, 0.75),
    ("w4a16-lpbq-g32", 0.88, 0.65),
    ("w4a16-lpbq-g64", 0.88, 0.60),
    ("f16-bw4-g16", 0.95, 0.80),
    ("f16-bw4-g32", 0.92, 0.80),
    ("f16-bw4-g64", 0.88, 0.60),
    ("w4a16-lpbq-g512", 0.88, 0.60),
];

/// How much more than with searched scales the cosine may be below one with GPTQ on a text that has nothing to do with
/// these models: what it promises is the loss on the text.
const BEST: f64 = 1.5;

/// Quantises a model, and holds the loss of every weight on the text and the cosines of the logits against what is stated.
fn check(model: &str, reference: &str, (recipe, mean, least): (&str, f64, f64), output: &str, folder: &Path) {
    for (how, factor) in [("--quality search", 1.0), ("--calibration ../prose.txt --tokens 64", BEST)] {
        let what = format!("{model} --recipe {recipe} {how} -o TMP/{output}");
        let report = quantise(&what, folder);
        for loss in report["losses"].as_array().into_iter().flatten() {
            let (nearest, chosen) = (loss["nearest"].as_f64().unwrap(), loss["chosen"].as_f64().unwrap());
            assert!(chosen <= nearest && nearest > 0.0, "{what}: {loss}");
        }
        let verified = call(&format!("verify TMP/{output} --reference {reference} --json"), folder);
        let verified: Value = serde_json::from_slice(&verified.stdout).unwrap();
        let bound = |cosine: f64| 1.0 - factor * (1.0 - cosine);
        let found = [verified["cosine_mean"].as_f64().unwrap(), verified["cosine_min"].as_f64().unwrap()];
        assert!(found[0] >= bound(mean) && found[1] >= bound(least), "{what}: {found:?}, not {mean} and {least}");
    }
}

/// Every recipe as the file that it is meant for, and those of GGUF as the `others` too.
fn every_format(model: &str, reference: &str, others: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for stated in RECIPES {
        let is_gguf = matches!(stated.0, "stored" | "f32" | "f16" | "bf16") || stated.0.starts_with('q');
        let outputs = if is_gguf { &[&["out.gguf"], others].concat()[..] } else { &["out"] };
        for output in outputs {
            check(model, reference, stated, output, folder.path());
        }
    }
}

#[test]
fn every_format_of_a_folder_is_as_faithful_as_stated() {
    every_format("qwen2-bf16", "qwen2-bf16/expected.safetensors", &["out"]);
}

#[test]
fn every_format_of_a_file_is_as_faithful_as_stated() {
    every_format("llama-gqa3-f16.gguf", "llama-gqa3-f16.expected.safetensors", &[]);
}

#[test]
fn fewer_bits_weigh_less_and_the_report_says_what_was_done() {
    let folder = tempfile::tempdir().unwrap();
    for (recipe, bits) in [("f32", 32.0), ("f16", 16.0), ("bf16", 16.0), ("q8_0", 8.5), ("q4_1", 5.0), ("q4_0", 4.5)] {
        let report = quantise(&format!("qwen2-bf16 --recipe {recipe} --strict -o TMP/out.gguf"), folder.path());
        assert_eq!(report["bits_per_weight"].as_f64().unwrap(), bits, "{recipe}");
        assert_eq!(report["formats"], serde_json::json!({ recipe: 15 }));
        let bytes = fs::metadata(folder.path().join("out.gguf")).unwrap().len();
        assert_eq!(report["written_bytes"].as_u64().unwrap(), bytes, "{recipe}");
    }
}

#[test]
fn what_is_folded_in_changes_no_logit() {
    let folder = tempfile::tempdir().unwrap();
    let scaled = "--quality best --samples 2 --tokens 48 --scale";
    for (model, reference) in [
        ("qwen2-bf16", "qwen2-bf16/expected.safetensors"),
        ("qwen3-bf16", "qwen3-bf16/expected.safetensors"),
        ("llama-biases-f32", "llama-biases-f32/expected.safetensors"),
        ("llama-tied-with-head-f32", "llama-tied-with-head-f32/expected.safetensors"),
        ("llama-gqa3-f16.gguf", "llama-gqa3-f16.expected.safetensors"),
        ("llama3-tied-q4_0.gguf", "llama3-tied-q4_0.expected.safetensors"),
        ("mistral-spm-q8_0.gguf", "mistral-spm-q8_0.expected.safetensors"),
        ("llama-k-quants.gguf", "llama-k-quants.expected.safetensors"),
    ] {
        for how in ["--rotate", "--rotate --seed 7", scaled, &format!("{scaled} --rotate")] {
            for output in ["out.gguf", "out"] {
                let report = quantise(&format!("{model} --recipe f32 {how} -o TMP/{output}"), folder.path());
                assert!(report["losses"].is_null(), "{model} {how}: floats are not rounded by GPTQ");
                verify(&format!("TMP/{output}"), reference, "max_abs<1e-4,greedy>=1", folder.path());
            }
        }
    }
}

#[test]
fn another_seed_rotates_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    for (name, seed) in [("a", 0), ("b", 0), ("c", 1)] {
        quantise(&format!("qwen2-bf16 --recipe q4_0 --rotate --seed {seed} -o TMP/{name}.gguf"), folder.path());
    }
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(read("a.gguf") == read("b.gguf") && read("a.gguf") != read("c.gguf"));
}

#[test]
fn a_tied_head_may_have_a_format_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("head.toml"), "base = \"q4_0\"\nlm_head = \"q8_0\"\n").unwrap();
    fs::write(folder.path().join("tied.toml"), "base = \"q4_0\"\nlm_head = \"q8_0\"\nembed_tokens = \"q8_0\"\n")
        .unwrap();
    for output in ["out.gguf", "out"] {
        let line = format!("llama3-tied-bf16.gguf --recipe TMP/head.toml -o TMP/{output}");
        let report = quantise(&line, folder.path());
        let told = report["warnings"].as_array().unwrap().iter().find(|told| told["code"] == "tied-head").unwrap();
        assert_eq!(told["have"], "34816 more bytes in q8_0");
        let tied = quantise(&line.replace("head.toml", "tied.toml"), folder.path());
        assert!(!tied["warnings"].as_array().unwrap().iter().any(|told| told["code"] == "tied-head"), "{tied}");
        assert_eq!(report["formats"]["q4_0"].as_u64().unwrap(), tied["formats"]["q4_0"].as_u64().unwrap() + 1);
        assert_eq!(report["formats"]["q8_0"], 1);
        verify(&format!("TMP/{output}"), "llama3-tied-bf16.expected.safetensors", "cosine>=0.5", folder.path());
    }
}

/// Lines of a recipe, and how many matrices then have each format.
#[test]
fn later_lines_of_a_recipe_count() {
    let folder = tempfile::tempdir().unwrap();
    for (lines, formats) in [
        ("base = \"q8_0\"\n", serde_json::json!({"q8_0": 15})),
        ("base = \"q8_0\"\nlinear = \"q4_0\"\n", serde_json::json!({"q8_0": 1, "q4_0": 14})),
        ("base = \"q8_0\"\n\"layers.0.*\" = \"q4_0\"\n", serde_json::json!({"q8_0": 8, "q4_0": 7})),
        ("base = \"q4_0\"\n\"*.down_proj\" = \"stored\"\n", serde_json::json!({"bf16": 2, "q4_0": 13})),
        (
            "base = \"q8_0\"\n\"layers.0.*\" = \"q4_0\"\n\"*.q_proj\" = \"f16\"\n",
            serde_json::json!({"q8_0": 7, "q4_0": 6, "f16": 2}),
        ),
    ] {
        fs::write(folder.path().join("own.toml"), lines).unwrap();
        let report = quantise("qwen2-bf16 --recipe TMP/own.toml -o TMP/out.gguf", folder.path());
        assert_eq!(report["formats"], formats, "{lines}");
    }
}
