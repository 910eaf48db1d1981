//! Workloads: every fault of every line at once, and nothing lost of the lines that are good.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use npuc::{Code, Diagnostic, Result};
use npuc_bench::slo::{Slo, duration_ns};
use npuc_bench::workload::{Model, Workload};
use npuc_run::text::{Date, TextModel};

mod runs;

fn read(content: &str, text: Result<&TextModel>) -> Result<Workload> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.jsonl");
    fs::write(&path, content).unwrap();
    Workload::read(&path, &Model { vocab: 320, capacity: 64, text, date: Date::new(2026, 1, 1).unwrap() })
}

fn no_text() -> Result<&'static TextModel> {
    Err(Diagnostic::error(Code::NoTokenizer, "the model has no tokenizer").into())
}

#[test]
fn good_lines_come_back_whole() {
    let content = "\n{\"id\":\"a\",\"dataset\":\"d\",\"input_ids\":[1,2],\"max_new_tokens\":62,\"note\":{\"x\":1.50},\"big\":123456789012345678901234567890}\r\n\
                   {\"id\":\"b\",\"dataset\":\"\",\"input_ids\":[319],\"max_new_tokens\":1,\"ignore_eos\":true}";
    let workload = read(content, no_text()).unwrap();
    let [a, b] = &workload.jobs[..] else { panic!("{:?}", workload.jobs) };
    assert_eq!((a.line, a.prompt.as_slice(), a.max_new_tokens, a.ignore_eos), (2, [1, 2].as_slice(), 62, false));
    assert_eq!((b.line, b.prompt.as_slice(), b.ignore_eos), (3, [319].as_slice(), true));
    let kept = serde_json::to_string(&a.extra).unwrap();
    assert_eq!(kept, "{\"note\":{\"x\":1.50},\"big\":123456789012345678901234567890}");
}

#[test]
fn text_becomes_ids() {
    let program = runs::program();
    let text = program.text.as_ref().unwrap().as_ref().unwrap();
    let line = "{\"id\":\"a\",\"dataset\":\"d\",\"prompt\":\"a clock\",\"max_new_tokens\":4}\n\
                {\"id\":\"b\",\"dataset\":\"d\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_new_tokens\":4}\n";
    let workload = read(line, Ok(text)).unwrap();
    assert_eq!(workload.jobs[0].prompt, text.tokenizer.encode("a clock", true).unwrap());
    assert!(workload.has_messages && workload.jobs[1].prompt.len() > 1);
}

#[test]
fn all_faults_are_told_at_once() {
    let good = "{\"id\":\"a\",\"dataset\":\"d\",\"input_ids\":[1],\"max_new_tokens\":1}";
    let lines = [
        (good, None),
        ("[1]", Some("not a JSON object")),
        ("{\"id\":", Some("not a JSON object")),
        ("{\"id\":\"b\",\"id\":\"c\"}", Some("comes twice")),
        (good, Some("`a`, as in line 1")),
        ("{\"dataset\":\"d\",\"input_ids\":[1],\"max_new_tokens\":1}", Some("absent")),
        ("{\"id\":\"\",\"dataset\":\"d\",\"input_ids\":[1],\"max_new_tokens\":1}", Some("w.jsonl:7: id")),
        ("{\"id\":7,\"dataset\":\"d\",\"input_ids\":[1],\"max_new_tokens\":1}", Some("have: 7")),
        ("{\"id\":\"e\",\"dataset\":\"d\",\"input_ids\":[1],\"max_new_tokens\":0}", Some("at least 1 token")),
        ("{\"id\":\"f\",\"dataset\":\"d\",\"input_ids\":[1],\"max_new_tokens\":-2}", Some("have: -2")),
        ("{\"id\":\"g\",\"dataset\":\"d\",\"input_ids\":[],\"max_new_tokens\":1}", Some("no tokens")),
        ("{\"id\":\"h\",\"dataset\":\"d\",\"input_ids\":[1,320],\"max_new_tokens\":1}", Some("320 at place 1")),
        ("{\"id\":\"i\",\"dataset\":\"d\",\"input_ids\":[1,\"2\"],\"max_new_tokens\":1}", Some("a list of token ids")),
        ("{\"id\":\"j\",\"dataset\":\"d\",\"input_ids\":[1,2],\"max_new_tokens\":63}", Some("at most 64 tokens")),
        (
            "{\"id\":\"k\",\"dataset\":\"d\",\"input_ids\":[1],\"max_new_tokens\":18446744073709551615}",
            Some("at most 64 tokens"),
        ),
        ("{\"id\":\"l\",\"dataset\":\"d\",\"max_new_tokens\":1}", Some("0 of them")),
        ("{\"id\":\"m\",\"dataset\":\"d\",\"input_ids\":[1],\"prompt\":\"x\",\"max_new_tokens\":1}", Some("2 of them")),
        ("{\"id\":\"n\",\"dataset\":\"d\",\"prompt\":\"x\",\"max_new_tokens\":1}", Some("no tokenizer")),
        (
            "{\"id\":\"o\",\"dataset\":\"d\",\"input_ids\":[1],\"max_new_tokens\":1,\"ignore_eos\":\"no\"}",
            Some("true or false"),
        ),
        ("{\"id\":\"p\",\"dataset\":3,\"input_ids\":7,\"max_new_tokens\":1}", Some("dataset")),
    ];
    let content: String = lines.iter().map(|(line, _)| format!("{line}\n")).collect();
    let error = read(&content, no_text()).unwrap_err();
    for (place, (line, need)) in lines.iter().enumerate() {
        let of_line: Vec<String> =
            error.diagnostics().iter().filter(|fault| fault.line == Some(place + 1)).map(ToString::to_string).collect();
        match need {
            None => assert!(of_line.is_empty(), "{line}: {of_line:?}"),
            Some(need) => assert!(of_line.iter().any(|told| told.contains(need)), "{line}: {of_line:?}, need {need}"),
        }
    }
    assert!(
        error.diagnostics().iter().all(|fault| fault.file.as_deref().is_some_and(|file| file.ends_with("w.jsonl")))
    );
    let two = error.diagnostics().iter().filter(|fault| fault.line == Some(20)).count();
    assert_eq!(two, 2, "both faults of the last line");
    for empty in ["", "\n \n"] {
        assert!(read(empty, no_text()).unwrap_err().to_string().contains("no request"));
    }
    let absent = Workload::read(
        Path::new("/nowhere/w.jsonl"),
        &Model { vocab: 1, capacity: 1, text: no_text(), date: Date::new(2026, 1, 1).unwrap() },
    );
    assert_eq!(absent.unwrap_err().diagnostics()[0].code, Code::Unreadable);
}

#[test]
fn durations_and_thresholds() {
    let cases = [
        ("500ms", Some(500_000_000)),
        ("1.5s", Some(1_500_000_000)),
        ("20us", Some(20_000)),
        ("20µs", Some(20_000)),
        ("0ns", Some(0)),
        ("2 min", Some(120_000_000_000)),
        ("1h", Some(3_600_000_000_000)),
        ("5", None),
        ("ms", None),
        ("-1s", None),
        ("1e3s", None),
        ("1.2.3s", None),
        ("101000h", None),
        ("", None),
        ("5 parsecs", None),
    ];
    for (text, need) in cases {
        assert_eq!(duration_ns(text).ok(), need, "{text}");
    }
    let slo = |text: &str| text.parse::<Slo>().ok().map(|slo| (slo.ttft_ms, slo.tpot_ms));
    let cases = [
        ("ttft=500ms,tpot=60ms", Some((Some(500.0), Some(60.0)))),
        ("tpot=0.5s", Some((None, Some(500.0)))),
        ("", None),
        ("ttft", None),
        ("ttft=0ms", None),
        ("ttft=1ms,ttft=2ms", None),
        ("itl=5ms", None),
        ("ttft=1ms,", None),
    ];
    for (text, need) in cases {
        assert_eq!(slo(text), need, "{text}");
    }
}
