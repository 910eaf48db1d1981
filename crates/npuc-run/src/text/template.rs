//! Chat templates, rendered as Hugging Face transformers renders them.
//!
//! Jinja with `trim_blocks` and `lstrip_blocks`, Python's string methods, `raise_exception`, `strftime_now`, `tojson`
//! as `json.dumps(ensure_ascii=False)`, and `{% generation %}` marks, which change nothing in the text. Values print
//! as in Python (`True`, `None`). The date comes from the caller.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use chrono::NaiveDate;
use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value, context};
use npuc::diag::{Code, Diagnostic, Error, Result};
use npuc::front::TokenizerSource;
use serde::{Deserialize, Serialize};

use super::bad_tokenizer;

/// The name under which a template's errors are reported.
const NAME: &str = "chat template";

/// The operations a template may take; those of real templates take a few thousand.
const FUEL: u64 = 5_000_000;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A turn of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// The day that a template may put into its text. Its time of day is 00:00.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date(NaiveDate);

impl Date {
    /// The day `day` (1 to 31) of `month` (1 to 12).
    ///
    /// # Errors
    /// `bad-argument` if there is no such day.
    pub fn new(year: i32, month: u32, day: u32) -> Result<Date> {
        NaiveDate::from_ymd_opt(year, month, day).map(Date).ok_or_else(|| bad_date(&format!("{year}-{month}-{day}")))
    }

    /// The day of `text`, `YYYY-MM-DD`.
    ///
    /// # Errors
    /// `bad-argument` if it is not of this form or there is no such day.
    pub fn parse(text: &str) -> Result<Date> {
        NaiveDate::parse_from_str(text, "%Y-%m-%d").map(Date).map_err(|_| bad_date(text))
    }
}

fn bad_date(have: &str) -> Error {
    Diagnostic::error(Code::BadArgument, "there is no such date").need("YYYY-MM-DD").have(have).into()
}

/// A chat template and the special tokens it may write. It is plain data, so that a bundle can keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatTemplate {
    /// The Jinja source.
    pub template: String,
    /// The texts of `bos_token`, `eos_token` and the like, by these names.
    pub special_tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// The chat template of a checkpoint, if it has one.
    ///
    /// # Errors
    /// `bad-tokenizer` if a special token's id is not in the vocabulary.
    pub fn from_source(source: &TokenizerSource) -> Result<Option<ChatTemplate>> {
        let (template, special_tokens) = match source {
            TokenizerSource::HuggingFace { tokenizer_config, chat_template, .. } => {
                let config = tokenizer_config.as_ref().and_then(serde_json::Value::as_object);
                let tokens = config.into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
                let text = |value: &serde_json::Value| value.as_str().or(value["content"].as_str()).map(str::to_owned);
                let tokens = tokens.filter_map(|(key, value)| Some((key.clone(), text(value)?)));
                (chat_template, tokens.collect())
            }
            TokenizerSource::Gguf(vocab) => {
                let text = |(name, &id): (&String, &u32)| {
                    let text = vocab.tokens.get(id as usize).ok_or_else(|| {
                        bad_tokenizer(format!("the {name} token is not in the vocabulary"))
                            .subject(format!("tokenizer.ggml.{name}_token_id"))
                            .need(format_args!("an id below {}", vocab.tokens.len()))
                            .have(id)
                    })?;
                    Ok((variable(name), text.clone()))
                };
                (&vocab.chat_template, vocab.special.iter().map(text).collect::<Result<_>>()?)
            }
        };
        Ok(template.clone().map(|template| ChatTemplate { template, special_tokens }))
    }

    /// The text that puts `messages` to the model. With `add_generation_prompt` it ends where the answer begins.
    ///
    /// It holds every special token the model wants, BOS too: encode it without adding any.
    ///
    /// # Errors
    /// `bad-template` if the template is malformed, runs astray or refuses the messages (then with its own words).
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool, date: Date) -> Result<String> {
        let source = without_generation_marks(&self.template);
        let mut env = environment(date).map_err(|e| bad_template(&e))?;
        env.add_template(NAME, &source).map_err(|e| bad_template(&e))?;
        let messages: Value = messages
            .iter()
            .map(|message| Value::from_pairs([("role", message.role.as_str()), ("content", message.content.as_str())]))
            .collect();
        for (name, text) in &self.special_tokens {
            env.add_global(name.as_str(), text.as_str());
        }
        let values = context! { messages, add_generation_prompt, tools => (), documents => () };
        env.get_template(NAME).and_then(|template| template.render(values)).map_err(|e| bad_template(&e))
    }
}

/// The template's name for a special token of GGUF metadata.
fn variable(name: &str) -> String {
    match name {
        "unknown" => "unk_token".to_owned(),
        "padding" => "pad_token".to_owned(),
        "seperator" | "separator" => "sep_token".to_owned(),
        other => format!("{other}_token"),
    }
}

fn environment<'a>(date: Date) -> Result<Environment<'a>, minijinja::Error> {
    let mut env = Environment::new();
    let mut syntax = env.syntax().to_builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    env.set_syntax(syntax.build()?);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_fuel(Some(FUEL));
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(message)))
    });
    env.add_function("strftime_now", move |format: &str| strftime(date, format));
    Ok(env)
}

/// What a template says when it calls `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn bad_template(error: &minijinja::Error) -> Error {
    let mut fault = Diagnostic::error(Code::BadTemplate, "the chat template fails").subject(NAME);
    if let Some(line) = error.line() {
        fault = fault.line(line);
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Refusal(message)) = current.downcast_ref() {
            fault.message = "the chat template refuses the messages".to_owned();
            return fault.have(message).help("change the messages as the template asks").into();
        }
        cause = current.source();
    }
    fault.have(error).help("give plain text without the template, or another template").into()
}

fn strftime(date: Date, format: &str) -> Result<String, minijinja::Error> {
    let midnight = date.0.and_time(chrono::NaiveTime::MIN);
    let mut text = String::new();
    write!(text, "{}", midnight.format(format)).map_err(|_| {
        minijinja::Error::new(ErrorKind::InvalidOperation, format!("{format:?} is not a date format that is known"))
    })?;
    Ok(text)
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
fn tojson(value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<Value> = options.get("indent")?;
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "tojson(ensure_ascii=True) is not supported"));
    }
    options.assert_all_used()?;
    let json = minijinja::filters::tojson(value, indent, Kwargs::from_iter::<[(&str, Value); 0]>([]))?;
    Ok(without_html_escapes(json.as_str().unwrap_or_default()))
}

/// The library's JSON may be put into HTML: `<`, `>`, `&` and `'` are escaped in it. Python's is not.
fn without_html_escapes(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        plain.push_str(before);
        let known = [("\\u003c", '<'), ("\\u003e", '>'), ("\\u0026", '&'), ("\\u0027", '\'')];
        if let Some((code, c)) = known.iter().find(|(code, _)| escape.starts_with(code)) {
            plain.push(*c);
            rest = &escape[code.len()..];
        } else {
            // A backslash always comes before a character of its own, which may be a backslash too.
            let len = escape.chars().take(2).map(char::len_utf8).sum();
            plain.push_str(&escape[..len]);
            rest = &escape[len..];
        }
    }
    plain + rest
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which mark the model's own words for training, by a block
/// that has the same scope and the same effect on white space.
fn without_generation_marks(template: &str) -> String {
    let mut plain = String::with_capacity(template.len());
    let mut rest = template;
    let mut raw = false;
    while let Some(start) = rest.find("{%") {
        let inner = &rest[start + 2..];
        let Some(inner) = inner.find("%}").map(|end| &inner[..end]) else { break };
        let word = inner.trim_matches(['-', '+']).trim();
        let by = match word {
            "generation" if !raw => "with",
            "endgeneration" if !raw => "endwith",
            other => other,
        };
        raw = (raw || word == "raw") && word != "endraw";
        plain.push_str(&rest[..start + 2]);
        plain.push_str(&inner.replacen(word, by, 1));
        rest = &rest[start + 2 + inner.len()..];
    }
    plain + rest
}
