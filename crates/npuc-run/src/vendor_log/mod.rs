//! Answers and logs of vendors' compilers and runtimes: what was said, what it means, what helps, which operation.
//!
//! The grammars are not public. Reading is lenient: nothing fails on unknown text, and the lines themselves are kept.

use std::borrow::Cow;
use std::collections::BTreeMap;

use npuc::target::Grade;
use npuc::target::rule::Remedy;
use serde::Serialize;

mod facts;
mod iree;
mod locate;
mod mediatek;
mod qnn;
mod remedies;
mod report;
mod tensors;
mod torq;

#[cfg(test)]
mod tests;

pub use facts::Kind;
pub use locate::{locate, locate_all};
pub use report::{diagnostic, last_lines};

/// How long the list of a finding's values grows; the lines themselves are all kept.
const MAX_ACTUAL_BYTES: usize = 200;

/// What a statement is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// A reason why the tool stopped.
    Refusal,
    /// What follows from another reason.
    Consequence,
    /// Worth knowing; nothing stopped.
    Note,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said {
    /// Its 1-based number.
    pub line: usize,
    /// Its text.
    pub text: String,
}

/// An operation that the log speaks of, as far as the log tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// The built-in operator's name, e.g. `FULLY_CONNECTED`.
    pub builtin: String,
    /// The tool's own number of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// The extents of operands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operands: Vec<Vec<usize>>,
    /// The extents of results.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<Vec<usize>>,
    /// Extents of tensors that the log does not call operand or result.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<Vec<usize>>,
    /// What may be names of tensors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The name of the node itself, which is that of its first result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl Operation {
    /// All extents that the log gives for it.
    pub fn shapes(&self) -> impl Iterator<Item = &Vec<usize>> {
        self.operands.iter().chain(&self.results).chain(&self.tensors)
    }
}

/// One thing that a log says, with every line that says it and every operation it says it of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of statement it is.
    pub kind: Kind,
    /// The tool that says it.
    pub tool: &'static str,
    /// What it is worth.
    pub weight: Weight,
    /// What is said, in npuc's words, in one sentence without a full stop.
    pub message: String,
    /// The lines, at least one.
    pub said: Vec<Said>,
    /// The operations, where the log names them; they are equal but for their numbers and names.
    pub operations: Vec<Operation>,
    /// The largest extent that is allowed, for limits of extents.
    #[serde(skip)]
    pub max_extent: Option<usize>,
    /// What is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// What was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual: Option<String>,
    /// What it means.
    pub meaning: &'static str,
    /// What helps, the cheapest first.
    pub remedies: Vec<Remedy>,
    /// Where meaning and remedies come from.
    pub source: &'static str,
    /// How well that is founded.
    pub grade: Grade,
}

/// What one line says.
#[derive(Clone, Debug)]
struct Statement {
    kind: Kind,
    message: String,
    /// Whether the MDLA says it.
    main_unit: bool,
    /// The error code, if nothing but a code says it.
    code: Option<u64>,
    max_extent: Option<usize>,
    limit: Option<String>,
    actual: Option<String>,
}

impl Statement {
    fn new(kind: Kind, message: impl Into<String>) -> Statement {
        let message = message.into();
        Statement { kind, message, main_unit: false, code: None, max_extent: None, limit: None, actual: None }
    }

    fn limit(mut self, limit: impl ToString) -> Statement {
        self.limit = Some(limit.to_string());
        self
    }

    fn actual(mut self, actual: impl ToString) -> Statement {
        self.actual = Some(actual.to_string());
        self
    }
}

/// Everything that npuc recognises in a log: reasons first, then what follows from them, then what is only worth
/// knowing, each in the order of the log. Equal statements about equal operations are one finding. Nothing is
/// found in text of no known tool.
pub fn decode(text: &str) -> Vec<Finding> {
    let mut operations: Vec<Operation> = Vec::new();
    let mut statements: Vec<(Statement, Said, Option<usize>)> = Vec::new();
    let mut current: Option<usize> = None;
    let lines: Vec<Cow<'_, str>> = text.lines().map(without_colours).collect();
    for (index, line) in lines.iter().enumerate() {
        let line = &line[..];
        if line.trim().is_empty() {
            current = None;
            continue;
        }
        let statement = mediatek::read(line).or_else(|| qnn::read(line)).or_else(|| torq::read(line));
        let statement = statement.or_else(|| iree::read(line));
        if let Some(heading) = mediatek::heading(line) {
            current = Some(operations.len());
            operations.push(heading);
        }
        if let Some(current) = current {
            tensors::read(line, &mut operations[current]);
        }
        if let Some(statement) = statement {
            let of = current.filter(|_| statement.kind.about_operation());
            statements.push((statement, Said { line: index + 1, text: line.trim_end().to_owned() }, of));
        }
    }
    mediatek::weigh_units(&mut statements);
    qnn::complete(&lines, &mut statements, &mut operations);
    fold(statements, &operations)
}

/// The line without the sequences that colour it on a terminal (`ESC [ … letter`).
fn without_colours(line: &str) -> Cow<'_, str> {
    if !line.contains('\u{1b}') {
        return Cow::Borrowed(line);
    }
    let mut parts = line.split("\u{1b}[");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').get(1..).unwrap_or_default());
    }
    Cow::Owned(text)
}

/// Equal statements about equal operations as one finding each.
fn fold(statements: Vec<(Statement, Said, Option<usize>)>, operations: &[Operation]) -> Vec<Finding> {
    let alike = alike(operations);
    let mut findings: Vec<Finding> = Vec::new();
    let mut known: BTreeMap<_, (usize, Option<usize>)> = BTreeMap::new();
    for (statement, said, of) in statements {
        // A value belongs to its limit; values without one are told together.
        let bound = statement.limit.clone().map(|limit| (limit, statement.actual.clone()));
        let key = (statement.kind, statement.message.clone(), bound, of.map(|of| alike[of]));
        let actual = statement.actual.clone();
        let (at, last) = known.entry(key).or_insert_with(|| {
            findings.push(finding(statement));
            (findings.len() - 1, None)
        });
        let found = &mut findings[*at];
        add_actual(found, actual);
        found.said.push(said);
        if let Some(of) = of.filter(|of| *last != Some(*of)) {
            found.operations.push(operations[of].clone());
            *last = Some(of);
        }
    }
    findings.iter_mut().for_each(remedies::complete);
    findings.sort_by_key(|finding| finding.weight);
    findings
}

/// The first operation that each is equal to but for numbers and names.
fn alike(operations: &[Operation]) -> Vec<usize> {
    let mut known = BTreeMap::new();
    let first = operations.iter().enumerate().map(|(at, operation)| {
        let Operation { builtin, operands, results, tensors, index: _, names: _, node: _ } = operation;
        *known.entry((builtin, operands, results, tensors)).or_insert(at)
    });
    first.collect()
}

/// Adds a value that another line gives, unless it is told.
fn add_actual(finding: &mut Finding, actual: Option<String>) {
    let Some(actual) = actual else { return };
    let told = finding.actual.get_or_insert_with(|| actual.clone());
    if told.len() < MAX_ACTUAL_BYTES && !told.split("; ").any(|known| known == actual) {
        told.push_str("; ");
        told.push_str(&actual);
    }
}

fn finding(statement: Statement) -> Finding {
    let Statement { kind, message, main_unit: _, code: _, max_extent, limit, actual } = statement;
    let facts = kind.facts();
    Finding {
        kind,
        tool: facts.tool,
        weight: facts.weight,
        message,
        said: Vec::new(),
        operations: Vec::new(),
        max_extent,
        limit,
        actual,
        meaning: facts.meaning,
        remedies: Vec::new(),
        source: facts.source,
        grade: facts.grade,
    }
}
