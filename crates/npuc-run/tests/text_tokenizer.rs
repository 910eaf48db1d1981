//! Tokenizers against independent programs: ids and texts in `data/` come from `tools/text`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use npuc::diag::Code;
use npuc::front::{GgufVocab, TokenizerSource};
use npuc_run::text::{ChatTemplate, Date, Message, TextStream, Tokenizer, tokenizer_json};
use serde::Deserialize;

#[derive(Deserialize)]
struct BpeData {
    vocab: BpeVocab,
    texts: Vec<String>,
    cases: std::collections::BTreeMap<String, BpeCase>,
}

#[derive(Deserialize)]
struct BpeVocab {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
}

#[derive(Deserialize)]
struct BpeCase {
    adds_bos: bool,
    ids: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
struct SpmData {
    add_space_prefix: bool,
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i32>,
    texts: Vec<String>,
    ids: Vec<Vec<u32>>,
    decoded: Vec<String>,
    special_texts: Vec<String>,
    special_ids: Vec<Vec<u32>>,
}

fn bpe_data() -> BpeData {
    serde_json::from_str(include_str!("data/bpe.json")).unwrap()
}

fn spm_data() -> Vec<SpmData> {
    serde_json::from_str(include_str!("data/spm.json")).unwrap()
}

fn gpt2(pre: &str) -> GgufVocab {
    let vocab = bpe_data().vocab;
    GgufVocab {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens: vocab.tokens,
        types: vocab.types,
        merges: vocab.merges,
        special: [("bos".to_owned(), 1), ("eos".to_owned(), 2), ("unknown".to_owned(), 0)].into(),
        ..GgufVocab::default()
    }
}

fn llama(data: &SpmData) -> GgufVocab {
    GgufVocab {
        model: "llama".to_owned(),
        tokens: data.tokens.clone(),
        scores: data.scores.clone(),
        types: data.types.clone(),
        special: [("bos".to_owned(), 1), ("eos".to_owned(), 2), ("unknown".to_owned(), 0)].into(),
        add_space_prefix: Some(data.add_space_prefix),
        ..GgufVocab::default()
    }
}

fn open(vocab: GgufVocab) -> Tokenizer {
    let source = TokenizerSource::Gguf(vocab);
    // A bundle keeps the JSON form.
    Tokenizer::from_json(&tokenizer_json(&source).unwrap()).unwrap()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut stream = TextStream::new(tokenizer, skip_special);
    let mut text: String = ids.iter().map(|&id| stream.push(id).unwrap().to_owned()).collect();
    text.push_str(stream.finish());
    text
}

#[test]
fn byte_level_ids_are_those_of_the_reference() {
    let data = bpe_data();
    for (pre, case) in &data.cases {
        let tokenizer = open(gpt2(pre));
        let nfc = ["command-r", "olmo", "qwen2"].contains(&pre.as_str());
        for (text, expected) in data.texts.iter().zip(&case.ids) {
            assert_eq!(&tokenizer.encode(text, false).unwrap(), expected, "{pre}: {text:?}");
            if !nfc {
                assert_eq!(&tokenizer.decode(expected, false).unwrap(), text, "{pre}");
            }
        }
        let bos: &[u32] = if case.adds_bos { &[1] } else { &[] };
        assert_eq!(tokenizer.encode("", true).unwrap(), bos, "{pre}");
    }
}

#[test]
fn sentencepiece_ids_and_texts_are_those_of_the_reference() {
    for data in spm_data() {
        let tokenizer = open(llama(&data));
        for ((text, expected), decoded) in data.texts.iter().zip(&data.ids).zip(&data.decoded) {
            assert_eq!(&tokenizer.encode(text, false).unwrap(), expected, "{text:?}");
            assert_eq!(&tokenizer.decode(expected, true).unwrap(), decoded, "{text:?}");
            assert_eq!(&streamed(&tokenizer, expected, true), decoded, "{text:?}");
        }
        for (text, expected) in data.special_texts.iter().zip(&data.special_ids) {
            assert_eq!(&tokenizer.encode(text, true).unwrap(), expected, "{text:?}");
        }
    }
}

#[test]
fn begin_and_end_ids_follow_the_metadata() {
    let smollm = gpt2("smollm");
    let spm = llama(&spm_data()[0]);
    let with = |vocab: &GgufVocab, add_bos, add_eos| GgufVocab { add_bos, add_eos, ..vocab.clone() };
    let cases = [
        (with(&smollm, None, None), vec![]),
        (with(&smollm, Some(true), None), vec![1]),
        (with(&smollm, Some(true), Some(true)), vec![1, 2]),
        (with(&smollm, Some(false), Some(true)), vec![2]),
        (with(&gpt2("llama-bpe"), None, None), vec![1]),
        (with(&gpt2("llama-bpe"), Some(false), None), vec![]),
        (with(&spm, None, None), vec![1]),
        (with(&spm, Some(false), Some(false)), vec![]),
        (with(&spm, Some(true), Some(true)), vec![1, 2]),
    ];
    for (vocab, expected) in cases {
        let what = format!("{:?} {:?} {:?}", vocab.pre, vocab.add_bos, vocab.add_eos);
        assert_eq!(open(vocab).encode("", true).unwrap(), expected, "{what}");
    }
}

#[test]
fn special_and_user_defined_tokens_are_one_id() {
    let tokenizer = open(gpt2("smollm"));
    let tool = tokenizer.token_id("<tool>").unwrap();
    let ids = tokenizer.encode("<|im_start|><tool>x<|im_end|>", false).unwrap();
    assert_eq!((ids[0], ids[1], ids[3]), (1, tool, 2));
    assert_eq!(tokenizer.special_ids().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "<tool>x");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<|im_start|><tool>x<|im_end|>");
    assert_eq!(tokenizer.token_text(tool).as_deref(), Some("<tool>"));
    assert_eq!(tokenizer.vocab_size(), gpt2("smollm").tokens.len());
}

#[test]
fn a_rendered_template_has_one_bos() {
    let mut vocab = gpt2("llama-bpe");
    vocab.chat_template = Some("{{ bos_token }}{{ messages[0].content }}".to_owned());
    let source = TokenizerSource::Gguf(vocab);
    let chat = ChatTemplate::from_source(&source).unwrap().unwrap();
    let text = chat.render(&[Message::new("user", "Hello")], true, Date::new(2024, 1, 1).unwrap()).unwrap();
    let tokenizer = Tokenizer::from_source(&source).unwrap();
    assert_eq!(tokenizer.encode(&text, false).unwrap(), tokenizer.encode("Hello", true).unwrap());
}

#[test]
fn sentencepiece_space_is_put_after_special_tokens_and_taken_at_the_beginning_only() {
    let data = spm_data();
    let (prefixed, bare) = (open(llama(&data[0])), open(llama(&data[1])));
    let the = |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text, false).unwrap();
    assert_eq!(the(&prefixed, "<s>the"), [vec![1], the(&prefixed, "the")].concat());
    assert_ne!(the(&prefixed, "the"), the(&bare, "the"));
    assert_eq!(the(&prefixed, "the"), the(&bare, " the"));
    let ids = the(&bare, " the the");
    assert_eq!(prefixed.decode(&ids, true).unwrap(), "the the");
    assert_eq!(bare.decode(&ids, true).unwrap(), " the the");
    let mut stream = TextStream::continuing(&prefixed, true);
    let text: String = ids.iter().map(|&id| stream.push(id).unwrap().to_owned()).collect();
    assert_eq!(text, " the the");
    for (ids, text) in [(vec![], ""), (the(&prefixed, "   "), "   "), (the(&prefixed, ""), "")] {
        assert_eq!(prefixed.decode(&ids, true).unwrap(), text, "{ids:?}");
    }
}

#[test]
fn bytes_that_are_not_characters_are_replaced() {
    let data = spm_data();
    let tokenizer = open(llama(&data[0]));
    let cases: [(&[u8], &str); 6] = [
        (b"\xe4\xbd\xa0", "你"),
        (b"\xe4\xbd", "\u{fffd}"),
        (b"\xe4\xbdx", "\u{fffd}x"),
        (b"\xff\xe4\xbd\xa0\x80", "\u{fffd}你\u{fffd}"),
        (b"\xf0\x9f\x98\x80\xf0\x9f", "😀\u{fffd}"),
        (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
    ];
    for (bytes, text) in cases {
        let ids: Vec<u32> = bytes.iter().map(|byte| tokenizer.token_id(&format!("<0x{byte:02X}>")).unwrap()).collect();
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text, "{bytes:x?}");
        assert_eq!(text, String::from_utf8_lossy(bytes), "{bytes:x?}");
    }
}

/// A change of metadata, and what the message must name.
type Fault = (&'static str, fn(&mut GgufVocab), &'static [&'static str]);

fn check_fault(mut vocab: GgufVocab, (name, change, words): &Fault) {
    change(&mut vocab);
    let error = Tokenizer::from_source(&TokenizerSource::Gguf(vocab)).expect_err(name);
    assert_eq!(error.diagnostics()[0].code, Code::BadTokenizer, "{name}");
    let message = error.to_string();
    for word in *words {
        assert!(message.contains(word), "{name}: {word:?} is not in\n{message}");
    }
}

#[test]
fn malformed_byte_level_metadata_is_refused() {
    let cases: [Fault; 15] = [
        ("model", |v| v.model = "t5".into(), &["tokenizer.ggml.model", "gpt2 or llama", "\"t5\""]),
        ("no pre", |v| v.pre = None, &["tokenizer.ggml.pre", "smollm", "no such key"]),
        ("unknown pre", |v| v.pre = Some("nonsense".into()), &["llama-bpe", "qwen2", "\"nonsense\""]),
        ("no merges", |v| v.merges.clear(), &["tokenizer.ggml.merges"]),
        ("half a merge", |v| v.merges[3] = "ab".into(), &["tokenizer.ggml.merges[3]", "\"ab\""]),
        ("empty side", |v| v.merges[3] = " a".into(), &["tokenizer.ggml.merges[3]"]),
        ("absent left", |v| v.merges[4] = "nope! a".into(), &["\"nope!\"", "[4]"]),
        ("absent union", |v| v.merges[4] = "! ÿ".into(), &["\"!ÿ\"", "[4]"]),
        ("three parts", |v| v.merges[4] = "a b c".into(), &["\"b c\"", "[4]"]),
        ("twice", |v| v.merges[5] = v.merges[2].clone(), &["listed twice", "[5]"]),
        ("no tokens", |v| v.tokens.clear(), &["tokenizer.ggml.tokens", "have: 0"]),
        ("same token", |v| v.tokens[9] = v.tokens[7].clone(), &["listed twice", "ids 7 and 9"]),
        ("types", |v| v.types.truncate(5), &["tokenizer.ggml.token_type", "have: 5"]),
        ("type", |v| v.types[6] = 9, &["tokenizer.ggml.token_type[6]", "1 to 6", "have: 9"]),
        (
            "bos",
            |v| {
                v.add_bos = Some(true);
                v.special.remove("bos");
            },
            &["tokenizer.ggml.bos_token_id", "add_bos_token"],
        ),
    ];
    for case in &cases {
        check_fault(gpt2("smollm"), case);
    }
}

#[test]
fn malformed_sentencepiece_metadata_is_refused() {
    let cases: [Fault; 6] = [
        ("scores", |v| v.scores.truncate(9), &["tokenizer.ggml.scores", "have: 9"]),
        ("no scores", |v| v.scores.clear(), &["tokenizer.ggml.scores", "have: 0"]),
        ("NaN", |v| v.scores[300] = f32::NAN, &["tokenizer.ggml.scores[300]", "NaN"]),
        ("equal", |v| v.scores[300] = v.scores[301], &["share a score"]),
        ("bos id", |v| v.special.extend([("bos".to_owned(), 7000)]), &["tokenizer.ggml.bos_token_id", "have: 7000"]),
        (
            "bytes",
            |v| {
                v.special.remove("unknown");
                v.tokens[7] = "no byte".into();
                v.types[7] = 1;
            },
            &["255 byte tokens"],
        ),
    ];
    for case in &cases {
        check_fault(llama(&spm_data()[0]), case);
    }
}

#[test]
fn malformed_tokenizer_json_is_refused() {
    let base = r#"{"version":"1.0","added_tokens":[{"id":3,"content":"<s>","special":true,"single_word":false,
        "lstrip":false,"rstrip":false,"normalized":false}],"decoder":{"type":"ByteLevel","add_prefix_space":true,
        "trim_offsets":true,"use_regex":true},"pre_tokenizer":null,"model":{"type":"BPE","dropout":null,
        "vocab":{"a":0,"b":1,"ab":2,"<s>":3},"merges":[["a","b"]]}}"#;
    let folder = TokenizerSource::HuggingFace {
        tokenizer_json: base.as_bytes().to_vec(),
        tokenizer_config: None,
        chat_template: None,
    };
    assert_eq!(Tokenizer::from_source(&folder).unwrap().encode("ab", true).unwrap(), [2]);
    let cases = [
        ("\"version\":\"1.0\"", "\"version\":", "not valid JSON"),
        ("\"version\":\"1.0\"", "\"version\":\"9\"", "9"),
        ("[\"a\",\"b\"]", "[\"b\",\"ab\"]", "\"bab\""),
        ("[\"a\",\"b\"]", "[\"a\",\"c\"]", "\"c\""),
        ("[\"a\",\"b\"]", "\"a b b\"", "model.merges[0]"),
        ("[\"a\",\"b\"]", "7", "model.merges[0]"),
        ("\"merges\":[[\"a\",\"b\"]]", "\"other\":1", "no list of merges"),
        ("\"ab\":2", "\"ab\":1", "\"a"),
        ("\"ab\":2", "\"ab\":4294967295", "4194303"),
        ("\"ab\":2", "\"ab\":-1", "model.vocab"),
        ("\"id\":3", "\"id\":4", "\"<s>\""),
        ("\"dropout\":null", "\"dropout\":0.1", "at random"),
        ("\"type\":\"BPE\"", "\"type\":\"Unigram\"", "need: BPE"),
        ("\"type\":\"ByteLevel\"", "\"type\":\"Fuse\"", "decoder"),
        ("\"dropout\":null", "\"continuing_subword_prefix\":\"##\"", "\"##\""),
    ];
    for (from, to, word) in cases {
        assert!(base.contains(from), "{from}");
        let error = Tokenizer::from_json(base.replace(from, to).as_bytes()).expect_err(to);
        assert_eq!(error.diagnostics()[0].code, Code::BadTokenizer, "{to}");
        assert!(error.to_string().contains(word), "{to}: {word:?} is not in\n{error}");
    }
}

#[test]
fn what_the_vocabulary_cannot_write_is_named() {
    let mut vocab = gpt2("smollm");
    let at = vocab.tokens.iter().position(|text| text == "Ą").unwrap();
    vocab.tokens[at] = "<gone>".to_owned();
    let tokenizer = open(vocab);
    let message = tokenizer.encode("ab\u{4}", false).unwrap_err().to_string();
    assert!(message.contains("0x04 at offset 2"), "{message}");
    assert!(tokenizer.encode("ab\u{3}", false).is_ok());
    let error = tokenizer.decode(&[0, 70_000], true).unwrap_err();
    assert_eq!(error.diagnostics()[0].code, Code::BadTokenId);
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    fn tokenizers() -> &'static [Tokenizer] {
        static TOKENIZERS: std::sync::OnceLock<Vec<Tokenizer>> = std::sync::OnceLock::new();
        TOKENIZERS.get_or_init(|| {
            let spm = spm_data();
            vec![open(gpt2("smollm")), open(gpt2("llama-bpe")), open(llama(&spm[0])), open(llama(&spm[1]))]
        })
    }

    proptest! {
        /// Whatever the ids, the stream yields what the whole decode yields, and both are the lossy form of the bytes.
        #[test]
        fn streams_are_whole_texts(which in 0usize..4, ids in prop::collection::vec(0u32..690, 0..60), skip: bool) {
            let tokenizer = &tokenizers()[which];
            let whole = tokenizer.decode(&ids, skip).unwrap();
            prop_assert_eq!(&streamed(tokenizer, &ids, skip), &whole);
        }

        /// Any text comes back from its ids (the byte-level vocabulary is complete, SentencePiece has all bytes).
        #[test]
        fn texts_come_back(which in 0usize..4, text in "\\PC{0,40}|[a-e ▁\n\t😀é<>|]{0,40}") {
            let tokenizer = &tokenizers()[which];
            let ids = tokenizer.encode(&text, false).unwrap();
            let expected = if which < 2 { text.clone() } else { text.replace('▁', " ") };
            prop_assume!(!expected.contains('<') || which < 2);
            prop_assert_eq!(tokenizer.decode(&ids, false).unwrap(), expected);
        }
    }
}
