//! Measured requests as audit and report see them, whatever file they are from. What a file does not say is `None`.

use std::path::{Path, PathBuf};

use npuc::{Code, Diagnostic, Result};
use npuc_run::generate::Finish;

use crate::read::{Line, LineFault, Scan, scan_file};
use crate::record::{Class, Dropped, End, Header, PrefillStep, Record, Sample, Status};

/// The form of a result file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// npuc's own.
    Npuc,
    /// A line a request with `token_trace[].device_commit_ns`.
    Trace,
    /// One object with `ttfts` and `itls`, as vLLM's benchmark writes it.
    Vllm,
    /// One object with `benchmarks[].requests`, as GuideLLM writes it.
    GuideLlm,
    /// What `--map` says.
    Mapped,
}

impl Form {
    /// What a report calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Npuc => "npuc",
            Form::Trace => "trace JSONL",
            Form::Vllm => "vLLM JSON",
            Form::GuideLlm => "GuideLLM JSON",
            Form::Mapped => "mapped JSON",
        }
    }
}

/// A token's place, id and time, as far as the file has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its place in the answer by the file's count.
    pub index: Option<i64>,
    /// Which one.
    pub id: Option<u32>,
    /// When it was known, by the clock of `start_ns`.
    pub ns: i64,
}

/// The times of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Times {
    /// Of every token.
    Tokens(Vec<Token>),
    /// Of every piece of the answer that arrived at once, which may have several tokens.
    Pieces(Vec<i64>),
    /// Of the first and the last token.
    Ends {
        /// The first.
        first_ns: i64,
        /// The last.
        last_ns: i64,
    },
    /// None.
    Absent,
}

/// A request that was measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// The 1-based line; in files that are one object, the place among the requests.
    pub line: usize,
    /// The segment it is in.
    pub segment: usize,
    /// Its place in the workload, from 0.
    pub index: Option<usize>,
    /// Its name.
    pub id: Option<String>,
    /// Where the prompt is from.
    pub dataset: Option<String>,
    /// Whether it was measured to its end.
    pub status: Status,
    /// Why the answer ended.
    pub finish: Option<Finish>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// The hash of the prompt's ids.
    pub prompt_sha256: Option<String>,
    /// The most tokens of the answer.
    pub max_new_tokens: Option<u64>,
    /// Whether ids that end an answer do not.
    pub ignore_eos: Option<bool>,
    /// Tokens of the answer, counted one way.
    pub completion_tokens: Option<u64>,
    /// Tokens of the answer, counted another way.
    pub output_tokens: Option<u64>,
    /// When it began.
    pub start_ns: Option<i64>,
    /// When it had ended.
    pub end_ns: Option<i64>,
    /// When it began by the wall clock, which may be set meanwhile.
    pub start_wall_ns: Option<i64>,
    /// How long it took by another clock.
    pub wall_ns: Option<i64>,
    /// The times of the answer.
    pub times: Times,
    /// The steps of the prompt.
    pub prefill: Vec<PrefillStep>,
    /// Readings of sensors.
    pub samples: Vec<Sample>,
}

/// A result file.
#[derive(Clone, Debug)]
pub struct Results {
    /// The file.
    pub path: PathBuf,
    /// Its form.
    pub form: Form,
    /// What computed.
    pub class: Class,
    /// The same in the file's words.
    pub measured_on: String,
    /// The segments' headers with their lines.
    pub headers: Vec<(usize, Header)>,
    /// The requests in the order of the file, failed ones too.
    pub requests: Vec<Request>,
    /// The last lines that say a run is complete.
    pub ends: Vec<(usize, End)>,
    /// How many requests there should be.
    pub planned: Option<usize>,
    /// What is wrong with lines.
    pub line_faults: Vec<(usize, LineFault)>,
    /// What is behind the last whole line.
    pub torn: Option<Dropped>,
}

impl Request {
    /// The times of tokens or pieces, in the order of the file.
    pub fn commits_ns(&self) -> Vec<i64> {
        match &self.times {
            Times::Tokens(tokens) => tokens.iter().map(|token| token.ns).collect(),
            Times::Pieces(times) => times.clone(),
            Times::Ends { first_ns, last_ns } => vec![*first_ns, *last_ns],
            Times::Absent => Vec::new(),
        }
    }

    /// From the start to the first token.
    pub fn ttft_ns(&self) -> Option<i64> {
        Some(self.commits_ns().first()? - self.start_ns?)
    }

    /// From the start to the last token.
    pub fn e2el_ns(&self) -> Option<i64> {
        Some(self.commits_ns().last()? - self.start_ns?)
    }

    /// Tokens of the answer: those with times, or what the file counts.
    pub fn tokens(&self) -> Option<u64> {
        match &self.times {
            Times::Tokens(tokens) => Some(tokens.len() as u64),
            Times::Pieces(_) | Times::Ends { .. } | Times::Absent => self.output_tokens.or(self.completion_tokens),
        }
    }

    /// The times between tokens or pieces; none where only the first and the last are known.
    pub fn intervals_ns(&self) -> Vec<i64> {
        match &self.times {
            Times::Tokens(_) | Times::Pieces(_) => self.commits_ns().windows(2).map(|pair| pair[1] - pair[0]).collect(),
            Times::Ends { .. } | Times::Absent => Vec::new(),
        }
    }

    /// The mean time between tokens after the first, in ns; none for answers of fewer than two.
    pub fn tpot_ns(&self) -> Option<f64> {
        let commits = self.commits_ns();
        let intervals = self.tokens()?.checked_sub(1).filter(|&intervals| intervals > 0)?;
        Some((commits.last()? - commits.first()?) as f64 / intervals as f64)
    }

    /// How a message names the request.
    pub fn name(&self) -> String {
        self.id.clone().map_or_else(|| format!("request {}", self.line), |id| format!("request `{id}`"))
    }
}

impl Results {
    /// The requests that statistics are made of.
    pub fn complete(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|request| request.status == Status::Complete)
    }

    /// What stands beside every figure: what computed, and the file's words where they say more.
    pub fn label(&self) -> String {
        if self.class.name() == self.measured_on {
            return self.measured_on.clone();
        }
        format!("{}: {}", self.class, self.measured_on)
    }

    /// The segments that have complete requests.
    pub fn segments(&self) -> usize {
        let mut segments: Vec<usize> = self.complete().map(|request| request.segment).collect();
        segments.dedup();
        segments.len()
    }

    /// The state in words, with what a limit left out.
    pub fn state_text(&self) -> String {
        let state = self.state();
        match self.headers.first().map(|(_, header)| &header.plan.workload) {
            Some(workload) if workload.planned != workload.requests => {
                format!("{state}, {} of {} requests by --limit", workload.planned, workload.requests)
            }
            Some(_) | None => state.to_string(),
        }
    }

    /// How often the run was begun, and how many attempts failed.
    pub fn attempts_text(&self) -> String {
        let failed = self.requests.iter().filter(|request| request.status == Status::Failed).count();
        format!("begun {} times, {failed} attempts failed", self.headers.len())
    }

    /// Whether statistics may be taken for those of one whole run.
    pub fn state(&self) -> State {
        let complete = self.complete().count();
        let planned = self.planned.unwrap_or(self.requests.len());
        let has_end = self.form != Form::Npuc || !self.ends.is_empty();
        if complete < planned || !has_end {
            State::Incomplete { complete, planned }
        } else if self.segments() > 1 {
            State::Segmented { segments: self.segments() }
        } else {
            State::Complete
        }
    }
}

/// How whole a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All requests, in one go.
    Complete,
    /// All requests, in several processes.
    Segmented {
        /// How many.
        segments: usize,
    },
    /// Not all requests, or no last line that says so.
    Incomplete {
        /// Requests that are complete.
        complete: usize,
        /// Requests that there should be.
        planned: usize,
    },
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            State::Complete => f.write_str("complete"),
            State::Segmented { segments } => write!(f, "segmented ({segments} segments)"),
            State::Incomplete { complete, planned } => write!(f, "incomplete ({complete} of {planned})"),
        }
    }
}

/// Reads a file of npuc's own form.
///
/// Errors: it cannot be read, or has no line that can.
pub fn read(path: &Path) -> Result<Results> {
    let Scan { lines, faults, torn, .. } = scan_file(path)?;
    let mut results = Results {
        path: path.to_path_buf(),
        form: Form::Npuc,
        class: Class::Unstated,
        measured_on: "unstated".into(),
        headers: Vec::new(),
        requests: Vec::new(),
        ends: Vec::new(),
        planned: None,
        line_faults: faults,
        torn,
    };
    for (number, line) in lines {
        match line {
            Line::Header(header) => results.headers.push((number, *header)),
            Line::Request(record) => results.requests.push(request(number, *record)),
            Line::End(end) => results.ends.push((number, end)),
        }
    }
    let Some((_, header)) = results.headers.first() else {
        let fault = Diagnostic::error(Code::BadRun, "the file has no header of a measurement").file(path);
        let fault = fault.need("a result file of `npuc bench`, or one that --map describes");
        return Err(fault.help("see docs/workload.md for the forms that are read").into());
    };
    results.class = header.plan.class;
    results.measured_on = header.plan.measured_on.clone();
    results.planned = Some(header.plan.workload.planned);
    Ok(results)
}

fn request(line: usize, record: Record) -> Request {
    let ns = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    let tokens = record.token_trace.iter().map(|commit| Token {
        index: i64::try_from(commit.token_index).ok(),
        id: Some(commit.token_id),
        ns: ns(commit.commit_ns),
    });
    let tokens = tokens.collect();
    let wall_us = ns(record.end_unix_us).checked_sub(ns(record.start_unix_us));
    Request {
        line,
        segment: record.segment,
        index: Some(record.index),
        id: Some(record.id),
        dataset: Some(record.dataset),
        status: record.status,
        finish: record.finish,
        prompt_tokens: Some(record.prompt_tokens as u64),
        prompt_sha256: Some(record.prompt_sha256),
        max_new_tokens: Some(record.max_new_tokens as u64),
        ignore_eos: Some(record.ignore_eos),
        completion_tokens: Some(record.completion_tokens as u64),
        output_tokens: Some(record.output_tokens as u64),
        start_ns: Some(ns(record.start_ns)),
        end_ns: Some(ns(record.end_ns)),
        start_wall_ns: ns(record.start_unix_us).checked_mul(1000),
        wall_ns: wall_us.and_then(|us| us.checked_mul(1000)),
        times: Times::Tokens(tokens),
        prefill: record.prefill,
        samples: record.samples,
    }
}
