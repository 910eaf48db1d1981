//! What the work needs of the memory is no more than it says: the system refuses more (`RLIMIT_DATA`, which counts what is
//! no mapped file).

use std::process::Command;

use super::*;
use crate::model::Extents;

/// A model whose bf16 weights take 167 MiB, more than streaming may need.
const WIDE: Extents = Extents { hidden: 1024, ffn: 2816, layers: 6, heads: 8, vocab: 16384, context: 512, tied: true };
/// A model that is small but for its head.
const HEAD: Extents = Extents { hidden: 128, ffn: 384, layers: 1, heads: 4, vocab: 65536, context: 512, tied: false };

/// Runs `npuc quantize` with at most `limit_bytes` of memory that is no mapped file.
fn limited(line: &str, limit_bytes: u64, folder: &Path) -> Output {
    let words = line.split_whitespace().map(|word| word.replace("TMP", folder.to_str().unwrap()));
    let command = format!("ulimit -d {}; exec \"$0\" quantize \"$@\"", limit_bytes / 1024);
    Command::new("sh").args(["-c", &command]).arg(npuc().get_program()).args(words).output().unwrap()
}

/// Does the work in the memory that it says it needs, and gives that need and the size of the model.
fn check(model: &Extents, ways: &[&str]) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    model.write_repeated(&folder.path().join("model"));
    let mut least = u64::MAX;
    for how in ways {
        let line = format!("TMP/model --recipe {how} --threads 2 -o TMP/out.gguf");
        let (stderr, status) = said(&format!("quantize {line} --max-rss 1KiB"), folder.path());
        assert_eq!(status, 3, "{stderr}");
        let need: u64 = stderr.split("  = need: ").last().unwrap().split(' ').next().unwrap().parse().unwrap();
        let output = limited(&format!("{line} --max-rss {need}"), need, folder.path());
        assert!(output.status.success(), "{how} in {need} bytes: {}", String::from_utf8_lossy(&output.stderr));
        least = least.min(need);
    }
    (least, fs::metadata(folder.path().join("model/model.safetensors")).unwrap().len())
}

#[test]
fn weights_that_are_streamed_are_not_held() {
    let (need, size) = check(&WIDE, &["q4_0 --quality fast", "q8_0 --quality fast", "q4_0 --quality search"]);
    assert!(3 * need < 2 * size, "{need} bytes for a file of {size}");
}

#[test]
fn gptq_and_folds_need_no_more_than_they_say() {
    check(&HEAD, &["q4_0 --rotate --quality fast", "q4_0 --quality best --samples 1 --tokens 128 --rotate --scale"]);
}
