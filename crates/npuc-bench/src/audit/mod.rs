//! The audit: every way in which a result file can be wrong that its own content, the workload or the clock can show.
//!
//! A check that a file has no fields for is named with the reason; nothing passes because it was not looked at.

use serde::Serialize;

use crate::results::Results;
use crate::workload::Workload;

mod answers;
mod drift;
mod gaps;
mod headers;
mod order;
mod times;

pub use drift::Drift;

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Each line is as it was written, and follows the one before.
    Chain,
    /// Headers, segments and the last line agree with the lines between.
    Structure,
    /// Requests are in the order of the workload.
    Order,
    /// No request is there twice.
    Duplicates,
    /// Every request is there.
    Complete,
    /// A request is complete or says what failed.
    Status,
    /// All counts of an answer's tokens agree.
    Tokens,
    /// Tokens are counted 0, 1, 2, …
    Indices,
    /// Times rise from the start through steps and tokens to the end.
    Times,
    /// An answer ends where its rules say.
    Eos,
    /// Ids are in the vocabulary.
    Ids,
    /// Times add up to what the wall clock says.
    WallTime,
    /// No request begins before the one before has ended.
    Serial,
    /// Requests are those of the workload.
    Workload,
    /// The time per token stays the same over the run and over positions.
    Drift,
    /// No interval is far from the others.
    Outliers,
    /// All segments ran on one machine.
    Machine,
}

impl Check {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Check::Chain => "chain",
            Check::Structure => "structure",
            Check::Order => "order",
            Check::Duplicates => "duplicates",
            Check::Complete => "complete",
            Check::Status => "status",
            Check::Tokens => "tokens",
            Check::Indices => "indices",
            Check::Times => "times",
            Check::Eos => "eos",
            Check::Ids => "ids",
            Check::WallTime => "wall-time",
            Check::Serial => "serial",
            Check::Workload => "workload",
            Check::Drift => "drift",
            Check::Outliers => "outliers",
            Check::Machine => "machine",
        }
    }
}

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// The figures cannot be trusted.
    Fault,
    /// The reader should know.
    Note,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check.
    pub check: Check,
    /// Its weight.
    pub grade: Grade,
    /// The line it is about; the place of the request in files that are one object.
    pub line: Option<usize>,
    /// What was found, with need and have.
    pub message: String,
}

/// A check that could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unchecked {
    /// The check.
    pub check: Check,
    /// Why.
    pub why: String,
}

/// What an audit found.
#[derive(Clone, Debug, Serialize)]
pub struct Audit {
    /// How whole the run is, in words.
    pub state: String,
    /// What was found, by line.
    pub findings: Vec<Finding>,
    /// What was not looked at.
    pub unchecked: Vec<Unchecked>,
    /// How the time per token changes; absent where there are too few intervals.
    pub drift: Option<Drift>,
}

impl Audit {
    /// Whether nothing was found that makes figures wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.grade == Grade::Note)
    }

    /// The faults, without that of a run that is only not complete.
    pub fn faults_but_incomplete(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.grade == Grade::Fault && finding.check != Check::Complete)
    }
}

/// What the checks write into.
#[derive(Default)]
pub(crate) struct Book {
    findings: Vec<Finding>,
    unchecked: Vec<Unchecked>,
}

impl Book {
    pub(crate) fn fault(&mut self, check: Check, line: impl Into<Option<usize>>, message: impl Into<String>) {
        self.findings.push(Finding { check, grade: Grade::Fault, line: line.into(), message: message.into() });
    }

    pub(crate) fn note(&mut self, check: Check, line: impl Into<Option<usize>>, message: impl Into<String>) {
        self.findings.push(Finding { check, grade: Grade::Note, line: line.into(), message: message.into() });
    }

    pub(crate) fn unchecked(&mut self, check: Check, why: impl Into<String>) {
        self.unchecked.push(Unchecked { check, why: why.into() });
    }
}

/// Looks at everything. `workload` is what should have been measured, if the user has it.
pub fn audit(results: &Results, workload: Option<&Workload>) -> Audit {
    let mut book = Book::default();
    order::chain(results, &mut book);
    order::structure(results, &mut book);
    headers::headers(results, &mut book);
    order::order(results, &mut book);
    order::complete(results, &mut book);
    order::workload(results, workload, &mut book);
    answers::answers(results, &mut book);
    times::times(results, &mut book);
    gaps::gaps(results, &mut book);
    let drift = drift::drift(results, &mut book);
    let Book { mut findings, unchecked } = book;
    findings.sort_by_key(|finding| (finding.line.unwrap_or(usize::MAX), finding.check));
    Audit { state: results.state().to_string(), findings, unchecked, drift }
}
