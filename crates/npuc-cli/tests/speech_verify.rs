//! `npuc verify` for Whisper: over sound and recorded outputs, on pairs of bundles and checkpoints, and what it refuses.
//!
//! The small model has random weights, windows of 30 s and a tokenizer of single bytes; outputs of transformers are in
//! `../shared/fixtures/whisper-f32`.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use npuc_fetch::espeak::speak;
use npuc_fetch::models;
use npuc_run::toolchain::{Tool, install};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

mod program;

use program::{checkpoint, npuc};

/// The first timestamp of the small tokenizer, behind 256 bytes and ten special tokens.
const TIME: u32 = 266;
const VOCAB: u32 = TIME + 1501;

/// Standard output, standard error and exit status.
fn run(args: &[&str]) -> (String, String, i32) {
    let output = npuc().args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr), output.status.code().unwrap())
}

fn succeed(args: &[&str]) {
    let (_, stderr, status) = run(args);
    assert_eq!(status, 0, "{args:?}: {stderr}");
}

/// What `npuc verify --json` says, and its exit status.
fn figures(args: &[&str]) -> (Value, i32) {
    let (stdout, stderr, status) = run(&[&["verify", "--json"], args].concat());
    (serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{args:?}: {e} in {stdout}{stderr}")), status)
}

/// Writes a checkpoint of random weights with its tokenizer.
fn write_small(folder: &Path, mels: usize, vocab: u32) {
    let config = json!({
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 64,
        "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": vocab, "num_mel_bins": mels,
        "max_source_positions": 1500, "max_target_positions": 64, "bos_token_id": 256, "eos_token_id": 256,
        "decoder_start_token_id": 257,
    });
    let file = folder.with_extension("json");
    fs::write(&file, config.to_string()).unwrap();
    succeed(&["synth", path(&file), "-o", path(folder), "--format", "f32", "--seed", "3"]);
    fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
}

/// Makes what attention adds to the residual stream small, so that nothing is lost with it.
fn quieten(file: &Path) {
    let bytes = fs::read(file).unwrap();
    let mut changed = bytes.clone();
    for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let start = tensor.data().as_ptr() as usize - bytes.as_ptr() as usize;
        let numbers = &mut changed[start..start + tensor.data().len()];
        for number in numbers.chunks_exact_mut(4).filter(|_| name.contains("out_proj")) {
            let small = 1e-3 * f32::from_le_bytes(number.try_into().unwrap());
            number.copy_from_slice(&small.to_le_bytes());
        }
    }
    fs::write(file, changed).unwrap();
}

/// A `tokenizer.json` of single bytes and Whisper's special tokens.
fn tokenizer() -> Value {
    let mut others = '\u{100}'..;
    let plain = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let alphabet = (0..=255u8).map(|byte| if plain(&byte) { char::from(byte) } else { others.next().unwrap() });
    let mut vocab: HashMap<String, u32> = (0u32..).zip(alphabet).map(|(id, c)| (c.to_string(), id)).collect();
    let names = "endoftext startoftranscript en de translate transcribe startoflm startofprev nospeech notimestamps";
    let added: Vec<Value> = (256u32..)
        .zip(names.split(' '))
        .map(|(id, name)| {
            vocab.insert(format!("<|{name}|>"), id);
            json!({"id": id, "content": format!("<|{name}|>"), "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false})
        })
        .collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "vocab": vocab, "merges": []}})
}

/// Writes `seconds` of a tone that changes, 16 kHz in 16 bits.
fn write_wav(file: &Path, seconds: f64) {
    let samples = (0..(seconds * 16_000.0) as u32).map(|i| {
        let t = f64::from(i) / 16_000.0;
        (6000.0 * (t * 2000.0 + 300.0 * (3.0 * t).sin()).sin() * (5.0 * t).sin().abs()) as i16
    });
    let data: Vec<u8> = samples.flat_map(i16::to_le_bytes).collect();
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + data.len() as u32).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data");
    bytes.extend((data.len() as u32).to_le_bytes());
    bytes.extend(data);
    fs::write(file, bytes).unwrap();
}

/// The small model, pairs of bundles of it, others beside it, and sound.
struct Stage {
    folder: PathBuf,
}

impl Stage {
    fn at(&self, name: &str) -> String {
        path(&self.folder.join(name)).to_owned()
    }
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        // What a test's program keeps is never dropped, so it is no temporary folder.
        let stage = Stage { folder: Path::new(env!("CARGO_TARGET_TMPDIR")).join("speech_verify") };
        let _ = fs::remove_dir_all(&stage.folder);
        fs::create_dir_all(&stage.folder).unwrap();
        let at = |name: &str| stage.folder.join(name);
        write_small(&at("small"), 80, VOCAB);
        write_small(&at("quiet"), 80, VOCAB);
        quieten(&at("quiet/model.safetensors"));
        write_small(&at("wide"), 128, VOCAB + 1);
        write_small(&at("mute"), 80, VOCAB);
        fs::remove_file(at("mute/tokenizer.json")).unwrap();
        write_wav(&at("sound.wav"), 32.0);
        write_wav(&at("brief.wav"), 3.0);
        write_wav(&at("nothing.wav"), 0.005);
        fs::write(at("text"), "no sound").unwrap();
        let small = stage.at("small");
        succeed(&["build", &small, "-o", &stage.at("pair")]);
        succeed(&["build", &small, "--recipe", "q8_0", "-o", &stage.at("q8")]);
        stage
    })
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The fixture's folder.
fn fixture() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/whisper-f32");
    if !path.is_dir() {
        eprintln!("NOT RUN: the fixture whisper-f32, because ../shared/fixtures is absent");
        return None;
    }
    Some(path)
}

fn number(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or_else(|| panic!("{name} in {of}"))
}

/// The same model on the same device gives the same numbers, as a checkpoint and as a pair of bundles.
#[test]
fn a_model_agrees_with_itself() {
    let stage = stage();
    let (small, pair, sound) = (stage.at("small"), stage.at("pair"), stage.at("sound.wav"));
    for (model, against, more, windows) in [
        (&small, small.as_str(), &["--windows", "1"][..], 1),
        (&small, "float", &["--windows", "1"], 1),
        (&pair, &small, &["--threads", "1"], 2),
    ] {
        let args = [&[model.as_str(), "--against", against, "--audio", &sound], more].concat();
        let (said, status) = figures(&args);
        assert_eq!(status, 0, "{said}");
        assert_eq!((&said["windows"], &said["measured_on"]), (&json!(windows), &json!("host")));
        assert_eq!((&said["faithful"], &said["greedy"], &said["top1"]), (&json!(true), &json!(1.0), &json!(1.0)));
        assert_eq!(
            (&said["max_abs"], &said["sqnr_db"], &said["heard"]["sqnr_db"]),
            (&json!(0.0), &json!(null), &json!(null))
        );
        assert!(number(&said, "cosine_min") > 0.999_999 && number(&said["heard"], "cosine_min") > 0.999_999, "{said}");
        assert_eq!(said["texts"]["model"], said["texts"]["reference"]);
        // Every id that was written and the one before them is a position.
        let greedy = said["greedy_ids"].as_u64().unwrap();
        assert!(greedy > windows && said["positions"].as_u64().unwrap() <= greedy + windows, "{said}");
        assert!(said["texts"]["word_error_rate"].as_f64().is_none_or(|rate| rate == 0.0), "{said}");
    }
}

/// What is stored in f32 becomes what Qualcomm's NPU takes, the stem included, and computes as the float there.
#[test]
fn single_precision_becomes_what_a_chip_takes() {
    let stage = stage();
    let (small, sound) = (stage.at("small"), stage.at("sound.wav"));
    install(Tool::Qnn, &mut |line| eprintln!("{line}")).unwrap_or_else(|e| panic!("Qualcomm's libraries: {e}"));
    // The libraries are in the user's cache.
    let with_libraries = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_npuc")).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    for (recipe, more, gate) in
        [("f16", &[][..], "cosine>=0.9999,sqnr>=40"), ("w8a16", &["--calibration", &sound], "cosine>=0.999,sqnr>=30")]
    {
        let bundle = stage.at(&format!("sm8650-{recipe}"));
        let shapes = ["--target", "sm8650", "--recipe", recipe, "--shapes", "8t16c,1t16c"];
        with_libraries(&[&["build", &small, "-o", &bundle], &shapes[..], more].concat());
        let args =
            ["verify", &bundle, "--json", "--against", &small, "--audio", &sound, "--windows", "1", "--on", "qnn"];
        let said: Value = serde_json::from_slice(&with_libraries(&[&args[..], &["--gate", gate]].concat())).unwrap();
        assert_eq!(said["measured_on"], json!("emulation"), "{recipe}: {said}");
        eprintln!("{recipe}: cosine {}, {} dB", said["cosine_min"], said["sqnr_db"]);
    }
}

/// Rounded weights are a little off, inside and in the scores; the gate judges the scores.
#[test]
fn rounded_weights_are_a_little_off() {
    let stage = stage();
    let (small, q8, sound) = (stage.at("small"), stage.at("q8"), stage.at("sound.wav"));
    let args = [q8.as_str(), "--against", &small, "--audio", &sound, "--windows", "1"];
    let (said, status) = figures(&[&args[..], &["--gate", "cosine>=0.99,top1>=0.5,sqnr>=15"]].concat());
    assert_eq!(status, 0, "{said}");
    for of in [&said, &said["heard"]] {
        let (cosine, db) = (number(of, "cosine_min"), number(of, "sqnr_db"));
        assert!((0.99..0.999_999).contains(&cosine) && (15.0..60.0).contains(&db), "{of}");
    }
    assert!(said["heard"]["cosine_min_port"].as_str().unwrap().starts_with("heard_"));
    for gate in ["cosine>=0.9999999", "max_abs<=0", "kl<=1"] {
        let (said, status) = figures(&[&args[..], &["--gate", gate]].concat());
        assert_eq!((status, &said["faithful"], &said["broken"][0]["need"]), (1, &json!(false), &json!(gate)));
    }
    let (stdout, stderr, status) = run(&[&["verify"], &args[..], &["--gate", "cosine>=2"]].concat());
    assert_eq!(status, 1);
    assert!(stderr.contains("error[unfaithful]: a figure breaks a condition of the gate"), "{stderr}");
    for line in [
        "windows           1\n",
        "heard, cosine     0.9",
        "heard, SQNR ",
        "word errors ",
        "positions ",
        "measured on       host\n",
        "  the model      ",
    ] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
}

/// What transformers recorded is what a checkpoint and a pair of bundles give.
#[test]
fn recorded_outputs_are_met() {
    let Some(fixture) = fixture() else { return };
    let folder = tempfile::tempdir().unwrap();
    let pair = folder.path().join("pair");
    succeed(&["build", path(&fixture), "--shapes", "16t64c,1t64c", "-o", path(&pair)]);
    let expected = fixture.join("expected.safetensors");
    for model in [&fixture, &pair] {
        let (said, status) = figures(&[path(model), "--reference", path(&expected)]);
        assert_eq!((status, &said["windows"], &said["positions"]), (0, &json!(1), &json!(8)), "{said}");
        assert_eq!((&said["greedy_ids"], &said["greedy"], &said["top1"]), (&json!(12), &json!(1.0), &json!(1.0)));
        assert!(
            number(&said, "max_abs") < 2e-4 && said.get("heard").is_none() && said.get("texts").is_none(),
            "{said}"
        );
    }
    let (said, status) = figures(&[path(&pair), "--reference", path(&expected), "--gate", "max_abs<=1e-12"]);
    assert_eq!((status, &said["broken"][0]["code"]), (1, &json!("unfaithful")), "{said}");
    // Another model breaks the default gate.
    let q8 = folder.path().join("q4");
    succeed(&["build", path(&fixture), "--recipe", "q4_0", "--shapes", "16t64c,1t64c", "-o", path(&q8)]);
    let (said, status) = figures(&[path(&q8), "--reference", path(&expected)]);
    assert_eq!((status, &said["faithful"]), (1, &json!(false)), "{said}");
}

/// Writes a file of recorded outputs, of which tensors may be left out or have another shape.
fn write_reference(file: &Path, tensors: &[(&str, Dtype, &[usize])]) {
    let bytes = |dtype: Dtype, shape: &[usize]| {
        let size = if dtype == Dtype::I64 { 8 } else { 4 };
        vec![0u8; size * shape.iter().product::<usize>()]
    };
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, dtype, shape)| bytes(*dtype, shape)).collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, dtype, shape), data)| (*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap()));
    fs::write(file, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// What is wrong with recorded outputs is told with the tensor.
#[test]
fn other_recorded_outputs_are_refused() {
    const MEL: (&str, Dtype, &[usize]) = ("input_features", Dtype::F32, &[1, 80, 3000]);
    const IDS: (&str, Dtype, &[usize]) = ("decoder_input_ids", Dtype::I64, &[1, 2]);
    const GREEDY: (&str, Dtype, &[usize]) = ("greedy_ids", Dtype::I64, &[1, 3]);
    let stage = stage();
    let (small, file) = (stage.at("small"), stage.folder.join("recorded"));
    for (tensors, message) in [
        (&[IDS, GREEDY][..], "the reference has no windows of sound"),
        (&[("input_features", Dtype::F32, &[80, 3000]), IDS, GREEDY], "the reference has no windows of sound"),
        (&[("input_features", Dtype::I32, &[1, 80, 3000]), IDS, GREEDY], "the reference has no windows of sound"),
        (&[MEL, GREEDY], "the reference has no ids for the decoder"),
        (&[MEL, IDS], "the reference has nothing to compare with"),
        (&[MEL, IDS, ("greedy_ids", Dtype::I64, &[2, 3])], "the reference has another number of rows than of windows"),
        (&[MEL, IDS, ("logits", Dtype::F32, &[1, 3, 7])], "the tensor needs F32[1, 2, vocab] and has F32[1, 3, 7]"),
        (&[MEL, IDS, ("logits", Dtype::F32, &[1, 2, 7])], "the reference has another vocabulary than the model"),
        (
            &[("input_features", Dtype::F32, &[1, 80, 300]), IDS, GREEDY],
            "the reference has other windows than the model hears",
        ),
    ] {
        write_reference(&file, tensors);
        let (_, stderr, status) = run(&["verify", &small, "--reference", path(&file)]);
        assert_eq!(status, 3, "{stderr}");
        assert!(stderr.starts_with(&format!("error[bad-reference]: {message}\n  --> ")), "{stderr}");
    }
}

/// Every refusal says what to give instead, and bad sound is told before a model is opened.
#[test]
fn misuse_is_told() {
    let stage = stage();
    let help = format!("npuc verify {} --audio speech.wav", stage.at("pair"));
    let bundle = "bad-argument]: this is one of Whisper's two models, which are measured together";
    let nothing = "bad-argument]: there is nothing to measure Whisper on";
    for (args, told, also) in [
        ("small", nothing, "--audio FILE.wav with --against MODEL"),
        ("pair", nothing, "or --reference FILE"),
        ("small --against pair", nothing, "--audio FILE.wav"),
        ("small --audio sound.wav", "bad-argument]: this machine would be compared with itself", "--against MODEL"),
        ("small --text text", "bad-argument]: --text is about text, and Whisper is measured on sound", "--audio"),
        ("pair --ids text", "bad-argument]: --ids is about text, and Whisper is measured on sound", "--audio"),
        ("small --audio sound.wav --context 8", "bad-argument]: --context is about text", "--audio"),
        ("pair --audio sound.wav --windows 0 --against small", "bad-argument]: there is no window", "at least 1"),
        ("qwen3 --audio sound.wav", "bad-argument]: sound is for Whisper, and this model reads", "use --text FILE"),
        ("/nowhere --audio sound.wav", "unreadable]: ", "/nowhere"),
        ("pair/encoder", bundle, &help),
        ("pair/decoder --audio sound.wav --against small", bundle, &help),
        ("small --audio sound.wav --against q8/decoder", bundle, "encoder/"),
        ("pair --audio sound.wav --against float", "bad-argument]: a bundle does not say where", "--against PATH"),
        ("small --audio text --against /nowhere", "unknown-format]: the file is no WAV file", "RIFF"),
        ("small --audio /nowhere.wav --against pair", "unreadable]: cannot read the audio", "/nowhere.wav"),
        ("small --audio nothing.wav --against pair", "bad-argument]: there is no sound to measure on", "10 ms"),
        ("mute --audio sound.wav --against small", "no-tokenizer]: the model has no tokenizer", "tokenizer.json"),
        ("small --audio sound.wav --against wide", "bad-reference]: the models to compare have", "1768 ids"),
        ("small --audio sound.wav --against qwen3", "unsupported-architecture]: the model is not what", "Whisper"),
        ("pair --audio sound.wav --against small --shapes 1t64c", "bad-argument]: a bundle has the shapes", "--shapes"),
        ("small --audio sound.wav --on null", "bad-argument]: the null back end computes nothing", "npuc bench"),
        ("small --audio sound.wav --on qnn", "bad-argument]: the emulation runs bundles", "npuc build MODEL"),
        ("small --audio sound.wav --against pair --gate a>1", "bad-argument]: a gate's condition", "cosine"),
        (
            "small --audio sound.wav --reference text",
            ": the argument '--audio <FILE.wav>' cannot be used",
            "--reference",
        ),
    ] {
        let named = |word: &str| match word {
            "qwen3" => path(&checkpoint("qwen3-bf16")).to_owned(),
            _ if word != "float" && stage.folder.join(word).exists() => stage.at(word),
            _ => word.to_owned(),
        };
        let args: Vec<String> = args.split(' ').map(named).collect();
        let args: Vec<&str> = ["verify"].into_iter().chain(args.iter().map(String::as_str)).collect();
        let (stdout, stderr, status) = run(&args);
        assert!(status != 0 && stdout.is_empty(), "{args:?}: {stdout}");
        assert!(stderr.trim_start_matches("error").trim_start_matches('[').starts_with(told), "{args:?}: {stderr}");
        assert!(stderr.contains(also), "{args:?}: {also} in {stderr}");
    }
}

/// A form in 8-bit activations that writes what float writes is built for this machine; chips refuse it by their formats.
#[test]
fn eight_bits_that_are_good_enough_are_built() {
    let stage = stage();
    let (quiet, sound, eight) = (stage.at("quiet"), stage.at("brief.wav"), stage.at("eight"));
    let build = |more: &[&str]| run(&[&["build", &quiet, "--calibration", &sound], more].concat());
    let (_, stderr, status) = build(&["--recipe", "w8a8", "-o", &eight]);
    assert_eq!(status, 0, "{stderr}");
    assert!(stderr.contains(&format!("--recipe w8a8 over {sound}: cosine 0.9")), "{stderr}");
    let (said, status) = figures(&[&eight, "--against", &quiet, "--audio", &sound]);
    assert_eq!((status, said["saturated"].is_array()), (0, true), "{said}");
    assert!((0.98..0.9999).contains(&number(&said, "cosine_min")), "{said}");
    for (flags, told) in [
        (
            &["--target", "sm8650", "--recipe", "w8a8"][..],
            "the target does not compute with these activations\n  --> sm8650",
        ),
        (
            &["--target", "iree-cpu", "--recipe", "w8a8"],
            "the target does not compute with these activations\n  --> iree-cpu",
        ),
        (&["--target", "genio-720", "--recipe", "w8a8"], "npuc does not write TFLite files of these activations"),
        (&["--target", "genio-720", "--precision", "8W8A"], "npuc does not write TFLite files of this precision"),
    ] {
        let refused = stage.at("refused");
        let (_, stderr, status) = build(&[flags, &["-o", &refused]].concat());
        assert_eq!(status, 1, "{stderr}");
        assert!(stderr.contains(&format!("error[unsupported-format]: {told}")), "{flags:?}: {stderr}");
        assert!(!Path::new(&refused).join("encoder").exists());
    }
}

/// Below the gate nothing is written, and the figure is told; without sound to measure on the message says how to get it.
#[test]
fn eight_bits_that_are_not_are_refused() {
    let stage = stage();
    let (small, sound, refused) = (stage.at("small"), stage.at("brief.wav"), stage.at("never"));
    let toml = stage.folder.join("eight.toml");
    fs::write(&toml, "base = \"w8a8\"\nresidual = \"act\"").unwrap();
    let recipe = format!("--recipe {}", path(&toml));
    for (target, flag, help) in [
        ("host", "--recipe w8a8", "build with --recipe w8a16"),
        ("host", &recipe, "build with --recipe w8a16"),
        ("genio-720", "--precision 8W8A", "build with --precision 8W16A (or --recipe w8a16)"),
        ("genio-720", "--precision 4W8A", "build with --precision 8W16A (or --recipe w8a16)"),
    ] {
        let flags: Vec<&str> = flag.split(' ').chain(["--target", target, "-o", &refused]).collect();
        let (_, stderr, status) = run(&[&["build", &small, "--calibration", &sound], &flags[..]].concat());
        assert_eq!(status, 1, "{flag}: {stderr}");
        let message = "error[unfaithful]: Whisper does not write in 8-bit activations what it writes in float";
        let need = format!("  = need: cosine>=0.98,top1>=0.85 over {sound}\n  = have: cosine ");
        assert!(stderr.starts_with(&format!("{message}\n  --> {small}: {flag}\n{need}")), "{flag}: {stderr}");
        for told in [", top-1 ", "cosine of what is heard 0.", "word errors ", " instead of ", help] {
            assert!(stderr.contains(told), "{told}: {stderr}");
        }
        let (_, stderr, status) = run(&[&["build", &small], &flags[..]].concat());
        assert_eq!(status, 2, "{flag}: {stderr}");
        for told in ["only where it is measured to write what it writes in float", "--calibration speech.wav", help] {
            assert!(stderr.contains(told), "{told}: {stderr}");
        }
        assert!(!Path::new(&refused).exists());
    }
    let text = stage.at("text");
    let (_, stderr, _) = run(&["build", &small, "--recipe", "w8a8", "--calibration", &text, "-o", &refused]);
    assert!(stderr.starts_with("error[unknown-format]: the file is no WAV file"), "{stderr}");
}

/// A model that reads is not measured: this machine computes it, and chips refuse it by their formats.
#[test]
fn eight_bits_of_other_models_are_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let [model, out] = [checkpoint("qwen3-bf16"), folder.path().join("out")];
    let build = |target: &str, flags: &[&str]| {
        let shapes = ["build", path(&model), "--shapes", "8t32c,1t32c", "--target", target, "-o", path(&out)];
        run(&[&shapes, flags].concat())
    };
    for (target, told) in [
        (
            "sm8650",
            "the target does not compute with these activations\n  --> sm8650\n  = need: one of int16, f16, f32",
        ),
        ("iree-cpu", "the target does not compute with these activations\n  --> iree-cpu"),
        ("sl2610", "the target does not compute with these activations\n  --> sl2610"),
        ("genio-720", "npuc does not write TFLite files of these activations"),
    ] {
        let (_, stderr, status) = build(target, &["--recipe", "w8a8"]);
        assert_eq!(status, 1, "{stderr}");
        assert!(stderr.starts_with(&format!("error[unsupported-format]: {told}")), "{target}: {stderr}");
        assert!(!out.exists());
    }
    let (_, stderr, status) = build("host", &["--recipe", "w8a8", "--samples", "4", "--tokens", "32"]);
    assert_eq!(status, 0, "{stderr}");
    let (said, _) = figures(&[path(&out), "--against", path(&model)]);
    assert!(number(&said, "cosine_mean") > 0.9 && said["saturated"].is_array(), "{said}");
}

/// A real model over real words: the figure that a user is told.
#[test]
fn a_real_model_in_eight_bits_is_refused() {
    const SENTENCE: &str =
        "And so my fellow Americans ask not what your country can do for you, ask what you can do for your country";
    let mut say = |line: &str| eprintln!("{line}");
    let model = models::whisper_tiny_en(&mut say).unwrap_or_else(|e| panic!("this test needs Whisper tiny.en: {e}"));
    let folder = tempfile::tempdir().unwrap();
    let (wav, out) = (folder.path().join("speech.wav"), folder.path().join("out"));
    speak(SENTENCE, "en", 175, &wav, &mut say).unwrap_or_else(|e| panic!("this test needs espeak-ng: {e}"));
    let (_, stderr, status) =
        run(&["build", path(&model), "--recipe", "w8a8", "--calibration", path(&wav), "-o", path(&out)]);
    eprintln!("{stderr}");
    assert_eq!((status, out.exists()), (1, false), "{stderr}");
    assert!(stderr.starts_with("error[unfaithful]: Whisper does not write in 8-bit activations"), "{stderr}");
    let figure = |name: &str| -> f64 {
        let rest = stderr.split_once(name).unwrap_or_else(|| panic!("{name} in {stderr}")).1;
        rest.split([',', ' ']).next().unwrap().parse().unwrap()
    };
    assert!(figure("have: cosine ") < 0.98, "{stderr}");
    assert!((0.0..=100.0).contains(&figure("top-1 ")) && figure("word errors ") >= 0.0, "{stderr}");
    assert!(stderr.contains("instead of \"And so my fellow Americans ask not what"), "{stderr}");
    assert!(stderr.contains("help: build with --recipe w8a16"), "{stderr}");
}
