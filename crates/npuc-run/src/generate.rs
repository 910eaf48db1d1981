//! The token loop: prefill, then decode and sample until something ends the answer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use npuc::{Code, Diagnostic, Result};
use serde::{Deserialize, Serialize};

use crate::session::Session;
use crate::text::{Sampler, StopTexts, TextModel, TextStream};

/// What to generate.
pub struct Request<'a> {
    /// The prompt.
    pub prompt: &'a [u32],
    /// The most tokens to answer with; `None` for what the context holds.
    pub max_new: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: &'a [String],
    /// Whether the ids that end an answer are ignored.
    pub ignore_eos: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// The model said so with one of its end ids.
    Eos,
    /// A stop text came up.
    StopText,
    /// The most tokens asked for.
    MaxNew,
    /// The context is full.
    ContextFull,
}

/// An answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The ids, without the one that ended the answer.
    pub ids: Vec<u32>,
    /// The text, if the model has a tokenizer.
    pub text: Option<String>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that the session had seen already and did not compute.
    pub reused_tokens: usize,
    /// From the start to the first token, in milliseconds.
    pub ttft_ms: f64,
    /// From the first token to the last, in milliseconds.
    pub decode_ms: f64,
    /// Tokens per second of the computed part of the prompt.
    pub prefill_tokens_per_s: f64,
    /// Tokens per second after the first token; absent for an answer of one token.
    pub decode_tokens_per_s: Option<f64>,
}

/// The prompt cut from the front so that prompt and answer fit, and how many tokens were cut.
/// Without `truncate` a prompt that does not fit is an error that names the numbers.
pub fn fit_prompt(prompt: &[u32], max_new: Option<usize>, capacity: usize, truncate: bool) -> Result<(&[u32], usize)> {
    if prompt.is_empty() {
        return Err(Diagnostic::error(Code::BadArgument, "the prompt has no tokens").need("at least 1 token").into());
    }
    let new = max_new.unwrap_or(1);
    if new == 0 {
        return Err(Diagnostic::error(Code::BadArgument, "an answer has at least one token")
            .need("at least 1 new token")
            .have(0)
            .into());
    }
    if prompt.len().saturating_add(new) <= capacity {
        return Ok((prompt, 0));
    }
    let fault = Diagnostic::error(Code::ContextExceeded, "prompt and answer do not fit the context")
        .need(format!("{} rows: {} of the prompt and {new} new", prompt.len().saturating_add(new), prompt.len()))
        .have(format!("a capacity of {capacity}"));
    if new >= capacity {
        return Err(fault.help("ask for fewer tokens (-n) or build with a larger capacity (--shapes)").into());
    }
    if !truncate {
        let fault = fault.help("shorten the prompt, or ask for fewer tokens (-n)");
        let fault = fault.help("build with a larger capacity (--shapes)");
        return Err(fault.help("drop the oldest tokens of the prompt with --truncate").into());
    }
    let cut = prompt.len() - (capacity - new);
    Ok((&prompt[cut..], cut))
}

/// Answers a prompt; what the session has of it already is not computed again. `on_text` gets the answer's
/// text as it becomes certain.
///
/// Errors: a prompt that does not fit (see [`fit_prompt`]), scores that are not numbers.
pub fn generate(
    session: &mut Session,
    request: &Request<'_>,
    text: Option<&TextModel>,
    eos: &BTreeSet<u32>,
    sampler: &mut Sampler,
    on_text: &mut dyn FnMut(&str),
) -> Result<Answer> {
    fit_prompt(request.prompt, request.max_new, session.capacity(), false)?;
    let room = session.capacity() - request.prompt.len();
    let max_new = request.max_new.unwrap_or(room);
    let mut output = Output::new(text, request.stop, max_new)?;
    let start = Instant::now();
    sampler.accept(request.prompt);
    let reused = session.rewind_to(request.prompt);
    session.feed(&request.prompt[reused..], |_| {})?;
    let mut first = None;
    let finish = loop {
        if output.ids.len() == max_new {
            break if request.max_new.is_some() { Finish::MaxNew } else { Finish::ContextFull };
        }
        let logits =
            session.logits().ok_or_else(|| Diagnostic::error(Code::BadArgument, "the prompt has no tokens"))?;
        let id = sampler.sample(logits)?;
        let now = Instant::now();
        first.get_or_insert(now);
        output.last = Some(now);
        if eos.contains(&id) && !request.ignore_eos {
            break Finish::Eos;
        }
        if output.push(id, on_text)? {
            break Finish::StopText;
        }
        if output.ids.len() < max_new {
            session.decode(id)?;
        }
    };
    output.finish(on_text);
    Ok(output.answer(finish, request.prompt.len(), reused, start, first))
}

/// The answer so far, and its text between tokenizer and stop texts.
struct Output<'a> {
    ids: Vec<u32>,
    stream: Option<TextStream<'a>>,
    stops: StopTexts,
    text: String,
    last: Option<Instant>,
}

impl<'a> Output<'a> {
    fn new(text: Option<&'a TextModel>, stop: &[String], max_new: usize) -> Result<Output<'a>> {
        Ok(Output {
            ids: Vec::with_capacity(max_new),
            stream: text.map(|text| TextStream::continuing(&text.tokenizer, true)),
            stops: StopTexts::new(stop.to_vec())?,
            text: String::with_capacity(4 * max_new),
            last: None,
        })
    }

    /// Takes a token; true if its text completes a stop text.
    fn push(&mut self, id: u32, on_text: &mut dyn FnMut(&str)) -> Result<bool> {
        self.ids.push(id);
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let held = self.stops.push(stream.push(id)?);
        emit(held.text, &mut self.text, on_text);
        Ok(held.stopped)
    }

    fn finish(&mut self, on_text: &mut dyn FnMut(&str)) {
        let Some(stream) = &mut self.stream else { return };
        let held = self.stops.push(stream.finish());
        emit(held.text, &mut self.text, on_text);
        emit(self.stops.finish().text, &mut self.text, on_text);
    }

    fn answer(
        self,
        finish: Finish,
        prompt_tokens: usize,
        reused_tokens: usize,
        start: Instant,
        first: Option<Instant>,
    ) -> Answer {
        let first = first.unwrap_or(start);
        let ttft = first - start;
        let decode = self.last.map_or(Duration::ZERO, |last| last - first);
        // The token that ends an answer was computed too, though it is not part of it.
        let sampled = self.ids.len() + usize::from(finish == Finish::Eos);
        let intervals = sampled.saturating_sub(1);
        Answer {
            text: self.stream.is_some().then_some(self.text),
            ids: self.ids,
            finish,
            prompt_tokens,
            reused_tokens,
            ttft_ms: ttft.as_secs_f64() * 1e3,
            decode_ms: decode.as_secs_f64() * 1e3,
            prefill_tokens_per_s: (prompt_tokens - reused_tokens) as f64 / ttft.as_secs_f64(),
            decode_tokens_per_s: (intervals > 0).then(|| intervals as f64 / decode.as_secs_f64()),
        }
    }
}

fn emit(piece: &str, text: &mut String, on_text: &mut dyn FnMut(&str)) {
    if !piece.is_empty() {
        text.push_str(piece);
        on_text(piece);
    }
}
