//! GGUF files that npuc writes: the recorded outputs of every small checkpoint, its weights and metadata, its tokenizer.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use npuc::back::gguf::Layout;
use npuc::front::{self, Checkpoint, GgufVocab, Source, TokenizerSource, gguf};
use npuc::quant::fold::Folds;
use npuc::quant::plan::{Destination, Plan};
use npuc::quant::recipe::Recipe;
use npuc_kernels::quantize::Search;
use npuc_run::fidelity::{Gate, Reference, compare};
use npuc_run::program::Program;
use npuc_run::session::Session;
use npuc_run::text::{Tokenizer, gguf_vocab};

mod data;

use data::{checkpoints, fixtures, shapes};

/// Keys whose values a change of formats may change.
const FORMAT_KEYS: [&str; 3] = ["general.file_type", "general.quantization_version", "general.alignment"];

/// Writes a model after a recipe, twice, and gives it as opened again. The size must be the one that was forecast.
fn written(model: &Path, recipe: &str, folder: &Path) -> Checkpoint {
    written_by(model, recipe, Search::Plain, folder)
}

fn written_by(model: &Path, recipe: &str, search: Search, folder: &Path) -> Checkpoint {
    let checkpoint = front::open(model).unwrap();
    let recipe = Recipe::named(recipe).unwrap();
    let plan = Plan::new(&checkpoint, &Folds::none(&checkpoint.config), &recipe, &Destination::Gguf, true).unwrap();
    let vocab = checkpoint.tokenizer.as_ref().map(|source| gguf_vocab(source, checkpoint.config.vocab()).unwrap());
    let write = |path: PathBuf| {
        let layout = Layout::new(&checkpoint, &plan, &BTreeMap::new(), vocab.as_ref()).unwrap();
        let mut told = (0, 0);
        layout.write(&path, search, &mut |done, total| told = (done, total)).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, layout.total_bytes(), "{}: forecast", model.display());
        assert_eq!(told, (layout.total_bytes(), layout.total_bytes()), "{}: progress", model.display());
        bytes
    };
    let path = folder.join("written.gguf");
    assert!(write(path.clone()) == write(folder.join("again.gguf")), "{}: the same bytes twice", model.display());
    front::open(&path).unwrap()
}

/// The outputs of a checkpoint against recorded ones.
fn check_outputs(checkpoint: &Checkpoint, reference: &Path, what: &str) {
    let gate: Gate = "max_abs<=2e-4,greedy>=1,cosine>=0.999999".parse().unwrap();
    let program = Program::from_checkpoint(checkpoint.clone(), Some(shapes("16t64c,1t64c"))).unwrap();
    let mut session = Session::new(&program, 2, &[]).unwrap();
    let fidelity = compare(&mut session, &Reference::read(reference).unwrap()).unwrap();
    gate.check(&fidelity).unwrap_or_else(|e| panic!("{what}: {e}\n{fidelity:?}"));
}

/// Every checkpoint of the repository with its recorded outputs, and the fixtures.
fn models() -> Vec<(PathBuf, PathBuf)> {
    let mut models = Vec::new();
    for entry in fs::read_dir(checkpoints()).unwrap() {
        let path = entry.unwrap().path();
        if path.join("config.json").is_file() {
            models.push((path.clone(), path.join("expected.safetensors")));
        } else if path.extension().is_some_and(|ending| ending == "gguf") {
            models.push((path.clone(), path.with_extension("expected.safetensors")));
        }
    }
    assert!(models.len() >= 25, "only {} checkpoints", models.len());
    if let Some(fixtures) = fixtures() {
        let of_repository = |name: &str| checkpoints().join(format!("fixtures/{name}.expected.safetensors"));
        for name in ["llama-gqa3-f32", "lfm2-f32"] {
            models.push((fixtures.join(name), fixtures.join(name).join("expected.safetensors")));
        }
        for name in ["llama-untied-sharded-f16", "llama3-tied-bf16"] {
            models.push((fixtures.join(name), of_repository(name)));
        }
    }
    models
}

#[test]
fn outputs_are_those_of_the_source() {
    let folder = tempfile::tempdir().unwrap();
    for (model, reference) in models() {
        for recipe in ["f32", "stored"] {
            let written = written(&model, recipe, folder.path());
            check_outputs(&written, &reference, &format!("{} as {recipe}", model.display()));
        }
    }
}

#[test]
fn stored_weights_stay_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let mut formats = BTreeMap::new();
    for (model, _) in models() {
        let (source, written) = (front::open(&model).unwrap(), written(&model, "stored", folder.path()));
        assert_eq!(written.source, Source::Gguf);
        assert!(written.tensors.keys().eq(source.tensors.keys()), "{}", model.display());
        for (name, tensor) in &source.tensors {
            let have = &written.tensors[name];
            assert_eq!(have.shape, tensor.shape, "{}: {name}", model.display());
            if tensor.shape.len() > 1 && !name.ends_with("conv.conv.weight") {
                assert_eq!(have.dtype, tensor.dtype, "{}: {name}", model.display());
                assert!(have.bytes() == tensor.bytes(), "{}: the bytes of {name}", model.display());
                *formats.entry(tensor.dtype.name()).or_insert(0) += 1;
            } else {
                // Gains, biases and filters are widened to f32, which keeps their values.
                assert_eq!(have.dtype.name(), "f32", "{}: {name}", model.display());
                assert!(npuc::exec::to_f32(have) == npuc::exec::to_f32(tensor), "{}: {name}", model.display());
            }
        }
    }
    let seen: Vec<&str> = formats.into_keys().collect();
    assert!(seen.len() >= 13, "every format that GGUF has and the checkpoints hold: {seen:?}");
}

#[test]
fn metadata_of_a_gguf_source_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let entries = |path: &Path| -> BTreeMap<String, Vec<u8>> {
        let bytes = fs::read(path).unwrap();
        let entries = gguf::parse(&bytes).unwrap().entries;
        let kept = entries.into_iter().filter(|(key, _)| !FORMAT_KEYS.contains(&key.as_str()));
        kept.map(|(key, range)| (key, bytes[range].to_vec())).collect()
    };
    let tensor = |path: &Path, name: &str| {
        let bytes = fs::read(path).unwrap();
        let tensors = gguf::parse(&bytes).unwrap().tensors;
        tensors.into_iter().find(|tensor| tensor.name == name).map(|tensor| bytes[tensor.range].to_vec())
    };
    let (mut with_factors, mut checked) = (0, 0);
    for (model, _) in models().into_iter().filter(|(model, _)| model.is_file()) {
        for (recipe, file_type) in [("f32", 0), ("f16", 1), ("bf16", 32)] {
            let written = written(&model, recipe, folder.path());
            assert!(entries(&written.path) == entries(&model), "{}", model.display());
            let metadata = gguf::parse(&fs::read(&written.path).unwrap()).unwrap().metadata;
            let number = |key: &str| metadata[key].clone();
            assert_eq!(number("general.file_type"), gguf::Value::Unsigned(file_type));
            assert_eq!(number("general.quantization_version"), gguf::Value::Unsigned(2));
            let factors = tensor(&model, "rope_freqs.weight");
            with_factors += usize::from(factors.is_some());
            assert!(tensor(&written.path, "rope_freqs.weight") == factors, "{}", model.display());
            let vocab = |tokenizer: Option<TokenizerSource>| match tokenizer {
                Some(TokenizerSource::Gguf(vocab)) => Some(vocab),
                Some(TokenizerSource::HuggingFace { .. }) => panic!("a GGUF file has no tokenizer.json"),
                None => None,
            };
            let before = front::open(&model).unwrap().tokenizer;
            assert_eq!(vocab(before), vocab(written.tokenizer), "{}", model.display());
        }
        checked += 1;
    }
    assert!(checked >= 17 && with_factors >= 9, "{checked} files, {with_factors} with factors");
}

#[test]
fn narrower_floats_round_to_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    let model = checkpoints().join("llama-biases-f32");
    let source = front::open(&model).unwrap();
    let to_f16: fn(f32) -> f32 = |x| f16::from_f32(x).to_f32();
    let to_bf16: fn(f32) -> f32 = |x| bf16::from_f32(x).to_f32();
    for (recipe, round) in [("f16", to_f16), ("bf16", to_bf16)] {
        let written = written(&model, recipe, folder.path());
        for (name, tensor) in source.tensors.iter().filter(|(_, tensor)| tensor.shape.len() > 1) {
            let expected: Vec<f32> = npuc::exec::to_f32(tensor).into_iter().map(round).collect();
            assert!(npuc::exec::to_f32(&written.tensors[name]) == expected, "{name} as {recipe}");
        }
    }
}

/// The most that a number of a block may be off with the scale of the largest magnitude: half a step, a whole one where the
/// block's other end is cut off, and what the halves of scale and offset are off.
fn bound(format: &str, block: &[f32]) -> f32 {
    let (low, high) = block.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
    let largest = high.max(-low);
    let half = 1.0 / 2048.0;
    // Half the distance of the smallest halves.
    let small = 2f32.powi(-25);
    match format {
        "q8_0" => largest * (0.5 / 127.0 + half) + 127.0 * small,
        "q4_0" => largest * (1.0 / 8.0 + half) + 8.0 * small,
        "q4_1" => (high - low) * (0.5 / 15.0 + half) + low.abs() * half + 16.0 * small,
        _ => panic!("no bound for {format}"),
    }
}

#[test]
fn blocks_are_within_their_bounds_and_searched_scales_err_less() {
    let folder = tempfile::tempdir().unwrap();
    let squared = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
    for model in ["qwen2-bf16", "llama-k-quants.gguf"] {
        let model = checkpoints().join(model);
        let source = front::open(&model).unwrap();
        for format in ["q8_0", "q4_0", "q4_1"] {
            let plain = written_by(&model, format, Search::Plain, folder.path()).tensors;
            let plain: BTreeMap<_, _> = plain.iter().map(|(name, t)| (name.clone(), npuc::exec::to_f32(t))).collect();
            let searched = written_by(&model, format, Search::Error, folder.path());
            for (name, tensor) in source.tensors.iter().filter(|(_, tensor)| tensor.shape.len() > 1) {
                let (weights, found) = (npuc::exec::to_f32(tensor), npuc::exec::to_f32(&searched.tensors[name]));
                let blocks = weights.chunks(32).zip(plain[name].chunks(32).zip(found.chunks(32)));
                for (block, (weights, (plain, found))) in blocks.enumerate() {
                    let most = weights.iter().zip(plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    let what = format!("{name} as {format}, block {block}");
                    assert!(most <= bound(format, weights), "{what}: {most}, not {}", bound(format, weights));
                    let errors = (squared(weights, found), squared(weights, plain));
                    assert!(errors.0 <= errors.1 * (1.0 + 1e-5), "{what}: {errors:?}");
                }
            }
        }
    }
}

/// Texts with spaces, digits, letters of other scripts, special tokens and nothing.
const TEXTS: [&str; 8] = [
    "",
    "Hello world",
    "  two spaces, and a tab\there\n\nline",
    "1234567 3.14",
    "It's we'll DON'T",
    "naïve Straße 中文 Привет",
    "<|im_start|>user\nHi<|im_end|>\n",
    "🙂 <|endoftext|>",
];

#[test]
fn token_ids_stay_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for (model, _) in models() {
        let source = front::open(&model).unwrap();
        let Some(tokenizer) = source.tokenizer else { continue };
        let written = written(&model, "stored", folder.path());
        assert_eq!(written.special, source.special, "{}", model.display());
        let [before, after] =
            [tokenizer, written.tokenizer.unwrap()].map(|source| Tokenizer::from_source(&source).unwrap());
        for text in TEXTS {
            for special in [true, false] {
                let (have, expected) = (after.encode(text, special).unwrap(), before.encode(text, special).unwrap());
                assert_eq!(have, expected, "{}: {text:?}", model.display());
                let texts = [after.decode(&have, special), before.decode(&expected, special)];
                let [have, expected] = texts.map(std::result::Result::unwrap);
                assert_eq!(have, expected, "{}: {text:?}", model.display());
            }
        }
        checked += 1;
    }
    assert!(checked >= 18, "only {checked} models with a tokenizer");
}

/// The tokenizer of qwen2 with its JSON changed.
fn changed(change: impl Fn(&mut serde_json::Value)) -> TokenizerSource {
    let source = front::open(&checkpoints().join("qwen2-bf16")).unwrap().tokenizer.unwrap();
    let TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config, chat_template } = source else {
        panic!("a folder has a tokenizer.json");
    };
    let mut json = serde_json::from_slice(&tokenizer_json).unwrap();
    change(&mut json);
    let tokenizer_json = serde_json::to_vec(&json).unwrap();
    TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config, chat_template }
}

#[test]
fn tokenizers_that_gguf_cannot_say_are_refused() {
    let check = |rows: usize, message: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let error = gguf_vocab(&changed(change), rows).unwrap_err().to_string();
        assert!(error.starts_with("error[bad-tokenizer]: ") && error.contains(message), "{message}:\n{error}");
    };
    let rows = front::open(&checkpoints().join("qwen2-bf16")).unwrap().config.vocab();
    check(rows, "GGUF has no name for the way the tokenizer splits text", &|json| {
        json["pre_tokenizer"] = serde_json::json!({"type": "Whitespace"});
    });
    check(rows, "leave the tokenizer out with --no-tokenizer", &|json| {
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a-z]+".into();
    });
    check(rows, "GGUF has no name for the way the tokenizer splits text", &|json| {
        json["model"]["byte_fallback"] = true.into();
    });
    check(rows, "Unigram", &|json| json["model"]["type"] = "Unigram".into());
    check(rows - 300, "has no row in the model", &|_| {});
    check(rows, "has no row in the model", &|json| json["added_tokens"][0]["id"] = (-1).into());
    let malformed =
        TokenizerSource::HuggingFace { tokenizer_json: b"{"[..].into(), tokenizer_config: None, chat_template: None };
    let error = gguf_vocab(&malformed, rows).unwrap_err().to_string();
    assert!(error.starts_with("error[bad-tokenizer]: the file is malformed"), "{error}");
}

#[test]
fn rows_without_a_token_are_told_as_unused() {
    let source = changed(|_| {});
    let rows = front::open(&checkpoints().join("qwen2-bf16")).unwrap().config.vocab();
    let GgufVocab { tokens, types, .. } = gguf_vocab(&source, rows + 3).unwrap();
    assert_eq!((tokens.len(), types.len()), (rows + 3, rows + 3));
    assert_eq!(tokens[rows..].to_vec(), (rows..rows + 3).map(|id| format!("[PAD{id}]")).collect::<Vec<_>>());
    assert_eq!(types[rows..].to_vec(), [5; 3]);
}

/// In a quantised LFM2 the projections around convolutions have the recipe's format and filters stay floats; the scores are
/// those of the numbers that the blocks denote, and as near those of the source as so small a model allows.
#[test]
fn convolutions_are_quantised_as_other_projections() {
    let folder = tempfile::tempdir().unwrap();
    let scores = |checkpoint: &Checkpoint| {
        let program = Program::from_checkpoint(checkpoint.clone(), Some(shapes("8t24c,1t24c"))).unwrap();
        let mut session = Session::new(&program, 2, &[]).unwrap();
        let mut scores = Vec::new();
        let ids: Vec<u32> = (0..20).map(|i| (i * 97 + 5) % 280).collect();
        session.feed(&ids, |logits| scores.extend_from_slice(logits)).unwrap();
        scores
    };
    let cosine = |a: &[f32], b: &[f32]| {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    for name in ["lfm2-old-bf16", "lfm2-biases-f32"] {
        let source = scores(&front::open(&checkpoints().join(name)).unwrap());
        for (recipe, least) in [("q8_0", 0.999), ("q4_0", 0.7)] {
            let quantised = written(&checkpoints().join(name), recipe, folder.path());
            for (weight, tensor) in &quantised.tensors {
                let is_matrix =
                    weight.contains("proj") && weight.ends_with("weight") || weight.contains("feed_forward");
                let is_filter = weight.ends_with("conv.conv.weight");
                assert!(!is_matrix || tensor.dtype.name() == recipe, "{name}: {weight} in {}", tensor.dtype);
                assert!(!is_filter || tensor.dtype.name() == "f32", "{name}: {weight} in {}", tensor.dtype);
            }
            let have = scores(&quantised);
            let path = folder.path().join("kept.gguf");
            fs::copy(&quantised.path, &path).unwrap();
            let widened = written(&path, "f32", folder.path());
            let off = have.iter().zip(scores(&widened)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 2e-3, "{name} {recipe}: {off} from the numbers that the blocks denote");
            let near = cosine(&have, &source);
            assert!(near > least, "{name} {recipe}: cosine {near}");
        }
    }
}
