//! Workloads: a request a line of JSON, all checked before the first one is measured.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use npuc::{Code, Diagnostic, Error, Result};
use npuc_run::text::{Date, Message, TextModel};
use serde::de::DeserializeOwned;

use crate::chain::sha256;
use crate::json::Object;

/// A request, ready to be measured.
#[derive(Clone, Debug)]
pub struct Job {
    /// The 1-based line of the workload.
    pub line: usize,
    /// Its name, no other request's.
    pub id: String,
    /// Where the prompt is from.
    pub dataset: String,
    /// The ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// The most tokens of the answer, at least one.
    pub max_new_tokens: usize,
    /// Whether the answer goes on after an id that ends one.
    pub ignore_eos: bool,
    /// The fields that npuc does not know.
    pub extra: Object,
}

/// A workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its file.
    pub path: PathBuf,
    /// The SHA-256 of the file's bytes.
    pub sha256: String,
    /// The requests, in the order of the file.
    pub jobs: Vec<Job>,
    /// Whether a request has `messages`, so that prompts may depend on the date.
    pub has_messages: bool,
}

/// What requests have to fit.
pub struct Model<'a> {
    /// Number of token ids.
    pub vocab: usize,
    /// Tokens that prompt and answer may have together.
    pub capacity: usize,
    /// Tokenizer and template, for requests of text; why there is none.
    pub text: Result<&'a TextModel>,
    /// The day that templates see.
    pub date: Date,
}

/// What a request says its prompt is.
enum Prompt {
    Ids(Vec<u32>),
    Text(String),
    Messages(Vec<Message>),
}

impl Workload {
    /// Reads and checks a workload.
    ///
    /// Errors: every fault of every line at once, each with its line ([`Code::BadWorkload`], or the text side's own).
    pub fn read(path: &Path, model: &Model<'_>) -> Result<Workload> {
        let bytes = read_at_most(path, MOST_BYTES)?;
        let mut faults = Vec::new();
        let (mut jobs, mut lines) = (Vec::new(), BTreeMap::new());
        let mut has_messages = false;
        for (place, bytes) in bytes.split(|&byte| byte == b'\n').enumerate() {
            let line = place + 1;
            if bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match job(bytes, line, model, &mut has_messages) {
                Ok(job) => {
                    if let Some(first) = lines.insert(job.id.clone(), line) {
                        faults.push(repeated(&job.id, line, first));
                    }
                    jobs.push(job);
                }
                Err(error) => {
                    faults.extend(error.diagnostics().iter().cloned().map(|fault| fault.line(line)));
                    // Its name counts all the same, so that all faults are told at once.
                    if let Some(id) = id_of(bytes)
                        && let Some(first) = lines.insert(id.clone(), line)
                    {
                        faults.push(repeated(&id, line, first));
                    }
                }
            }
        }
        if jobs.is_empty() && faults.is_empty() {
            faults.push(
                Diagnostic::error(Code::BadWorkload, "the workload has no request")
                    .need("a JSON object a line")
                    .have(format!("{} bytes without one", bytes.len())),
            );
        }
        Error::check(faults).map_err(|e| e.in_file(path))?;
        Ok(Workload { path: path.to_path_buf(), sha256: sha256(&bytes), jobs, has_messages })
    }
}

/// The most of a workload that is read: more is no workload.
const MOST_BYTES: u64 = 1 << 30;

fn read_at_most(path: &Path, most_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(most_bytes + 1).read_to_end(&mut bytes));
    read.map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the workload: {e}")).file(path))?;
    if bytes.len() as u64 > most_bytes {
        let fault = Diagnostic::error(Code::BadWorkload, "the file is too large for a workload").file(path);
        return Err(fault.need(format!("at most {most_bytes} bytes")).have("more").into());
    }
    Ok(bytes)
}

/// The name in a line that has faults.
fn id_of(bytes: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    value.get("id")?.as_str().map(str::to_owned)
}

fn repeated(id: &str, line: usize, first: usize) -> Diagnostic {
    Diagnostic::error(Code::BadWorkload, "two requests have the same id")
        .line(line)
        .subject("id")
        .need("an id of its own for every request")
        .have(format!("`{id}`, as in line {first}"))
}

/// The request of a line; `line` is only noted in it.
///
/// Errors: every fault of the line at once.
pub(crate) fn job(bytes: &[u8], line: usize, model: &Model<'_>, has_messages: &mut bool) -> Result<Job> {
    let mut object: Object = serde_json::from_slice(bytes).map_err(|e| {
        let told = e.to_string();
        let what = told.rsplit_once(" at line ").map_or(told.as_str(), |(what, _)| what);
        let fault = Diagnostic::error(Code::BadWorkload, "the line is not a JSON object");
        fault.need("one object").have(format!("{what}, at column {}", e.column()))
    })?;
    let mut faults = Vec::new();
    let id: Option<String> = required(&mut object, "id", "a text that is not empty", &mut faults);
    let dataset: Option<String> = required(&mut object, "dataset", "a text", &mut faults);
    let max_new_tokens: Option<usize> = required(&mut object, "max_new_tokens", "a whole number above 0", &mut faults);
    let ignore_eos = optional(&mut object, "ignore_eos", "true or false", &mut faults).unwrap_or(false);
    let mut out_of_range = |subject: &str, need: String, have: String| {
        let fault = Diagnostic::error(Code::BadWorkload, "a field is out of range").subject(subject);
        faults.push(fault.need(need).have(have));
    };
    if id.as_ref().is_some_and(String::is_empty) {
        out_of_range("id", "a text that is not empty".into(), "\"\"".into());
    }
    if max_new_tokens == Some(0) {
        out_of_range("max_new_tokens", "at least 1 token".into(), "0".into());
    }
    let prompt = prompt(&mut object, &mut faults);
    *has_messages |= matches!(prompt, Some(Prompt::Messages(_)));
    let ids = prompt.and_then(|prompt| match encoded(prompt, model) {
        Ok(ids) => Some(ids),
        Err(error) => {
            faults.extend(error.diagnostics().iter().map(of_text));
            None
        }
    });
    if let Some(ids) = &ids {
        check_ids(ids, max_new_tokens.unwrap_or(1), model, &mut faults);
    }
    Error::check(faults)?;
    match (id, dataset, max_new_tokens, ids) {
        (Some(id), Some(dataset), Some(max_new_tokens), Some(prompt)) => {
            Ok(Job { line, id, dataset, prompt, max_new_tokens, ignore_eos, extra: object })
        }
        _ => unreachable!("what is absent is a fault"),
    }
}

/// A fault of the model's text side as one of the request that needs it.
fn of_text(fault: &Diagnostic) -> Diagnostic {
    let have = fault.file.as_ref().map(|file| format!("{}: {}", file.display(), fault.message));
    Diagnostic {
        file: None,
        subject: Some("prompt or messages".into()),
        have: fault.have.clone().or(have),
        help: vec!["give the prompt as `input_ids`".into()],
        ..fault.clone()
    }
}

fn optional<T: DeserializeOwned>(
    object: &mut Object,
    key: &str,
    expected: &str,
    faults: &mut Vec<Diagnostic>,
) -> Option<T> {
    object.take(key, expected, Code::BadWorkload).unwrap_or_else(|error| {
        faults.extend(error.diagnostics().iter().cloned());
        None
    })
}

fn required<T: DeserializeOwned>(
    object: &mut Object,
    key: &str,
    expected: &str,
    faults: &mut Vec<Diagnostic>,
) -> Option<T> {
    let before = faults.len();
    let value = optional(object, key, expected, faults);
    if value.is_none() && faults.len() == before {
        let fault = Diagnostic::error(Code::BadWorkload, "a field is absent").subject(key);
        faults.push(fault.need(expected));
    }
    value
}

fn prompt(object: &mut Object, faults: &mut Vec<Diagnostic>) -> Option<Prompt> {
    let before = faults.len();
    let ids = optional(object, "input_ids", "a list of token ids", faults).map(Prompt::Ids);
    let text = optional(object, "prompt", "a text", faults).map(Prompt::Text);
    let messages = optional(object, "messages", "a list of objects with `role` and `content`, both texts", faults);
    let mut given: Vec<Prompt> = [ids, text, messages.map(Prompt::Messages)].into_iter().flatten().collect();
    if given.len() != 1 && faults.len() == before {
        let fault = Diagnostic::error(Code::BadWorkload, "a request has one prompt");
        faults.push(fault.need("one of `input_ids`, `prompt` and `messages`").have(format!("{} of them", given.len())));
    }
    if given.len() == 1 { given.pop() } else { None }
}

fn encoded(prompt: Prompt, model: &Model<'_>) -> Result<Vec<u32>> {
    match prompt {
        Prompt::Ids(ids) => Ok(ids),
        Prompt::Text(text) => model.text.clone()?.tokenizer.encode(&text, true),
        Prompt::Messages(messages) => model.text.clone()?.encode_chat(&messages, model.date),
    }
}

fn check_ids(ids: &[u32], max_new_tokens: usize, model: &Model<'_>, faults: &mut Vec<Diagnostic>) {
    let &Model { vocab, capacity, .. } = model;
    let fault = |message: &str| Diagnostic::error(Code::BadWorkload, message).subject("input_ids");
    if ids.is_empty() {
        faults.push(fault("the prompt has no tokens").need("at least 1 token").have(0));
    }
    if let Some((place, id)) = ids.iter().enumerate().find(|&(_, &id)| id as usize >= vocab) {
        let fault = fault("a token id is outside the vocabulary").need(format!("ids below {vocab}"));
        faults.push(fault.have(format!("{id} at place {place}")));
    }
    let rows = ids.len().saturating_add(max_new_tokens);
    if rows > capacity {
        let fault = Diagnostic::error(Code::BadWorkload, "prompt and answer do not fit the context");
        let fault = fault.subject("max_new_tokens").need(format!("at most {capacity} tokens together"));
        let have = format!("{rows}: {} of the prompt and {max_new_tokens} new", ids.len());
        faults.push(fault.have(have).help("shorten the request, or build with a larger capacity (--shapes)"));
    }
}
