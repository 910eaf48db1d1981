//! Special ids and suppressed sets of real tokenizers, against the lists that published conversions of tiny.en and base
//! hold in their config.json.
//!
//! `whisper_tokens.json` keeps those lists and of each tokenizer what symbols need: 256 bytes, the merges inside the
//! symbols, the added tokens. Whole tokenizers are held against the same lists where NPUC_WHISPER names a folder with
//! `tiny.en/tokenizer.json` and `base/tokenizer.json`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use npuc::Code;
use npuc_run::speech::{Kind, Language, SpeechTokens, Task};
use npuc_run::text::Tokenizer;
use serde::Deserialize;

use crate::fake::{self, byte_tokenizer, tokenizer_json};

#[derive(Deserialize)]
struct Published {
    added: Vec<(u32, String)>,
    vocab: BTreeMap<String, u32>,
    merges: Vec<String>,
    suppress_ids: Vec<u32>,
    suppress_ids_begin: Vec<u32>,
    lang_ids: Vec<u32>,
}

/// The models with the sizes of their vocabularies.
const MODELS: [(&str, usize, Kind); 2] = [("tiny.en", 51_864, Kind::EnglishOnly), ("base", 51_865, Kind::Multilingual)];

fn published() -> BTreeMap<String, Published> {
    serde_json::from_str(include_str!("../data/whisper_tokens.json")).unwrap()
}

fn check(tokenizer: &Tokenizer, published: &Published, kind: Kind) {
    let tokens = SpeechTokens::new(tokenizer, kind).unwrap();
    assert_eq!(tokens.suppressed, published.suppress_ids);
    assert_eq!(tokens.blank, published.suppress_ids_begin);
    let languages: Vec<u32> = tokens.languages.iter().map(|(_, id)| *id).collect();
    match kind {
        Kind::EnglishOnly => assert!(languages.is_empty()),
        Kind::Multilingual => assert_eq!(languages, published.lang_ids),
    }
    let (size, end) = match kind {
        Kind::EnglishOnly => (51_864, 50_256),
        Kind::Multilingual => (51_865, 50_257),
    };
    assert_eq!((tokens.timestamps.len(), tokens.timestamps.end), (1501, size));
    assert_eq!((tokens.end, tokens.start, tokens.no_timestamps), (end, end + 1, tokens.timestamps.start - 1));
}

#[test]
fn suppressed_sets_are_those_of_published_models() {
    for (name, vocab, kind) in MODELS {
        let published = &published()[name];
        let json = tokenizer_json(&published.vocab, &published.merges, &published.added);
        assert_eq!(Kind::of_vocab_size(vocab), kind);
        check(&Tokenizer::from_json(json.to_string().as_bytes()).unwrap(), published, kind);
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "a test that does not run says so")]
fn whole_tokenizers_agree() {
    let Some(folder) = std::env::var_os("NPUC_WHISPER").map(PathBuf::from) else {
        eprintln!("NOT RUN: NPUC_WHISPER names no folder with tiny.en/tokenizer.json and base/tokenizer.json");
        return;
    };
    for (name, _, kind) in MODELS {
        let json = std::fs::read(folder.join(name).join("tokenizer.json")).unwrap();
        check(&Tokenizer::from_json(&json).unwrap(), &published()[name], kind);
    }
}

#[test]
fn openings() {
    let (en, de) = (Language::ENGLISH, Language::parse("de").unwrap());
    let cases = [
        ("tiny.en", Kind::EnglishOnly, en, Task::Transcribe, Some(vec![50_257])),
        ("tiny.en", Kind::EnglishOnly, de, Task::Transcribe, None),
        ("tiny.en", Kind::EnglishOnly, en, Task::Translate, None),
        ("base", Kind::Multilingual, en, Task::Transcribe, Some(vec![50_258, 50_259, 50_359])),
        ("base", Kind::Multilingual, de, Task::Translate, Some(vec![50_258, 50_261, 50_358])),
        ("base", Kind::Multilingual, Language::parse("yue").unwrap(), Task::Transcribe, None),
    ];
    for (name, kind, language, task, expected) in cases {
        let Published { vocab, merges, added, .. } = &published()[name];
        let tokenizer = Tokenizer::from_json(tokenizer_json(vocab, merges, added).to_string().as_bytes()).unwrap();
        let opening = SpeechTokens::new(&tokenizer, kind).unwrap().opening(language, task);
        match (opening, expected) {
            (Ok(opening), Some(expected)) => assert_eq!(opening, expected),
            (Err(error), None) => assert_eq!(error.diagnostics()[0].code, Code::BadArgument, "{error}"),
            (other, _) => panic!("{name} {language} {task:?}: {other:?}"),
        }
    }
}

#[test]
fn languages_by_code_and_name() {
    let cases = [
        ("en", Some("en")),
        ("english", Some("en")),
        ("German", Some("de")),
        (" DE ", Some("de")),
        ("Flemish", Some("nl")),
        ("Haitian Creole", Some("ht")),
        ("yue", Some("yue")),
        ("mandarin", Some("zh")),
        ("klingon", None),
        ("", None),
        ("e", None),
    ];
    for (text, code) in cases {
        let parsed = Language::parse(text);
        assert_eq!(parsed.as_ref().ok().map(|language| language.code()), code, "{text:?}");
        if let Err(error) = parsed {
            assert!(
                error.to_string().contains("de (german)") && error.to_string().contains("haw (hawaiian)"),
                "{error}"
            );
        }
    }
    assert_eq!(Language::all().count(), 100);
}

#[test]
fn tokenizers_of_other_models_are_refused() {
    for absent in
        ["endoftext", "startoftranscript", "translate", "startoflm", "startofprev", "nospeech", "notimestamps"]
    {
        let tokenizer = byte_tokenizer(absent, false);
        let error = SpeechTokens::new(&tokenizer, Kind::Multilingual).unwrap_err();
        assert_eq!(error.diagnostics()[0].code, Code::BadTokenizer, "{absent}");
    }
    // Listed timestamps and unlisted ones are the same.
    let listed = byte_tokenizer("", true);
    let listed = SpeechTokens::new(&listed, Kind::Multilingual).unwrap();
    assert_eq!(listed.timestamps, fake::tokens(Kind::Multilingual).timestamps);
}

#[test]
fn a_prompt_is_plain_text() {
    let tokens = fake::tokens(Kind::Multilingual);
    assert_eq!(tokens.prompt(" Zoë \n").unwrap(), " Zoë".bytes().map(u32::from).collect::<Vec<_>>());
    for text in ["<|endoftext|>", "a <|en|> b"] {
        assert_eq!(tokens.prompt(text).unwrap_err().diagnostics()[0].code, Code::BadArgument, "{text}");
    }
}
