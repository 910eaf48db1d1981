//! What the commands print, held against golden files in `tests/cli`. `UPDATE=1 cargo test` rewrites them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use snapbox::assert::{Action, Assert};

mod program;

use program::{checkpoint, npuc};

/// Runs each command line in the folder of the checkpoints and holds everything it says against its file.
/// `TMP` in an argument is a fresh folder with files of token ids and of text, and two checkpoints: `plain` without a
/// chat template, `odd` with a tokenizer of a kind that npuc does not read.
fn check(cases: &[(&str, &str)]) {
    let update = std::env::var("UPDATE").is_ok_and(|value| value == "1");
    let assert = Assert::new().action(if update { Action::Overwrite } else { Action::Verify });
    for (name, line) in cases {
        let folder = tempfile::tempdir().unwrap();
        let temporary = folder.path().to_str().unwrap();
        fs::write(folder.path().join("ids"), "[5, 6, 7,\n 8]").unwrap();
        fs::write(folder.path().join("words"), "5 six").unwrap();
        fs::write(folder.path().join("large"), "5 100000").unwrap();
        fs::write(folder.path().join("many"), (0..50).map(|i| format!("{} ", i * 7919 % 251)).collect::<String>())
            .unwrap();
        fs::write(folder.path().join("text"), "A short text about a clock and a mill. ".repeat(4)).unwrap();
        fs::write(folder.path().join("latin-1"), b"caf\xe9").unwrap();
        fs::create_dir(folder.path().join("plain")).unwrap();
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            fs::copy(checkpoint("qwen2-bf16").join(file), folder.path().join("plain").join(file)).unwrap();
        }
        fs::create_dir(folder.path().join("odd")).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(checkpoint("qwen2-bf16").join(file), folder.path().join("odd").join(file)).unwrap();
        }
        fs::write(folder.path().join("odd/tokenizer.json"), "{\"model\": {\"type\": \"Unigram\"}}").unwrap();
        let mut command = npuc();
        command.current_dir(checkpoint("")).args(words(line).iter().map(|word| word.replace("TMP", temporary)));
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let status = output.status.code().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| steady(&String::from_utf8(bytes).unwrap()));
        let said = format!("$ npuc {line}\n{stdout}--- standard error\n{stderr}--- exit status {status}\n");
        let said = said.replace(temporary, "TMP");
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/cli/{name}.txt"));
        assert.eq(said, snapbox::Data::read_from(&golden, None).raw());
    }
}

/// The words of a command line; single quotes keep spaces.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![];
    for (i, part) in line.split('\'').enumerate() {
        if i % 2 == 1 {
            words.push(part.to_string());
        } else {
            words.extend(part.split_whitespace().map(str::to_string));
        }
    }
    words
}

/// The text without what differs from run to run or machine to machine: measured figures.
fn steady(text: &str) -> String {
    let line = |line: &str| {
        let named = ["_ms\":", "tokens_per_s\":", "peak_rss_bytes\":", "\"threads\":"].iter().any(|m| line.contains(m));
        let (key, value) = line.split_once("\": ").unwrap_or_default();
        let decimals = value.trim_end_matches(',').rsplit_once('.').map_or("", |(_, decimals)| decimals);
        let computed = key.trim_start().starts_with('"') && decimals.len() > 12 && decimals.parse::<u64>().is_ok();
        match line {
            line if line.starts_with("[host, ") => "[host, …]\n".to_string(),
            line if line.starts_with("time  ") => "time        …\n".to_string(),
            line if named || computed => format!("{}: …\n", line.split(':').next().unwrap_or_default()),
            line => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}

#[test]
fn help() {
    check(&[
        ("help", ""),
        ("help-inspect", "inspect --help"),
        ("help-build", "build --help"),
        ("help-check", "check --help"),
        ("help-targets", "targets --help"),
        ("help-run", "run --help"),
        ("help-verify", "verify --help"),
        ("help-diff", "diff --help"),
        ("help-estimate", "estimate --help"),
        ("help-context", "context --help"),
        ("context-no-file", "context"),
        ("context-one-to-compare", "context --compare a.bin"),
        ("estimate-no-bundle", "estimate qwen2-bf16"),
        ("estimate-unknown-proxy", "estimate qwen2-bf16 --proxy moon"),
        ("help-push", "push --help"),
        ("help-bench", "bench --help"),
        ("help-audit", "audit --help"),
        ("help-report", "report --help"),
        ("help-serve-jsonl", "serve-jsonl --help"),
        ("unknown-flag", "run MODEL --sped"),
        ("unknown-flag-json", "run MODEL --sped --json"),
        ("explain-list", "explain"),
        ("explain", "explain tied-head"),
        ("explain-unknown", "explain tied-hat"),
        ("toolchain-unknown", "toolchain install ncc"),
        ("toolchain-list", "toolchain list"),
    ]);
}

#[test]
fn measured() {
    check(&[
        ("bench-bad-workload", "bench qwen2-bf16 --shapes 8t32c,1t32c --workload ../bench/bad.jsonl -o TMP/r.jsonl"),
        ("bench-idle-null", "bench qwen2-bf16 --workload ../bench/bad.jsonl -o TMP/r.jsonl --null decode=1ms"),
        ("audit-trace", "audit ../bench/trace.jsonl"),
        ("audit-trace-json", "audit ../bench/trace.jsonl --json"),
        ("audit-no-results", "audit qwen2-bf16/config.json"),
        ("audit-bad-map", "audit ../bench/trace.jsonl --map tokens=a --map commit_ns=a..b"),
        ("report-trace", "report ../bench/trace.jsonl --slo ttft=20ms,tpot=9ms --measured-on device"),
        ("report-good", "report ../bench/good.jsonl --slo ttft=20ms,tpot=9ms --measured-on device"),
        ("report-good-md", "report ../bench/good.jsonl ../bench/good.jsonl --md"),
        ("report-good-csv", "report ../bench/good.jsonl --csv"),
        ("report-vllm", "report ../bench/vllm.json --allow-incomplete"),
        ("report-incomplete", "report ../bench/vllm.json"),
    ]);
}

#[test]
fn explain_logs() {
    check(&[
        ("help-explain", "explain --help"),
        ("explain-ncc-dimension", "explain ../logs/ncc-dimension.log --ir ../logs/head.ir"),
        ("explain-ncc-dimension-json", "explain ../logs/ncc-dimension.log --ir ../logs/head.ir --json"),
        ("explain-ncc-batch-matmul", "explain ../logs/ncc-batch-matmul.log --ir ../logs/head.ir"),
        ("explain-ncc-int32", "explain ../logs/ncc-int32.log"),
        ("explain-ncc-float-rewrite", "explain ../logs/ncc-float-rewrite.log"),
        ("explain-ncc-plan", "explain ../logs/ncc-plan.log"),
        ("explain-apusys-memory", "explain ../logs/apusys-memory.log"),
        ("explain-apusys-import", "explain ../logs/apusys-import.log"),
        ("explain-neuron-unit", "explain ../logs/neuron-unit.log"),
        ("explain-qnn-device", "explain ../logs/qnn-device.log"),
        ("explain-qnn-number", "explain 14001"),
        ("explain-qnn-number-hex", "explain 0x1b5b"),
        ("explain-qnn-config", "explain ../logs/qnn-config.log"),
        ("explain-qnn-validation", "explain ../logs/qnn-validation.log --ir ../logs/qnn.ir"),
        ("explain-qnn-formats", "explain ../logs/qnn-formats.log --ir ../logs/qnn.ir"),
        ("explain-qnn-prepare", "explain ../logs/qnn-prepare.log --ir ../logs/qnn.ir"),
        ("explain-qnn-prepare-json", "explain ../logs/qnn-prepare.log --ir ../logs/qnn.ir --json"),
        ("explain-qnn-prepared", "explain ../logs/qnn-prepared.log"),
        ("explain-torq-lram", "explain ../logs/torq-lram.log"),
        ("explain-torq-form", "explain ../logs/torq-form.log"),
        ("explain-torq-rank2", "explain ../logs/torq-rank2.log"),
        ("explain-torq-off-slices", "explain ../logs/torq-off-slices.log"),
        ("explain-torq-host", "explain ../logs/torq-host.log"),
        ("explain-torq-glibc", "explain ../logs/torq-glibc.log"),
        ("explain-iree-bitcast", "explain ../logs/iree-bitcast.log"),
        ("explain-iree-scope", "explain ../logs/iree-scope.log"),
        ("explain-iree-vulkan-loader", "explain ../logs/iree-vulkan-loader.log"),
        ("explain-unknown-log", "explain ../logs/unknown.txt"),
        ("explain-unknown-log-json", "explain ../logs/unknown.txt --json"),
        ("explain-absent-log", "explain none.log"),
        ("explain-malformed-ir", "explain ../logs/ncc-dimension.log --ir ../logs/unknown.txt"),
        ("explain-code-with-ir", "explain tied-head --ir ../logs/head.ir"),
    ]);
}

#[test]
fn inspect() {
    check(&[
        ("inspect-folder", "inspect qwen3-bf16"),
        ("inspect-gguf", "inspect llama3-tied-q4_1-v2.gguf --shapes 8t32c,1t32c"),
        ("inspect-json", "inspect mistral-spm-q8_0.gguf --json"),
        ("inspect-lfm2", "inspect lfm2-biases-f32 --shapes 8t32c,1t32c"),
        ("inspect-head-though-tied", "inspect llama-tied-with-head-f32"),
        ("inspect-reverse-tied", "inspect llama-reverse-tied-f32"),
        ("inspect-long-context", "inspect qwen3-bf16 --shapes 1t999999c"),
        ("inspect-absent", "inspect no-such-model"),
        ("inspect-no-model", "inspect ."),
        ("inspect-bad-tokenizer", "inspect TMP/odd"),
        ("inspect-absent-json", "inspect no-such-model --json"),
    ]);
}

#[test]
fn check_against_targets() {
    check(&[
        ("check-llama-genio-720", "check ../configs/llama-3.2-1b.json --target genio-720 --shapes 128t1024c,1t1024c"),
        (
            "check-llama-genio-720-lifted",
            "check ../configs/llama-3.2-1b.json --target genio-720 --precision 8W16A --chunks 4,4,4,2,2 --flag gno=LTS \
             --shapes 128t1024c,1t1024c",
        ),
        ("check-llama-genio-700", "check ../configs/llama-3.2-1b.json --target genio-700 --shapes 128t1024c,1t1024c"),
        (
            "check-llama-genio-720-fix",
            "check ../configs/llama-3.2-1b.json --target genio-720 --shapes 128t1024c,1t1024c --chunks 4,4,4,2,2 --fix",
        ),
        (
            "check-small-fix",
            "check qwen3-bf16 --target ../targets/mendable.toml --precision FP32 --shapes 4t16c,1t16c --fix",
        ),
        ("check-small-place", "check qwen2-bf16 --target genio-700 --shapes 8t32c,1t32c --place op=matmul=cpu"),
        (
            "check-small-deny",
            "check qwen2-bf16 --target genio-700 --shapes 1t32c --place op=matmul=cpu --deny-fallback",
        ),
        ("check-lfm2-host", "check ../configs/lfm2-350m.json --target host --shapes 16t1024c,1t1024c"),
        ("check-lfm2-genio", "check lfm2-old-bf16 --target genio-720 --shapes 8t32c,1t32c"),
        ("check-lfm2-sm8650", "check lfm2-old-bf16 --target sm8650 --shapes 8t32c,1t32c"),
        ("check-one-file", "check ../configs/llama-3.2-1b.json --target sm8650 --chunks 1 --shapes 1t1024c"),
        ("check-whisper", "check ../configs/whisper-base.json --target genio-700"),
        ("check-whisper-sl2610", "check ../configs/whisper-base.json --target sl2610"),
        ("check-small", "check qwen3-bf16 --target ../targets/small.toml --shapes 4t16c,1t16c"),
        (
            "check-small-groups",
            "check qwen3-bf16 --target ../targets/small.toml --precision 4W16A-g64 --flag wide --shapes 1t16c",
        ),
        ("check-small-json", "check qwen3-bf16 --target ../targets/small.toml --shapes 1t16c --json"),
        ("check-small-sarif", "check qwen3-bf16 --target ../targets/small.toml --shapes 1t16c --sarif"),
        ("check-host", "check llama3-tied-q4_0.gguf --target host --shapes 4t16c,1t16c"),
        ("check-gguf-stored", "check llama3-tied-q4_0.gguf --target genio-720 --precision stored --shapes 1t16c"),
        ("check-malformed-target", "check qwen3-bf16 --target ../targets/malformed.toml"),
        ("check-absent-target", "check qwen3-bf16 --target none.toml"),
        ("check-unknown-target", "check qwen3-bf16 --target genio-72"),
        ("check-unknown-flag", "check qwen3-bf16 --target genio-720 --flag gno=LST"),
        ("check-unknown-precision", "check qwen3-bf16 --target genio-720 --precision W8A16"),
        ("check-bad-chunks", "check qwen3-bf16 --target genio-720 --chunks 1,9"),
        ("check-absent-config", "check none.json --target genio-720"),
    ]);
}

#[test]
fn targets() {
    check(&[
        ("targets", "targets"),
        ("targets-json", "targets --json"),
        ("targets-genio-720", "targets genio-720"),
        ("targets-own", "targets ../targets/small.toml"),
        ("targets-own-json", "targets ../targets/small.toml --json"),
        ("targets-malformed", "targets ../targets/malformed.toml"),
    ]);
}

#[test]
fn qnn() {
    check(&[
        ("build-qnn-absent", "build qwen3-bf16 --target sm8650 --recipe f16 -o TMP/out"),
        ("build-qnn-other-flags", "build qwen3-bf16 --target sm8650 --precision 8W16A --chunks 2 -o TMP/out"),
        ("run-qnn-checkpoint", "run qwen3-bf16 --on qnn"),
    ]);
}

#[test]
fn build() {
    check(&[
        ("build", "build llama-k-quants.gguf --shapes 4t8c,1t8c -o TMP/out"),
        ("build-json", "build llama-old-linear-f16 --shapes 4t8c,1t8c -o TMP/out --json"),
        ("build-dump", "build llama-k-quants.gguf --shapes 1t4c -o TMP/out --dump-after simplify"),
        (
            "build-dump-decomposed",
            "build llama-k-quants.gguf --shapes 1t4c -o TMP/out --passes decompose,simplify --dump-after simplify",
        ),
        ("build-unknown-target", "build qwen3-bf16 --target sm865 -o TMP/out"),
        ("build-missing-tool", "build qwen3-bf16 --target sl2610 -o TMP/out"),
        ("build-module-flags", "build qwen3-bf16 --target host --profile --parameters inline --no-compile -o TMP/out"),
        ("build-chip", "build qwen3-bf16 --target genio-720 --shapes 8t32c,1t32c --chunks 2 -o TMP/out"),
        ("build-chip-json", "build qwen3-bf16 --target genio-720 --shapes 8t32c,1t32c -o TMP/out --json"),
        (
            "build-chip-mends",
            "build qwen3-bf16 --target ../targets/mendable.toml --precision FP32 --shapes 4t16c,1t16c -o TMP/out",
        ),
        (
            "build-chip-no-fix",
            "build qwen3-bf16 --target ../targets/mendable.toml --precision FP32 --shapes 4t16c,1t16c --no-fix -o TMP/out",
        ),
        (
            "build-chip-place",
            "build qwen3-bf16 --target genio-720 --shapes 8t32c,1t32c --place name=lm_head*=cpu --place op=softmax=cpu -o TMP/out",
        ),
        (
            "build-chip-place-idle",
            "build qwen3-bf16 --target genio-720 --shapes 8t32c,1t32c --place op=exp=cpu -o TMP/out",
        ),
        ("build-chip-place-malformed", "build qwen3-bf16 --target genio-720 --place bytes>64MiB -o TMP/out"),
        ("build-chip-deny", "build qwen2-bf16 --target genio-700 --shapes 1t32c --deny-fallback -o TMP/out"),
        ("build-chip-shapes", "build qwen3-bf16 --target genio-720 --shapes 8t32c,4t32c,1t32c -o TMP/out"),
        (
            "build-chip-all-on-cpu",
            "build qwen3-bf16 --target genio-720 --shapes 8t32c,1t32c --place name=*=cpu -o TMP/out",
        ),
        ("build-chip-idle-calibration", "build qwen3-bf16 --target genio-720 --calibration TMP/words -o TMP/out"),
        (
            "build-chip-cpu-in-integers",
            "build qwen2-bf16 --target genio-700 --precision 8W16A --shapes 1t32c -o TMP/out",
        ),
        (
            "build-chip-integers",
            "build qwen3-bf16 --target genio-720 --precision 8W16A --shapes 8t32c,1t32c -o TMP/out",
        ),
        ("build-chip-blocks", "build qwen3-bf16 --target genio-720 --precision 4W16A-g32 --shapes 1t32c -o TMP/out"),
        ("build-host-chunks", "build qwen3-bf16 --chunks 2 --place op=matmul=cpu -o TMP/out"),
        ("build-malformed-shape", "build qwen3-bf16 --shapes 128x1024 -o TMP/out"),
        ("build-impossible-shape", "build qwen3-bf16 --shapes 8t4c,1t4c -o TMP/out"),
        ("build-two-capacities", "build qwen3-bf16 --shapes 8t64c,1t32c -o TMP/out"),
        ("build-no-decode", "build qwen3-bf16 --shapes 8t64c -o TMP/out"),
        ("build-shape-twice", "build qwen3-bf16 --shapes 1t64c,1t64c -o TMP/out"),
        ("build-bad-tokenizer", "build TMP/odd -o TMP/out"),
        ("build-without-tokenizer", "build TMP/odd --shapes 4t8c,1t8c --no-tokenizer -o TMP/out"),
        ("build-unknown-pass", "build qwen3-bf16 --passes fold -o TMP/out"),
        ("synth", "synth qwen2-bf16/config.json -o TMP/synth --format f32"),
        ("synth-lfm2", "synth lfm2-old-bf16/config.json -o TMP/synth --format bf16"),
        ("synth-format", "synth qwen2-bf16/config.json -o TMP/synth --format q8_0"),
        ("build-dump-after-idle-pass", "build qwen3-bf16 --dump-after decompose -o TMP/out"),
    ]);
}

#[test]
fn recipes() {
    check(&[
        ("help-recipes", "recipes --help"),
        ("recipes", "recipes"),
        ("recipes-lpbq", "recipes w4a16-lpbq-g32"),
        ("recipes-lpbq-json", "recipes w4a16-lpbq-g32 --json"),
        ("recipes-unknown", "recipes w4a4"),
    ]);
}

#[test]
fn quantize() {
    check(&[
        ("help-quantize", "quantize --help"),
        ("quantize", "quantize qwen2-bf16 --recipe q4_0 --threads 2 -o TMP/out.gguf"),
        ("quantize-json", "quantize qwen2-bf16 --recipe q4_1 --threads 2 -o TMP/out.gguf --json"),
        (
            "quantize-best",
            "quantize llama3-tied-bf16.gguf --recipe w4a16-lpbq-g16 --calibration TMP/text --threads 1 -o TMP/out",
        ),
        ("quantize-group", "quantize qwen2-bf16 --recipe w4a16-lpbq-g128 --threads 2 -o TMP/out"),
        ("quantize-strict", "quantize llama-gqa3-f16.gguf --recipe q4_0 --strict -o TMP/out.gguf"),
        ("quantize-memory", "quantize qwen2-bf16 --recipe q4_0 --max-rss 1MiB --threads 2 -o TMP/out.gguf"),
        ("quantize-no-text", "quantize qwen3-bf16 --recipe q4_0 --calibration TMP/text -o TMP/out.gguf"),
        ("quantize-latin-1", "quantize qwen2-bf16 --recipe q4_0 --calibration TMP/latin-1 -o TMP/out.gguf"),
        ("quantize-bad-tokenizer", "quantize TMP/odd --recipe q4_0 -o TMP/out.gguf"),
        ("quantize-no-tokenizer", "quantize TMP/odd --recipe q4_0 --no-tokenizer --threads 2 -o TMP/out.gguf"),
    ]);
}

#[test]
fn run() {
    check(&[
        ("run-ids", "run llama-gqa3-q8_0.gguf --ids TMP/ids -n 6 --ignore-eos --shapes 8t32c,1t32c"),
        ("run-ids-json", "run qwen3-bf16 --ids TMP/ids -n 6 --ignore-eos --shapes 8t32c,1t32c --json"),
        ("run-host-chunks", "run qwen3-bf16 --chunks 2 --ids TMP/ids -n 1"),
        ("run-litert-absent", "run qwen3-bf16 --on litert --ids TMP/ids -n 1"),
        ("run-dump", "run qwen3-bf16 --ids TMP/ids -n 1 --dump norm --dump logits --dump-file TMP/values"),
        (
            "run-dump-again",
            "run qwen3-bf16 --ids TMP/ids -n 1 --dump logits --dump logits --dump lm_head --dump layers.0.mlp --dump-file TMP/values",
        ),
        ("run-dump-nowhere", "run qwen3-bf16 --ids TMP/ids -n 1 --dump logits"),
        ("run-dump-nothing", "run qwen3-bf16 --ids TMP/ids -n 1 --dump-file TMP/values"),
        ("run-bad-tokenizer", "run TMP/odd -p Hello"),
        ("run-bad-tokenizer-ids", "run TMP/odd --ids TMP/ids -n 3 --ignore-eos"),
        ("run-no-answer", "run qwen3-bf16 --ids TMP/ids -n 0"),
        ("run-idle-system", "run qwen2-bf16 -p Hello --system x"),
        ("run-idle-date", "run qwen2-bf16 -p Hello --date 2026-01-02"),
        ("run-idle-top-k", "run qwen3-bf16 --ids TMP/ids --top-k 5"),
        ("run-many-threads", "run qwen3-bf16 --ids TMP/ids --threads 100000"),
        ("run-dump-unknown", "run qwen3-bf16 --ids TMP/ids -n 1 --dump norms --dump-file TMP/values"),
        ("run-nothing", "run qwen3-bf16"),
        ("run-no-tokenizer", "run qwen3-bf16 -p Hello"),
        ("run-no-template", "run TMP/plain --chat -p Hello"),
        ("run-bad-ids", "run qwen3-bf16 --ids TMP/words"),
        ("run-large-id", "run qwen3-bf16 --ids TMP/large"),
        ("run-absent-ids", "run qwen3-bf16 --ids TMP/none"),
        ("run-context", "run qwen3-bf16 --ids TMP/ids -n 29 --shapes 8t32c,1t32c"),
        ("run-truncate", "run qwen3-bf16 --ids TMP/ids -n 29 --shapes 8t32c,1t32c --truncate --ignore-eos"),
        ("run-context-hopeless", "run qwen3-bf16 --ids TMP/ids -n 32 --shapes 8t32c,1t32c --truncate"),
        ("run-bad-date", "run llama-gqa3-q8_0.gguf --chat -p Hello --date yesterday"),
        (
            "run-bad-sampling",
            "run qwen3-bf16 --ids TMP/ids --temperature -1 --top-p 0 --min-p 2 --repetition-penalty 0",
        ),
        ("run-empty-stop", "run qwen3-bf16 --ids TMP/ids --stop ''"),
        ("run-no-threads", "run qwen3-bf16 --ids TMP/ids --threads 0"),
    ]);
}

#[test]
fn verify() {
    check(&[
        ("verify", "verify qwen3-bf16 --reference qwen3-bf16/expected.safetensors --gate max_abs<=2e-4,greedy>=1"),
        ("verify-default-gate", "verify llama3-tied-q4_0.gguf --reference llama3-tied-bf16.expected.safetensors"),
        ("verify-other-vocabulary", "verify qwen3-bf16 --reference llama-gqa3-q8_0.expected.safetensors"),
        ("verify-no-reference", "verify qwen3-bf16 --reference qwen3-bf16/model.safetensors"),
        ("verify-not-safetensors", "verify qwen3-bf16 --reference qwen3-bf16/config.json"),
        ("verify-itself", "verify qwen3-bf16"),
        ("verify-bad-gate", "verify qwen3-bf16 --reference qwen3-bf16/expected.safetensors --gate kld<1"),
        ("verify-unmeasured", "verify qwen3-bf16 --reference qwen3-bf16/expected.safetensors --gate kl<1"),
    ]);
}

#[test]
fn verify_on_a_text() {
    check(&[
        ("verify-text", "verify qwen2-q8_0.gguf --text TMP/text --context 16"),
        ("verify-text-json", "verify qwen2-q8_0.gguf --text TMP/text --context 16 --windows 1 --json"),
        ("verify-text-gate", "verify qwen2-q8_0.gguf --text TMP/text --context 16 --gate ppl<2,kl<1"),
        (
            "verify-text-against",
            "verify llama3-tied-q8_0.gguf --against llama3-tied-bf16.gguf --ids TMP/many --context 24 \
             --gate cosine>=-1,kl_max<100,ppl_ratio<100",
        ),
        ("verify-text-float", "verify qwen3-bf16 --against float --ids TMP/many --context 16 --windows 2"),
        ("verify-text-short", "verify qwen2-bf16 --text TMP/text"),
        ("verify-text-odd-context", "verify qwen2-bf16 --text TMP/text --context 15"),
        ("verify-text-long-context", "verify qwen2-bf16 --ids TMP/many --context 16 --shapes 1t8c"),
        ("verify-text-no-windows", "verify qwen2-bf16 --text TMP/text --context 16 --windows 0"),
        ("verify-text-latin-1", "verify qwen2-bf16 --text TMP/latin-1"),
        ("verify-text-large-id", "verify qwen3-bf16 --ids TMP/large --context 4"),
        ("verify-text-no-tokenizer", "verify qwen3-bf16 --text TMP/text"),
        ("verify-text-and-ids", "verify qwen3-bf16 --text TMP/text --ids TMP/ids"),
        ("verify-text-and-reference", "verify qwen3-bf16 --text TMP/text --reference TMP/ids"),
        ("verify-context-alone", "verify qwen3-bf16 --context 16"),
        (
            "verify-text-other-vocabulary",
            "verify qwen3-bf16 --against llama3-tied-bf16.gguf --ids TMP/many --context 16",
        ),
    ]);
}

#[test]
fn solve() {
    check(&[
        ("help-solve", "solve --help"),
        (
            "solve",
            "solve mistral-bf16 --target host --budget-bits 6 --formats q4_0,q8_0 --ids TMP/many --context 16 -o TMP/out.toml",
        ),
        (
            "solve-json",
            "solve mistral-bf16 --target mali-valhall --budget-bits 5 --ids TMP/many --context 16 --by role --json",
        ),
        (
            "solve-gate",
            "solve mistral-bf16 --target host --budget-bits 5 --formats q4_0,q8_0 --ids TMP/many --context 16 \
             --by layer --gate kl<1e-9",
        ),
        (
            "solve-gate-best",
            "solve mistral-bf16 --target host --budget-bits 99 --formats q8_0 --ids TMP/many --context 16 --gate kl<1e-9",
        ),
        ("solve-own-text", "solve qwen2-bf16 --target host --budget-bits 32 --context 16 --gate kl<1e-9"),
        ("solve-small-budget", "solve mistral-bf16 --target mali-valhall --budget-bits 4"),
        ("solve-no-budget", "solve mistral-bf16 --target host --budget-bits -1"),
        ("solve-bad-gate", "solve mistral-bf16 --target host --budget-bits 5 --gate kld<1"),
        ("solve-unknown-format", "solve mistral-bf16 --target host --budget-bits 5 --formats q4_0,q9"),
        ("solve-no-format", "solve mistral-bf16 --target mali-valhall --budget-bits 5 --formats q4_1"),
        ("solve-activations", "solve mistral-bf16 --target mali-valhall --budget-bits 5 --act s16"),
        ("solve-bad-output", "solve mistral-bf16 --target host --budget-bits 5 -o TMP/recipe"),
        ("solve-long-context", "solve mistral-bf16 --target host --budget-bits 5 --context 4096"),
        ("solve-short-text", "solve qwen2-bf16 --target host --budget-bits 5 --text TMP/text"),
    ]);
}

#[test]
fn diff() {
    check(&[
        ("diff-equal", "diff qwen3-bf16 qwen3-bf16 --ids TMP/many --steps 2"),
        ("diff-own-prompts", "diff qwen2-bf16 qwen2-bf16 --threshold-db 90"),
        ("diff-parts", "diff llama3-tied-bf16.gguf llama3-tied-q8_0.gguf --ids TMP/many"),
        ("diff-parts-json", "diff llama3-tied-bf16.gguf llama3-tied-q8_0.gguf --ids TMP/many --json"),
        ("diff-later", "diff llama-gqa3-f16.gguf llama-gqa3-q8_0.gguf --ids TMP/many --threshold-db 40 --steps 1"),
        ("diff-few-ids", "diff qwen3-bf16 qwen3-bf16 --ids TMP/ids"),
        ("diff-vocabulary", "diff qwen3-bf16 llama-gqa3-f16.gguf --ids TMP/ids --steps 1"),
        ("diff-threshold", "diff qwen3-bf16 qwen3-bf16 --threshold-db nan"),
        ("diff-absent", "diff qwen3-bf16 none"),
    ]);
}
