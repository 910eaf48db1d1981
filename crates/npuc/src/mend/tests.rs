//! Mends of models against chips: what is chosen, that nothing is left, and that the numbers stay.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::*;
use crate::diag::Severity;
use crate::front::config_hf;
use crate::model::Chunks;
use crate::target::{Precision, Question, find};

fn config(name: &str, edit: impl Fn(&mut serde_json::Value)) -> ModelConfig {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name);
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut json);
    config_hf::parse(&serde_json::to_vec(&json).unwrap(), &path).unwrap().model
}

fn request(target: &str, precision: &str, shapes: &str) -> Request {
    let target = find(target).unwrap();
    let precision = Precision::parse(precision, target.float).unwrap();
    let question = Question::new(&target, precision, &[]).unwrap();
    let shapes = shapes.split(',').map(|shape| shape.parse().unwrap()).collect();
    Request::new(target, question, shapes)
}

fn names(applied: &[Applied]) -> Vec<String> {
    applied.iter().map(|applied| applied.mend.to_string().split(": ").next().unwrap().to_owned()).collect()
}

#[test]
fn heads_are_split_into_the_fewest_legal_parts() {
    let cases: [(u64, Preference, &[usize], bool); 8] = [
        (128256, Preference::Rewrites, &[64128, 64128], false),
        (151936, Preference::Rewrites, &[50656, 50640, 50640], false),
        // The last part has five rows of padding.
        (151851, Preference::Rewrites, &[50624, 50624, 50608], false),
        (65535, Preference::Rewrites, &[32768, 32768], false),
        (65520, Preference::Rewrites, &[], false),
        (128256, Preference::Flags, &[], true),
        // Five parts are more than a flag costs.
        (262144, Preference::Rewrites, &[], true),
        // The flag needs a multiple of 16, and parts that are multiples need no flag.
        (262145, Preference::Flags, &[52432, 52432, 52432, 52432, 52432], false),
    ];
    for (vocab, preference, rows, flag) in cases {
        let config = config("configs/llama-3.2-1b.json", |json| json["vocab_size"] = vocab.into());
        let mended = mend(&config, None, &request("genio-720", "FP", "128t1024c,1t1024c"), preference).unwrap();
        assert!(mended.fit.misfits.is_empty(), "{vocab}: {:?}", mended.fit.misfits);
        let split = mended.request.mends.iter().find_map(|mend| match mend {
            Mend::SplitHead(rows) => Some(rows.clone()),
            Mend::Pass(_) | Mend::Flag(_) | Mend::Place(_) => None,
        });
        assert_eq!(split.unwrap_or_default(), rows, "{vocab}");
        assert_eq!(mended.request.question.flags.contains("gno=LTS"), flag, "{vocab}");
        assert!(mended.fit.chunks.len() >= 2, "{vocab}");
    }
}

#[test]
fn a_float_llama_is_clean_after_its_mends_and_computes_the_same() {
    let config = config("configs/llama-3.2-1b.json", |json| {
        json["num_hidden_layers"] = 2.into();
        json["vocab_size"] = 70000.into();
    });
    let asked = request("genio-720", "FP", "128t1024c,1t1024c");
    let mended = mend(&config, None, &asked, Preference::Rewrites).unwrap();
    assert_eq!(names(&mended.applied), ["split-head", "rescale-rms-norm", "guard-swiglu"]);
    assert!(mended.fit.fits() && mended.fit.misfits.is_empty(), "{:?}", mended.fit.misfits);
    let proofs = prove(&config, None, &mended.request, &mended.applied).unwrap();
    let identical: Vec<bool> = proofs.iter().map(|proof| proof.identical).collect();
    assert_eq!(identical, [true, false, true]);
    assert!(proofs.iter().all(|proof| proof.largest > 0.1 && proof.shapes == ["16t64c", "1t64c"]), "{proofs:?}");
}

/// A chip with limits that a small model breaks in every way that npuc mends.
#[test]
fn small_limits_are_mended() {
    let small = "../../tests/data/targets/mendable.toml";
    for (name, model) in [("qwen3-bf16", true), ("llama-gqa3-q4_1.gguf", true), ("qwen2-bf16", false)] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints").join(name);
        let checkpoint = crate::front::open(&folder).unwrap();
        let target = find(Path::new(env!("CARGO_MANIFEST_DIR")).join(small).to_str().unwrap()).unwrap();
        let mut asked = Request::plain(target, vec!["4t16c".parse().unwrap(), "1t16c".parse().unwrap()]);
        asked.chunks = Some("1".parse::<Chunks>().unwrap());
        let weights = model.then_some(&checkpoint.tensors);
        let mended = mend(&checkpoint.config, weights, &asked, Preference::Rewrites).unwrap();
        let left: Vec<&Misfit> = mended.fit.misfits.iter().filter(|m| m.severity == Severity::Error).collect();
        assert!(left.is_empty(), "{name}: {left:?}");
        let expected = ["split-head", "rescale-rms-norm", "guard-swiglu", "linear-to-conv", "join-axes"];
        let mut have = names(&mended.applied);
        have.sort_by_key(|name| expected.iter().position(|known| known == name));
        assert_eq!(have, expected, "{name}");
        let proofs = prove(&checkpoint.config, weights, &mended.request, &mended.applied).unwrap();
        assert_eq!(proofs.len(), 5);
        for proof in proofs {
            let rescaled = matches!(proof.mend, Mend::Pass(crate::pass::Pass::RescaleRmsNorm));
            assert!(proof.identical != rescaled, "{name}: {proof:?}");
        }
    }
}
