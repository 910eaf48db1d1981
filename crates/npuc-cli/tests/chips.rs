//! Bundles for chips from the command line: mended, cut, placed, compiled by a stand-in for the vendor's compiler, and
//! run on the host with the same answer as the checkpoint.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

mod program;

use program::{checkpoint, npuc};

const SHAPES: &str = "8t32c,1t32c";

/// Runs a command line whose words are separated by spaces; `PATH` begins with `tools`.
fn call(line: &str, folder: &Path, tools: Option<&Path>) -> Output {
    let mut command = npuc();
    let words = line.split(' ').map(|word| word.replace("TMP", folder.to_str().unwrap()));
    command.current_dir(checkpoint("")).args(words);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", tools.map_or(path.clone(), |tools| format!("{}:{path}", tools.display())));
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn good(line: &str, folder: &Path) -> String {
    let output = call(line, folder, None);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn bundles_for_chips_answer_as_the_checkpoint_does() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("ids"), "5 6 7 8 9 10 11 12 13 14").unwrap();
    let run = |model: &str| good(&format!("run {model} --ids TMP/ids -n 12 --ignore-eos"), folder.path());
    for (model, target, more, npu_files, graphs) in [
        ("qwen3-bf16", "genio-720", "--precision FP", 2, 2),
        ("qwen3-bf16", "genio-720", "--precision FP --chunks 2", 4, 4),
        ("qwen3-bf16", "genio-720", "--precision FP --outer-buffers", 2, 2),
        ("llama-gqa3-q4_1.gguf", "genio-720", "--precision FP --no-fix", 2, 2),
        ("llama-gqa3-q4_1.gguf", "dimensity-9400", "--precision FP --chunks 3 --place name=lm_head*=cpu", 6, 8),
        ("qwen2-bf16", "genio-700", "--precision FP", 10, 18),
        ("mistral-bf16", "genio-720", "--precision FP --place layers=1=cpu --place op=softmax=cpu", 6, 10),
        // A part that the CPU computes whole, at either end.
        ("llama-gqa3-q4_1.gguf", "genio-720", "--precision FP --chunks 3 --place layers=1=cpu", 4, 6),
        ("llama-gqa3-q4_1.gguf", "genio-720", "--chunks 3 --place layers=0=cpu --place op=gather=cpu", 4, 6),
        ("qwen3-bf16", "../targets/mendable.toml", "--precision FP32 --chunks 1", 2, 2),
        // The limit on extents is lifted by a flag, for all that the head leaves in the files.
        ("qwen3-bf16", "../targets/lifted.toml", "--precision FP32 --fix flags", 2, 2),
    ] {
        let line = format!("build {model} --target {target} {more} --shapes {SHAPES} -o TMP/out");
        good(&line, folder.path());
        let files = |folder: &str, ending: &str| {
            let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
            entries.filter(|name| name.to_str().unwrap().ends_with(ending)).count()
        };
        let out = folder.path().join("out");
        let have = (files(out.to_str().unwrap(), ".tflite"), files(out.join("graphs").to_str().unwrap(), ".ir"));
        assert_eq!(have, (npu_files, graphs), "{line}");
        assert_eq!(run("TMP/out"), run(&format!("{model} --shapes {SHAPES}")), "{line}");
        let inspected = good("inspect TMP/out", folder.path());
        assert!(inspected.contains("bundle"), "{inspected}");
    }
}

#[test]
fn verify_compares_a_bundle_with_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    good(&format!("build qwen3-bf16 --target genio-720 --shapes {SHAPES} -o TMP/out"), folder.path());
    let said = good("verify TMP/out --against qwen3-bf16 --gate cosine>=0.99999,greedy>=1", folder.path());
    assert!(said.contains("greedy agreement  100.00 %"), "{said}");
    let itself = call("verify TMP/out", folder.path(), None);
    assert_eq!(itself.status.code(), Some(2));
    assert!(text(&itself.stderr).contains("this machine would be compared with itself"));
}

/// Forms of the same numbers do not part, whatever was rewritten and however their caches lie.
#[test]
fn rewritten_forms_do_not_part() {
    let folder = tempfile::tempdir().unwrap();
    let build = |name: &str, flags: &str| {
        good(&format!("build qwen2-bf16 {flags} --shapes {SHAPES} -o TMP/{name}"), folder.path());
    };
    build("cut", "--target genio-720 --chunks 2");
    for (name, flags) in [
        ("mended", "--target genio-720"),
        ("on-cpu", "--target genio-700 --precision FP32"),
        ("plain", "--passes decompose"),
        ("conv", "--passes decompose,linear-to-conv,join-axes,simplify"),
        ("guarded", "--passes rescale-rms-norm,guard-swiglu"),
    ] {
        build(name, flags);
        for forms in [format!("qwen2-bf16 TMP/{name}"), format!("TMP/{name} qwen2-bf16"), format!("TMP/{name} TMP/cut")]
        {
            let said = good(&format!("diff {forms} --threshold-db 90"), folder.path());
            assert!(said.contains("no value is below 90 dB"), "{forms}: {said}");
        }
    }
}

#[test]
fn a_weight_that_differs_is_found_in_a_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::copy(checkpoint("llama-biases-f32").join("config.json"), model.join("config.json")).unwrap();
    let mut bytes = fs::read(checkpoint("llama-biases-f32").join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let index: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let offsets = &index["model.layers.1.mlp.down_proj.weight"]["data_offsets"];
    let first = header + offsets[0].as_u64().unwrap() as usize;
    (0..64).for_each(|i| bytes[first + 4 * i + 3] ^= 0x80);
    fs::write(model.join("model.safetensors"), bytes).unwrap();
    good(&format!("build TMP/model --target genio-720 --chunks 2 --shapes {SHAPES} -o TMP/out"), folder.path());
    let output = call("diff llama-biases-f32 TMP/out", folder.path(), None);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("first to part: layers.1.mlp.down_proj "), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("error[unfaithful]: the two forms part"));
}

/// A script in the place of ncc-tflite.
fn stand_in(folder: &Path, body: &str) {
    let program = folder.join("ncc-tflite");
    fs::write(&program, format!("#!/bin/sh\n{body}")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_vendors_compiler_is_run_and_its_refusal_leads_back_to_the_graph() {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools");
    fs::create_dir(&tools).unwrap();
    let calls = folder.path().join("calls");
    let takes_all = format!(
        "echo \"$*\" >> {}\nwhile [ $# -gt 1 ]; do [ \"$1\" = -d ] && echo made > \"$2\"; shift; done\n",
        calls.display()
    );
    stand_in(&tools, &takes_all);
    let line = format!("build qwen3-bf16 --target genio-720 --chunks 2 --shapes {SHAPES} -o TMP/out");
    for _ in 0..2 {
        let output = call(&line, folder.path(), Some(&tools));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("ncc-tflite made qwen3-bf16_FP_1layer_8t32c_0.dla, "));
    }
    let recorded = fs::read_to_string(&calls).unwrap();
    let first = "--arch=mdla5.3,edma3.6 --relax-fp32 --suppress-input --suppress-output --disallow-bridge \
                 -d ./qwen3-bf16_FP_1layer_8t32c_0.part.dla ./qwen3-bf16_FP_1layer_8t32c_0.tflite";
    assert_eq!((recorded.lines().next(), recorded.lines().count()), (Some(first), 8));
    assert_eq!(fs::read_to_string(folder.path().join("out/qwen3-bf16_FP_1layer_1t32c_1.dla")).unwrap(), "made\n");

    stand_in(
        &tools,
        "cat <<'EOF'\nERROR: OpResult 0 [FULLY_CONNECTED]\nMDLA: Dimension should be <= 65535. Operand 1: [320, 64]\n\
         MDLA: Dimension should be <= 65535. Result 0: [8, 320]\nEDMA: unsupported operation\n\
         ERROR: Cannot find an execution plan because of unsupported operations\nEOF\nexit 1\n",
    );
    let output = call(&line, folder.path(), Some(&tools));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error[vendor-refusal]") && stderr.contains("65535"), "{stderr}");
    assert!(folder.path().join("out/qwen3-bf16_FP_1layer_8t32c_0.tflite").exists());
    assert!(!folder.path().join("out/qwen3-bf16_FP_1layer_8t32c_0.dla").exists(), "none is left of the build before");
}
