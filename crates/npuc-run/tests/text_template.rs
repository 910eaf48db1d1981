//! Chat templates against Jinja2 set up as Hugging Face transformers does: `data/templates.json`, from `tools/text`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;

use npuc::diag::Code;
use npuc::front::{GgufVocab, TokenizerSource};
use npuc_run::text::{ChatTemplate, Date, Message};
use serde::Deserialize;

#[derive(Deserialize)]
struct Data {
    date: String,
    templates: BTreeMap<String, ChatTemplate>,
    chats: BTreeMap<String, Vec<Message>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    chat: String,
    add_generation_prompt: bool,
    text: Option<String>,
    error: Option<String>,
}

#[test]
fn texts_and_refusals_are_those_of_jinja2() {
    let data: Data = serde_json::from_str(include_str!("data/templates.json")).unwrap();
    let date = Date::parse(&data.date).unwrap();
    for case in &data.cases {
        let what = format!("{} {} {}", case.template, case.chat, case.add_generation_prompt);
        let messages = &data.chats[&case.chat];
        let result = data.templates[&case.template].render(messages, case.add_generation_prompt, date);
        match (result, &case.error) {
            (Ok(text), None) => assert_eq!(Some(&text), case.text.as_ref(), "{what}"),
            (Err(error), Some(expected)) => {
                assert_eq!(error.diagnostics()[0].code, Code::BadTemplate, "{what}");
                assert_eq!(error.diagnostics()[0].have.as_ref(), Some(expected), "{what}");
            }
            (Ok(text), Some(error)) => panic!("{what}: expected {error:?}, got {text:?}"),
            (Err(error), None) => panic!("{what}: {error}"),
        }
    }
}

#[test]
fn broken_templates_are_named_with_their_line() {
    let cases = [
        ("a\n{% if %}", "chat template", Some(2)),
        ("{% generation %}", "chat template", Some(1)),
        ("a{%}b", "chat template", Some(1)),
        ("a{%-%}b", "chat template", Some(1)),
        ("a {% x", "chat template", Some(1)),
        ("{% raw %}{% generation %}", "chat template", Some(1)),
        ("\n\n{{ messages[0].content.nothing() }}", "nothing", Some(3)),
        ("{{ strftime_now('%Q') }}", "%Q", Some(1)),
        ("{{ messages | tojson(ensure_ascii=true) }}", "ensure_ascii", Some(1)),
        ("{{ messages | tojson(surprise=1) }}", "surprise", Some(1)),
        ("{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}", "fuel", Some(1)),
    ];
    for (template, word, line) in cases {
        let template = ChatTemplate { template: template.to_owned(), special_tokens: BTreeMap::new() };
        let date = Date::new(2024, 2, 29).unwrap();
        let error = template.render(&[Message::new("user", "hi")], true, date).expect_err(word);
        assert_eq!(error.diagnostics()[0].code, Code::BadTemplate, "{word}");
        assert_eq!(error.diagnostics()[0].line, line, "{error}");
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

#[test]
fn dates_are_checked() {
    for text in ["2023-02-29", "2024-13-01", "yesterday", "2024-01-01T00:00", ""] {
        assert_eq!(Date::parse(text).unwrap_err().diagnostics()[0].code, Code::BadArgument, "{text}");
    }
    assert_eq!(Date::new(2024, 2, 29).unwrap(), Date::parse("2024-02-29").unwrap());
    assert!(Date::new(2024, 0, 1).is_err());
}

#[test]
fn special_tokens_come_from_the_checkpoint() {
    let template = Some("{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token }}".to_owned());
    let gguf = GgufVocab {
        tokens: ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec(),
        special: [("bos", 1), ("eos", 2), ("unknown", 0)].map(|(k, id)| (k.to_owned(), id)).into(),
        chat_template: template.clone(),
        ..GgufVocab::default()
    };
    let config = serde_json::json!({
        "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "unk_token": "<unk>", "pad_token": null,
    });
    let folder = TokenizerSource::HuggingFace {
        tokenizer_json: Vec::new(),
        tokenizer_config: Some(config),
        chat_template: template,
    };
    for source in [TokenizerSource::Gguf(gguf.clone()), folder] {
        let chat = ChatTemplate::from_source(&source).unwrap().unwrap();
        let text = chat.render(&[], false, Date::new(2024, 1, 1).unwrap()).unwrap();
        assert_eq!(text, "<s>|</s>|<unk>|");
        let kept: ChatTemplate = serde_json::from_str(&serde_json::to_string(&chat).unwrap()).unwrap();
        assert_eq!(kept, chat);
    }
    let without = TokenizerSource::Gguf(GgufVocab { chat_template: None, ..gguf.clone() });
    assert_eq!(ChatTemplate::from_source(&without).unwrap(), None);
    let outside = TokenizerSource::Gguf(GgufVocab { special: [("bos".to_owned(), 3)].into(), ..gguf });
    assert_eq!(ChatTemplate::from_source(&outside).unwrap_err().diagnostics()[0].code, Code::BadTokenizer);
}
