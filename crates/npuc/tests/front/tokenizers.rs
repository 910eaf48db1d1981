//! Tokenizer data and special ids that checkpoints name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use npuc::front::{Checkpoint, GgufVocab, TokenizerSource};
use tempfile::TempDir;

use super::checkpoints::gguf_writer::{GgufWriter, Meta};
use super::checkpoints::small::{HfFolder, small_gguf, write_file};
use super::checkpoints::{open_bad, open_good};

const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [{"id": 5, "content": "<end>", "special": true},
    {"id": 6, "content": "<start>"}], "model": {}}"#;

/// A good folder with these files beside it.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = HfFolder::default().unset("bos_token_id").write();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("writable");
    }
    folder
}

fn template(checkpoint: Checkpoint) -> Option<String> {
    match checkpoint.tokenizer {
        Some(TokenizerSource::HuggingFace { chat_template, .. }) => chat_template,
        Some(TokenizerSource::Gguf(_)) | None => None,
    }
}

#[test]
fn special_tokens_are_found_by_text() {
    for (bos, eos) in [
        ("\"<start>\"", "\"<end>\""),
        (r#"{"content": "<start>", "lstrip": false}"#, r#"{"__type": "AddedToken", "content": "<end>"}"#),
    ] {
        let config = format!(r#"{{"bos_token": {bos}, "eos_token": {eos}}}"#);
        let folder = folder(&[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", &config)]);
        let checkpoint = open_good(folder.path());
        assert_eq!(checkpoint.special.bos, Some(6), "{config}");
        assert_eq!(checkpoint.special.eos, BTreeSet::from([2, 5]), "{config}");
        assert!(checkpoint.warnings.is_empty(), "{config}");
    }
    let folder = folder(&[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", r#"{"eos_token": "</s>"}"#)]);
    let checkpoint = open_good(folder.path());
    assert_eq!(checkpoint.special.eos, BTreeSet::from([2]));
    assert_eq!(
        checkpoint.warnings[0].to_string().replace(&folder.path().display().to_string(), "DIR"),
        "warning[bad-tokenizer]: a special token is none of the tokenizer's added tokens
  --> DIR/tokenizer_config.json: eos_token
  = need: a token in added_tokens of tokenizer.json
  = have: \"</s>\""
    );
}

#[test]
fn chat_templates() {
    let list = r#"{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#;
    let none = r#"{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "rag", "template": "R"}]}"#;
    let cases = [
        (vec![], None),
        (vec![("tokenizer_config.json", r#"{"chat_template": null}"#)], None),
        (vec![("tokenizer_config.json", r#"{"chat_template": "S"}"#)], Some("S")),
        (vec![("tokenizer_config.json", list)], Some("D")),
        (vec![("tokenizer_config.json", none)], None),
        (vec![("tokenizer_config.json", list), ("chat_template.jinja", "J")], Some("J")),
    ];
    for (files, expected) in cases {
        let folder = folder(&[vec![("tokenizer.json", TOKENIZER)], files.clone()].concat());
        assert_eq!(template(open_good(folder.path())).as_deref(), expected, "{files:?}");
    }
    let folder = folder(&[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", none)]);
    assert_eq!(
        open_good(folder.path()).warnings[0].to_string().replace(&folder.path().display().to_string(), "DIR"),
        "warning[bad-template]: none of the chat templates is the default, so none is used
  --> DIR/tokenizer_config.json: chat_template
  = need: one named `default`
  = have: tool_use, rag"
    );
}

#[test]
fn bad_tokenizer_files() {
    let cases = [
        (
            "tokenizer.json",
            "{\"added_tokens\": 3}",
            "error[bad-tokenizer]: the file is malformed: invalid type: integer `3`, expected a sequence at line 1 column 18\n  \
             --> DIR/tokenizer.json:1",
        ),
        (
            "tokenizer_config.json",
            "{",
            "error[bad-tokenizer]: the file is malformed: EOF while parsing an object at line 1 \
             column 1\n  --> DIR/tokenizer_config.json:1",
        ),
    ];
    for (name, text, expected) in cases {
        let folder = folder(&[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", "{}")]);
        fs::write(folder.path().join(name), text).expect("writable");
        assert_eq!(open_bad(folder.path(), folder.path()), expected);
    }
    let folder = folder(&[]);
    assert!(open_good(folder.path()).tokenizer.is_none());
}

fn with_vocab() -> GgufWriter {
    let mut writer = small_gguf();
    let texts = |texts: &[&str]| Meta::Strs(texts.iter().map(|t| t.to_string()).collect());
    writer.set("tokenizer.ggml.model", "gpt2");
    writer.set("tokenizer.ggml.pre", "smollm");
    writer.set(
        "tokenizer.ggml.tokens",
        texts(&["<|endoftext|>", "<s>", "<|im_end|>", "a", "<|eot_id|>", "<end_of_turn>"]),
    );
    writer.set("tokenizer.ggml.token_type", Meta::I32s(vec![3, 3, 3, 1, 1, 4]));
    writer.set("tokenizer.ggml.merges", texts(&["a a"]));
    writer.set("tokenizer.ggml.bos_token_id", Meta::U32(1));
    writer.set("tokenizer.ggml.eos_token_id", Meta::U32(3));
    writer.set("tokenizer.ggml.add_bos_token", Meta::Bool(false));
    writer.set("tokenizer.chat_template", "T");
    writer
}

#[test]
fn gguf_vocabularies() {
    let (_folder, path) = write_file("m.gguf", &with_vocab().bytes());
    let checkpoint = open_good(&path);
    // Named by the metadata: 3. Control tokens with a well-known text: 0 and 2; 4 and 5 are of other types.
    assert_eq!(checkpoint.special.eos, BTreeSet::from([0, 2, 3]));
    assert_eq!(checkpoint.special.bos, Some(1));
    let Some(TokenizerSource::Gguf(vocab)) = checkpoint.tokenizer else { panic!("a vocabulary") };
    let expected = GgufVocab {
        model: "gpt2".into(),
        pre: Some("smollm".into()),
        tokens: ["<|endoftext|>", "<s>", "<|im_end|>", "a", "<|eot_id|>", "<end_of_turn>"].map(String::from).into(),
        types: vec![3, 3, 3, 1, 1, 4],
        merges: vec!["a a".into()],
        special: BTreeMap::from([("bos".into(), 1), ("eos".into(), 3)]),
        add_bos: Some(false),
        chat_template: Some("T".into()),
        ..GgufVocab::default()
    };
    assert_eq!(vocab, expected);

    let (_folder, path) = write_file("m.gguf", &small_gguf().bytes());
    assert!(open_good(&path).tokenizer.is_none());
}

#[test]
fn bad_gguf_vocabularies() {
    let cases = [
        (
            "tokenizer.ggml.scores",
            Meta::F32s(vec![0.0; 3]),
            "the vocabulary's lists have different lengths",
            "6 entries, as many as tokens",
            "3 entries",
        ),
        ("tokenizer.ggml.eos_token_id", Meta::U32(6), "a special id is outside the vocabulary", "an id below 6", "6"),
        ("tokenizer.ggml.eos_token_id", Meta::I32(-1), "the value is malformed", "a token id", "a signed number"),
        ("tokenizer.ggml.merges", Meta::Bool(true), "the value is malformed", "an array of texts", "a truth value"),
    ];
    for (key, value, message, need, have) in cases {
        let mut writer = with_vocab();
        writer.set(key, value);
        let (folder, path) = write_file("m.gguf", &writer.bytes());
        assert_eq!(
            open_bad(&path, folder.path()),
            format!("error[bad-tokenizer]: {message}\n  --> DIR/m.gguf: {key}\n  = need: {need}\n  = have: {have}")
        );
    }
}
