//! The measurement of one request. Between two tokens nothing is allocated and nothing is written.

use std::collections::BTreeSet;

use npuc::{Code, Diagnostic, Result};
use npuc_run::generate::Finish;
use npuc_run::session::Session;
use npuc_run::text::Sampler;

use crate::clock::Clock;
use crate::record::{Commit, PrefillStep};
use crate::workload::Job;

/// Room for what is measured, made before the first request.
pub struct Buffers {
    prefill: Vec<PrefillStep>,
    trace: Vec<Commit>,
}

impl Buffers {
    /// Room for the largest of the requests.
    pub fn new(jobs: &[Job]) -> Buffers {
        let most = |of: fn(&Job) -> usize| jobs.iter().map(of).max().unwrap_or(0);
        Buffers {
            prefill: Vec::with_capacity(most(|job| job.prompt.len())),
            trace: Vec::with_capacity(most(|job| job.max_new_tokens)),
        }
    }
}

/// What was measured of a request.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Why the answer ended; what failed.
    pub finish: Result<Finish>,
    /// When the first step began.
    pub start_ns: u64,
    /// When the answer had ended.
    pub end_ns: u64,
    /// The same by the wall clock, in microseconds since 1970.
    pub start_unix_us: u64,
    /// See `start_unix_us`.
    pub end_unix_us: u64,
    /// Tokens of the answer by the session's rows.
    pub completion_tokens: usize,
    /// The steps of the prompt.
    pub prefill: Vec<PrefillStep>,
    /// The tokens.
    pub trace: Vec<Commit>,
}

/// Answers a request from an empty cache. A token counts from when the sampler has chosen it; `on_token` is called right after.
///
/// What fails is told in the measurement, with the tokens until then: the back end, scores that are no numbers, a clock that
/// does not rise from token to token, `on_token`.
pub fn measure(
    session: &mut Session,
    job: &Job,
    eos: &BTreeSet<u32>,
    sampler: &mut Sampler,
    clock: &impl Clock,
    buffers: &mut Buffers,
    on_token: &mut impl FnMut(&Commit) -> Result<()>,
) -> Measurement {
    let Buffers { prefill, trace } = buffers;
    prefill.clear();
    trace.clear();
    session.reset();
    let start_unix_us = clock.unix_us();
    let start_ns = clock.now_ns();
    let fed = session.prefill(&job.prompt, |tokens, valid| {
        prefill.push(PrefillStep { tokens, valid, end_ns: clock.now_ns() });
    });
    let answered = fed.and_then(|()| decode(session, job, eos, sampler, clock, trace, on_token));
    let end_ns = clock.now_ns();
    let end_unix_us = clock.unix_us();
    let finish = answered.and_then(|finish| rising(start_ns, end_ns, trace).map(|()| finish));
    // The last token was drawn but never fed, so it has no row.
    let answered_rows = session.position().checked_sub(job.prompt.len());
    let completion_tokens = if trace.is_empty() { 0 } else { answered_rows.map_or(0, |rows| rows + 1) };
    Measurement {
        finish,
        start_ns,
        end_ns,
        start_unix_us,
        end_unix_us,
        completion_tokens,
        prefill: prefill.clone(),
        trace: trace.clone(),
    }
}

fn decode(
    session: &mut Session,
    job: &Job,
    eos: &BTreeSet<u32>,
    sampler: &mut Sampler,
    clock: &impl Clock,
    trace: &mut Vec<Commit>,
    on_token: &mut impl FnMut(&Commit) -> Result<()>,
) -> Result<Finish> {
    loop {
        let logits = session.logits();
        let logits = logits.ok_or_else(|| Diagnostic::error(Code::BadArgument, "the prompt has no tokens"))?;
        let token_id = sampler.sample(logits)?;
        let commit = Commit { token_index: trace.len(), token_id, commit_ns: clock.now_ns() };
        trace.push(commit);
        on_token(&commit)?;
        if eos.contains(&token_id) && !job.ignore_eos {
            return Ok(Finish::Eos);
        }
        if trace.len() == job.max_new_tokens {
            return Ok(Finish::MaxNew);
        }
        session.decode(token_id)?;
    }
}

/// Latencies are differences of times; where these do not rise, there are none.
fn rising(start_ns: u64, end_ns: u64, trace: &[Commit]) -> Result<()> {
    let mut last = start_ns;
    for commit in trace {
        if commit.commit_ns <= last {
            return Err(backwards(commit.commit_ns, last).subject(format!("token {}", commit.token_index)).into());
        }
        last = commit.commit_ns;
    }
    if end_ns < last { Err(backwards(end_ns, last).subject("the answer's end").into()) } else { Ok(()) }
}

fn backwards(have: u64, last: u64) -> Diagnostic {
    Diagnostic::error(Code::ToolFailed, "the clock of this machine does not rise")
        .need(format!("more than {last} ns, the time before"))
        .have(format!("{have} ns"))
        .help("measure on a machine whose CLOCK_MONOTONIC is sound")
}
