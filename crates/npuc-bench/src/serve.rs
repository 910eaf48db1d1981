//! `npuc serve-jsonl`: requests come a line each, events leave a line each, for other programs that measure.
//!
//! A line that is wrong gets an `error` event and the next one is read. A token's `commit_ns` is taken before its event is written, so
//! writing is part of the next interval.

use std::collections::BTreeSet;
use std::io::{BufRead, Read, Write};

use npuc::{Code, Diagnostic, Result};
use npuc_run::generate::Finish;
use npuc_run::session::Session;
use npuc_run::text::{Sampler, Sampling};
use serde::Serialize;

use crate::clock::Clock;
use crate::json::Object;
use crate::measure::{Buffers, Measurement, measure};
use crate::record::{Class, Commit, PrefillStep, SCHEMA};
use crate::workload::{Job, Model, job};

/// The longest line that is read, in bytes.
const LONGEST_LINE: u64 = 64 << 20;

/// What leaves.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event<'a> {
    Ready {
        schema: u32,
        tool: String,
        class: Class,
        measured_on: &'a str,
        vocab: usize,
        capacity: usize,
    },
    Token {
        id: &'a str,
        #[serde(flatten)]
        commit: Commit,
    },
    End {
        id: &'a str,
        finish: Finish,
        prompt_tokens: usize,
        completion_tokens: usize,
        output_tokens: usize,
        start_ns: u64,
        end_ns: u64,
        prefill: Vec<PrefillStep>,
        #[serde(skip_serializing_if = "Object::is_empty")]
        extra: &'a Object,
    },
    Error {
        line: usize,
        id: Option<&'a str>,
        errors: &'a [Diagnostic],
    },
}

/// What answers, and what it is called.
pub struct Server<'a> {
    /// The session, whose conversation is forgotten with every request.
    pub session: &'a mut Session,
    /// What requests have to fit.
    pub model: Model<'a>,
    /// Every id that ends an answer.
    pub eos: &'a BTreeSet<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// What computes.
    pub class: Class,
    /// The same in npuc's words.
    pub measured_on: &'a str,
}

/// Answers requests until there are no more.
///
/// Errors: the input cannot be read, the output cannot be written, the back end fails; the request has its `error` event then.
pub fn serve(server: Server<'_>, mut input: impl BufRead, output: &mut impl Write, clock: &impl Clock) -> Result<()> {
    let Server { session, model, eos, sampling, class, measured_on } = server;
    let tool = format!("npuc {}", env!("CARGO_PKG_VERSION"));
    let (vocab, capacity) = (model.vocab, model.capacity);
    say(output, &Event::Ready { schema: SCHEMA, tool, class, measured_on, vocab, capacity })?;
    let mut sampler = Sampler::new(sampling);
    let mut line = 0;
    let mut bytes = Vec::new();
    while next_line(&mut input, &mut bytes)? {
        line += 1;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let parsed = if bytes.len() as u64 > LONGEST_LINE {
            Err(too_long().into())
        } else {
            job(&bytes, line, &model, &mut false)
        };
        let job = match parsed {
            Ok(job) => job,
            Err(error) => {
                let id = given_id(&bytes);
                say(output, &Event::Error { line, id: id.as_deref(), errors: error.diagnostics() })?;
                continue;
            }
        };
        sampler.restart(sampling.config().seed);
        let mut buffers = Buffers::new(std::slice::from_ref(&job));
        let mut token = |commit: &Commit| say(output, &Event::Token { id: &job.id, commit: *commit });
        let measured = measure(session, &job, eos, &mut sampler, clock, &mut buffers, &mut token);
        if let Err(error) = &measured.finish {
            say(output, &Event::Error { line, id: Some(&job.id), errors: error.diagnostics() })?;
        }
        say(output, &end(&job, measured)?)?;
    }
    Ok(())
}

fn end(job: &Job, measured: Measurement) -> Result<Event<'_>> {
    let Measurement { finish, start_ns, end_ns, completion_tokens, prefill, trace, .. } = measured;
    Ok(Event::End {
        id: &job.id,
        finish: finish?,
        prompt_tokens: job.prompt.len(),
        completion_tokens,
        output_tokens: trace.len(),
        start_ns,
        end_ns,
        prefill,
        extra: &job.extra,
    })
}

/// Writes an event at once. A reader that has gone away is an error of this write.
fn say(output: &mut impl Write, event: &Event<'_>) -> Result<()> {
    let mut line = serde_json::to_string(event).expect("events have only text keys");
    line.push('\n');
    output
        .write_all(line.as_bytes())
        .and_then(|()| output.flush())
        .map_err(|e| Diagnostic::error(Code::Unwritable, format!("cannot write to standard output: {e}")).into())
}

/// The next line without its end, or what of it is not too long; false at the end of the input.
fn next_line(input: &mut impl BufRead, bytes: &mut Vec<u8>) -> Result<bool> {
    let unreadable = |e| Diagnostic::error(Code::Unreadable, format!("cannot read standard input: {e}"));
    bytes.clear();
    let read = input.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', bytes).map_err(unreadable)?;
    if bytes.ends_with(b"\n") {
        bytes.pop();
    } else if read as u64 > LONGEST_LINE {
        input.skip_until(b'\n').map_err(unreadable)?;
    }
    Ok(read > 0)
}

fn too_long() -> Diagnostic {
    Diagnostic::error(Code::BadWorkload, "the line is too long")
        .need(format!("at most {LONGEST_LINE} bytes"))
        .have("more")
}

/// The id of a request that is wrong elsewhere.
fn given_id(bytes: &[u8]) -> Option<String> {
    let object: Object = serde_json::from_slice(bytes).ok()?;
    serde_json::from_str(object.get("id")?).ok()
}
