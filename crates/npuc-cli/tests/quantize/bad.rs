//! Input that is odd or bad: each with the exact error, or a result that is right.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use super::*;

/// What `npuc quantize` says of a small model that `change` was done to; nothing is left beside it if it fails.
fn of_tiny(change: impl Fn(&mut Tiny), how: &str) -> (String, i32) {
    let folder = tempfile::tempdir().unwrap();
    let mut tiny = Tiny::new();
    change(&mut tiny);
    tiny.write(&folder.path().join("model"));
    let result = said(&format!("quantize TMP/model {how}"), folder.path());
    if result.1 != 0 {
        let left = fs::read_dir(folder.path()).unwrap().filter(|e| !e.as_ref().unwrap().path().ends_with("model"));
        let left: Vec<_> = left.map(|e| e.unwrap().file_name()).filter(|name| !is_work(name)).collect();
        assert!(left.is_empty(), "{how} leaves {left:?}");
    }
    result
}

fn is_work(name: &std::ffi::OsStr) -> bool {
    name.to_str().unwrap().ends_with(".work-npuc")
}

const OWN_TEXT: &str = "--quality best --samples 1 --tokens 40";

#[test]
fn weights_that_are_not_finite_are_named() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (name, canonical) in [
            (UP, "layers.1.mlp.up_proj.weight"),
            ("model.embed_tokens.weight", "embed_tokens.weight"),
            ("model.norm.weight", "norm.weight"),
            ("model.layers.0.input_layernorm.weight", "layers.0.input_layernorm.weight"),
            ("lm_head.weight", "lm_head.weight"),
        ] {
            for how in [
                "--recipe q4_0 -o TMP/out.gguf",
                "--recipe f16 --quality fast -o TMP/out.gguf",
                "--recipe stored -o TMP/out.gguf",
                "--recipe stored -o TMP/out",
                "--recipe w8 -o TMP/out",
                &format!("--recipe q4_0 {OWN_TEXT} -o TMP/out.gguf"),
                &format!("--recipe w4a16-lpbq-g32 {OWN_TEXT} -o TMP/out"),
            ] {
                let (stderr, status) = of_tiny(|tiny| tiny.values(name)[7] = odd, how);
                let expected = format!(
                    "error[non-finite-weights]: a weight holds values that are not finite\n  --> {canonical}\n  = need: \
                     finite values\n  = have: 1 in a row of 64\n"
                );
                assert_eq!((stderr, status), (expected, 3), "{odd} in {name}: {how}");
            }
        }
    }
}

#[test]
fn numbers_beyond_a_format_are_told() {
    for (value, recipe, output, fits) in [
        (65504.0, "f16", "out.gguf", true),
        (65520.0, "f16", "out.gguf", false),
        (1e5, "bf16", "out.gguf", true),
        (524_032.0, "q4_0", "out.gguf", true),
        (530_000.0, "q4_0", "out.gguf", false),
        (-530_000.0, "q4_0", "out.gguf", false),
        (8.3e6, "q8_0", "out.gguf", true),
        (8.4e6, "q8_0", "out.gguf", false),
        (1e30, "w8", "out", true),
        (3e38, "w8", "out", false),
        (3e38, "f16-bw4-g32", "out", false),
        (3e38, "f32", "out.gguf", true),
    ] {
        let (stderr, status) = of_tiny(|t| t.values(UP)[7] = value, &format!("--recipe {recipe} -o TMP/{output}"));
        assert_eq!(status, if fits { 0 } else { 3 }, "{value} as {recipe}: {stderr}");
        let told = format!(
            "error[bad-range]: a weight holds numbers that its format cannot\n  --> layers.1.mlp.up_proj.weight\n  = need: \
             magnitudes that {} holds\n  = have: {}\n",
            recipe.replace("f16-bw4", "bw4").replace("w8", "int8"),
            f32::abs(value)
        );
        assert!(fits || stderr.contains(&told), "{stderr}");
    }
}

/// The elements of the last layer's up projection after quantising to a GGUF file of f32 of it.
fn kept_up(recipe: &str, quality: &str, change: impl Fn(&mut Tiny)) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let mut tiny = Tiny::new();
    change(&mut tiny);
    tiny.write(&folder.path().join("model"));
    quantise(&format!("TMP/model --recipe {recipe} {quality} -o TMP/out.gguf"), folder.path());
    let written = npuc::front::open(&folder.path().join("out.gguf")).unwrap();
    npuc::exec::to_f32(&written.tensors["layers.1.mlp.up_proj.weight"])
}

#[test]
fn rows_that_are_zero_or_constant_are_kept_right() {
    for recipe in ["q4_0", "q4_1", "q8_0", "f16"] {
        for quality in ["--quality fast", "--quality search", OWN_TEXT] {
            let row = 3 * COLS..4 * COLS;
            let zero = kept_up(recipe, quality, |tiny| tiny.values(UP)[row.clone()].fill(0.0));
            assert!(zero[row.clone()].iter().all(|x| *x == 0.0), "a row of zeros as {recipe}, {quality}");
            let block = 3 * COLS..3 * COLS + 32;
            let zero = kept_up(recipe, quality, |tiny| tiny.values(UP)[block.clone()].fill(0.0));
            assert!(zero[block].iter().all(|x| *x == 0.0), "a block of zeros as {recipe}, {quality}");
            // One value: the scale and the offset are halves, which hold 0.25 and its eighth.
            let single = kept_up(recipe, quality, |tiny| tiny.values(UP)[row.clone()].fill(-0.25));
            let near = |x: &f32| (x + 0.25).abs() <= 0.25 / 2000.0;
            assert!(single[row.clone()].iter().all(near), "one value as {recipe}, {quality}: {:?}", &single[row]);
            let column =
                kept_up(recipe, quality, |tiny| tiny.values(UP).iter_mut().step_by(COLS).for_each(|x| *x = 0.1));
            let mean = column.iter().step_by(COLS).sum::<f32>() / 96.0;
            assert!((mean - 0.1).abs() < 0.01, "a constant channel as {recipe}, {quality}: {mean}");
            let zero = kept_up(recipe, quality, |tiny| tiny.matrices().for_each(|x| *x = 0.0));
            assert!(zero.iter().all(|x| *x == 0.0), "nothing but zeros as {recipe}, {quality}");
        }
    }
}

#[test]
fn the_error_of_a_model_of_zeros_is_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let mut tiny = Tiny::new();
    tiny.matrices().for_each(|x| *x = 0.0);
    tiny.write(&folder.path().join("model"));
    let output = call(&format!("quantize TMP/model --recipe q4_0 {OWN_TEXT} -o TMP/out.gguf"), folder.path());
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("error         none: nearest rounding changes no output"), "{stdout}");
}

/// A quantisation that more options are added to.
const OF_QWEN2: &str = "qwen2-bf16 --recipe q4_0 -o TMP/out.gguf";

fn texts() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let sentence = "A short text about a clock and a mill. ";
    let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    put("empty", b"");
    put("one", b"a");
    put("few", b"a few words");
    put("latin-1", b"caf\xe9 and more");
    put("bad.jsonl", b"{\"text\": \"a\"}\n\n{\"txt\": \"b\"}\nnonsense\n");
    put("good.jsonl", format!("{{\"text\": \"{0}\"}}\n\n{{\"text\": \"{0}{0}\"}}\n", sentence.repeat(2)).as_bytes());
    put("empty.jsonl", b"\n\n");
    put("long", sentence.repeat(120).as_bytes());
    folder
}

#[test]
fn text_that_is_too_short_is_told() {
    let folder = texts();
    for (file, tokens) in [("empty", 0), ("empty.jsonl", 0), ("one", 1), ("few", 8)] {
        let expected = format!(
            "error[bad-argument]: the text to calibrate with is too short\n  --> TMP/{file}\n  = need: 32 tokens at \
             least\n  = have: {tokens} tokens\n"
        );
        let line = format!("quantize {OF_QWEN2} --calibration TMP/{file}");
        assert_eq!(said(&line, folder.path()), (expected, 2), "{file}");
    }
}

#[test]
fn text_that_cannot_be_used_is_told() {
    let folder = texts();
    for (more, expected, status) in [
        (
            "--calibration TMP/latin-1",
            "error[unreadable]: the text is not UTF-8\n  --> TMP/latin-1\n  = need: UTF-8\n  = have: byte 0xe9 at offset \
             3\n  = help: convert the text, e.g. with iconv -t UTF-8\n",
            3,
        ),
        (
            "--calibration TMP/bad.jsonl",
            "error[bad-argument]: a line is malformed: missing field `text` at line 1 column 12\n  --> \
             TMP/bad.jsonl:3\n  = need: an object with a `text`\nerror[bad-argument]: a line is malformed: expected ident at \
             line 1 column 2\n  --> TMP/bad.jsonl:4\n  = need: an object with a `text`\n",
            2,
        ),
        (
            "--calibration TMP/none",
            "error[unreadable]: cannot read the file: No such file or directory (os error 2)\n  --> TMP/none\n",
            3,
        ),
        (
            "--quality best --samples 0",
            "error[bad-argument]: there is nothing to calibrate with\n  = need: --samples of 1 at least and --tokens of 2 \
             at least\n",
            2,
        ),
        (
            "--quality search --calibration TMP/long",
            "error[bad-argument]: --calibration does nothing for this quality and float activations\n  --> TMP/long\n  = \
             help: use --quality best, or leave the flag out\n",
            2,
        ),
        (
            "--scale",
            "error[bad-argument]: scales follow from calibration text\n  --> --scale\n  = help: add --quality best\n",
            2,
        ),
    ] {
        let have = said(&format!("quantize {OF_QWEN2} {more}"), folder.path());
        assert_eq!((have.0.as_str(), have.1), (expected, status), "{more}");
    }
    let line = "quantize qwen3-bf16 --recipe q4_0 --calibration TMP/long -o TMP/out.gguf";
    let (stderr, status) = said(line, folder.path());
    assert!(stderr.starts_with("error[no-tokenizer]: the model has no tokenizer to read the text with"), "{stderr}");
    assert_eq!(status, 3);
}

#[test]
fn sequences_are_as_many_and_long_as_asked_and_fit_the_context() {
    let folder = texts();
    for (more, sequences, tokens) in [
        ("--calibration TMP/good.jsonl", 2, None),
        ("--calibration TMP/long --samples 3 --tokens 50", 3, Some(150)),
        ("--calibration TMP/long --samples 1 --tokens 100000", 1, Some(2048)),
        ("--quality best --samples 1 --tokens 100000", 1, Some(2048)),
        ("--quality best --samples 2 --tokens 2", 2, Some(4)),
    ] {
        let report = quantise(&format!("{OF_QWEN2} {more}"), folder.path());
        let calibration = &report["calibration"];
        assert_eq!(calibration["sequences"], sequences, "{more}");
        assert!(tokens.is_none_or(|tokens: u64| calibration["tokens"] == tokens), "{more}: {calibration}");
        assert_eq!(calibration["sha256"].as_str().unwrap().len(), 64);
    }
}

#[test]
fn a_model_that_cannot_begin_a_text_is_told() {
    let folder = tempfile::tempdir().unwrap();
    Tiny::new().write(&folder.path().join("model"));
    let config = folder.path().join("model/config.json");
    let text = fs::read_to_string(&config).unwrap().replace("\"bos_token_id\":1", "\"bos_token_id\":64");
    fs::write(&config, text).unwrap();
    let (stderr, status) = said(&format!("quantize TMP/model --recipe q4_0 {OWN_TEXT} -o TMP/out.gguf"), folder.path());
    assert!(stderr.contains("error[bad-config]: the model cannot begin a text with its first token"), "{stderr}");
    assert!(stderr.contains("  = need: an id below 64\n  = have: 64\n"), "{stderr}");
    assert_eq!(status, 3);
}

#[test]
fn groups_that_do_not_divide_are_noted_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (model, recipe, output, weight, code, nearest) in [
        ("llama-gqa3-f16.gguf", "q4_0", "out.gguf", "layers.0.mlp.down_proj.weight", "group-size", "f16"),
        ("llama-gqa3-f16.gguf", "q4_0", "out", "layers.0.mlp.down_proj.weight", "group-size", "lpbq4-g16"),
        ("qwen2-bf16", "w4a16-lpbq-g512", "out", "layers.0.self_attn.q_proj.weight", "group-size", "lpbq4-g64"),
        ("qwen2-bf16", "w8", "out.gguf", "layers.0.self_attn.q_proj.weight", "unsupported-format", "q8_0"),
    ] {
        let line = format!("quantize {model} --recipe {recipe} -o TMP/{output}");
        let (stderr, status) = said(&line, folder.path());
        assert_eq!(status, 0, "{line}");
        assert!(stderr.starts_with(&format!("warning[{code}]: ")), "{stderr}");
        let told = format!("  = help: it becomes {nearest}; name a format in the recipe, or refuse with --strict\n");
        assert!(stderr.contains(&format!("  --> {weight}\n")) && stderr.contains(&told), "{stderr}");
        let (stderr, status) = said(&format!("{line} --strict"), folder.path());
        assert_eq!(status, 1, "{line}");
        let told = format!("  = help: the nearest that can be is {nearest}\n");
        assert!(stderr.starts_with(&format!("error[{code}]: ")) && stderr.contains(&told), "{stderr}");
    }
}

#[test]
fn places_that_cannot_be_written_are_refused_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("dir.gguf")).unwrap();
    fs::create_dir(folder.path().join("own")).unwrap();
    fs::write(folder.path().join("own/notes"), "mine").unwrap();
    symlink("nowhere", folder.path().join("link")).unwrap();
    for (output, message) in [
        ("dir.gguf", "error[unwritable]: cannot write: is a directory\n  --> TMP/dir.gguf\n"),
        (
            "none/out.gguf",
            "error[unwritable]: cannot write: No such file or directory (os error 2)\n  --> TMP/none/out.gguf\n",
        ),
        ("own", "error[unwritable]: the output exists and is not a bundle\n  --> TMP/own\n"),
        ("link", "error[unwritable]: the output is a link that points to nothing\n  --> TMP/link\n"),
    ] {
        for quality in ["search", "best --samples 1 --tokens 40"] {
            let line = format!("quantize qwen2-bf16 --recipe q4_0 --quality {quality} -o TMP/{output}");
            let (stderr, status) = said(&line, folder.path());
            assert!(stderr.starts_with(message), "{stderr}");
            assert_eq!(status, 3);
        }
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "no work was begun: {left:?}");
}

#[test]
fn a_read_only_folder_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The superuser may write anywhere, so the work is done as nobody.
    let command = format!("\"$0\" quantize \"$1\" --recipe q4_0 -o {}/out.gguf", closed.display());
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &command]);
    let output = nobody.arg(npuc().get_program()).arg(checkpoint("qwen2-bf16")).output();
    let Some(output) = output.ok().filter(|output| !String::from_utf8_lossy(&output.stderr).contains("setpriv:"))
    else {
        eprintln!("NOT RUN: to be another user needs setpriv and the right to use it");
        return;
    };
    let stderr = String::from_utf8(output.stderr).unwrap();
    if output.status.code() == Some(126) || stderr.contains("ot found") {
        eprintln!("NOT RUN: another user cannot reach the program: {stderr}");
        return;
    }
    assert!(stderr.starts_with("error[unwritable]: cannot write: Permission denied (os error 13)"), "{stderr}");
    assert_eq!(output.status.code(), Some(3), "{stderr}");
}

#[test]
fn a_full_disk_leaves_nothing_in_the_output() {
    let folder = tempfile::tempdir().unwrap();
    symlink("/dev/full", folder.path().join("out.gguf")).unwrap();
    let (stderr, status) = said("quantize qwen2-bf16 --recipe q4_0 -o TMP/out.gguf", folder.path());
    let told = "error[unwritable]: cannot write: No space left on device (os error 28)\n  --> TMP/out.gguf\n  = need: ";
    assert!(stderr.starts_with(told) && status == 3, "{stderr}");
    assert!(stderr.ends_with(" bytes\n  = help: free some space or name a place on another disk\n"), "{stderr}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    // A limit on file sizes stands in for a disk that is full in the middle of a file.
    let command = "ulimit -f 8; exec \"$0\" quantize \"$1\" --recipe f32 -o \"$2\"";
    let mut limited = Command::new("sh");
    limited.args(["-c", command]).arg(npuc().get_program()).arg(checkpoint("qwen2-bf16"));
    let output = limited.arg(folder.path().join("file.gguf")).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error[unwritable]: cannot write: File too large"), "{stderr}");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn the_output_never_takes_the_place_of_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    fs::copy(checkpoint("llama-gqa3-f16.gguf"), &model).unwrap();
    std::os::unix::fs::symlink(&model, folder.path().join("link.gguf")).unwrap();
    for output in ["model.gguf", "./model.gguf", "link.gguf"] {
        let line = format!("quantize TMP/model.gguf --recipe q8_0 -o TMP/{output}");
        let (stderr, status) = said(&line, folder.path());
        assert!(stderr.starts_with("error[bad-argument]: the output is the model itself\n"), "{stderr}");
        assert_eq!(status, 2);
        assert!(fs::read(&model).unwrap() == fs::read(checkpoint("llama-gqa3-f16.gguf")).unwrap(), "{output}");
    }
    let before = files(&checkpoint("qwen2-bf16"));
    let (stderr, status) = said("quantize qwen2-bf16 --recipe q8_0 -o qwen2-bf16", folder.path());
    assert!(stderr.starts_with("error[bad-argument]: the output is the model itself\n"), "{stderr}");
    assert_eq!(status, 2);
    assert!(files(&checkpoint("qwen2-bf16")) == before);
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("idle.toml"), "base = \"q8_0\"\n\"layers.9.*\" = \"q4_0\"\n").unwrap();
    fs::write(folder.path().join("odd.toml"), "base = \"q8_0\"\nlinear = \"q9\"\nact = \"u4\"\n").unwrap();
    fs::write(folder.path().join("caches.toml"), "base = \"q8_0\"\nkv = \"u8\"\n").unwrap();
    fs::write(folder.path().join("gains.toml"), "base = \"q8_0\"\n\"*norm\" = \"int8\"\n").unwrap();
    fs::write(folder.path().join("malformed.toml"), "base = \"q8_0\"\nlinear = \n").unwrap();
    for (how, message, status) in [
        (
            "--recipe q4_0 --max-rss 1MiB -o TMP/o.gguf",
            "error[out-of-memory]: the work needs more memory than --max-rss",
            3,
        ),
        ("--recipe q4_0 --max-rss 1XB -o TMP/o.gguf", "error[bad-argument]: a size is malformed", 2),
        ("--recipe w4a16 -o TMP/o.gguf", "error[unsupported-format]: a GGUF file says nothing of activations", 1),
        (
            "--recipe w4a16 --target genio-720 -o TMP/o.gguf",
            "error[unsupported-format]: GGUF files have no such format",
            1,
        ),
        ("--recipe q4_0 --target nope -o TMP/o", "error[bad-argument]: npuc does not know this target", 2),
        ("--recipe q4 -o TMP/o.gguf", "error[bad-recipe]: npuc does not know this recipe", 2),
        ("--recipe TMP/idle.toml -o TMP/o.gguf", "error[bad-recipe]: a line of the recipe is about no matrix", 2),
        ("--recipe TMP/odd.toml -o TMP/o.gguf", "error[bad-recipe]: a recipe has an unknown weight format", 2),
        ("--recipe TMP/malformed.toml -o TMP/o.gguf", "error[bad-recipe]: the recipe does not parse", 2),
        ("--recipe TMP/gains.toml -o TMP/o.gguf", "error[bad-recipe]: a line of the recipe is about no matrix", 2),
        (
            "--recipe TMP/caches.toml --strict -o TMP/o.gguf",
            "error[unsupported-format]: a line of the recipe has no effect",
            1,
        ),
        ("--recipe q8_0 --shapes 8t8c,1t8c -o TMP/o.gguf", "error[bad-argument]: --shapes does nothing", 2),
        ("--recipe q8_0 --shapes 8t8c -o TMP/o", "error[bad-shape]: no step shape decodes", 2),
        ("--recipe w8a16 --target genio-720 -o TMP/o", "error[bad-argument]: npuc quantize writes no bundles", 2),
        ("--recipe TMP/none.toml -o TMP/o.gguf", "error[unreadable]: cannot read the recipe", 3),
        ("--recipe q4_0 -o /", "error[unwritable]: the output has no folder name", 3),
        ("--recipe q4_0 --threads 0 -o TMP/o.gguf", "error[bad-argument]: the number of threads is out of range", 2),
    ] {
        let (stderr, have) = said(&format!("quantize qwen2-bf16 {how}"), folder.path());
        assert!(stderr.contains(message) && have == status, "{how}: {have}, {stderr}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5, "{how}: nothing is left");
    }
}
