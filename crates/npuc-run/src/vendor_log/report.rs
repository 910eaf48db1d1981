//! Findings as one of npuc's own messages.

use std::path::Path;

use npuc::target::Place;
use npuc::{Code, Diagnostic};

use super::{Finding, Operation, Weight};

/// How many lines of a log a message gives.
const LOG_LINES: usize = 12;
/// How many places a message gives.
const SHOWN_PLACES: usize = 3;

/// The refusal that a log states, with all its reasons and what helps; `None` if there is no reason in it.
/// `places` are those of [`super::locate_all`], and may be empty.
pub fn diagnostic(findings: &[Finding], places: &[Vec<Place>], log: &Path) -> Option<Diagnostic> {
    let weight = findings.iter().map(|finding| finding.weight).min().filter(|weight| *weight != Weight::Note)?;
    let reasons: Vec<(usize, &Finding)> =
        findings.iter().enumerate().filter(|(_, finding)| finding.weight == weight).collect();
    let (first, reason) = *reasons.first()?;
    let mut diagnostic =
        Diagnostic::error(Code::VendorRefusal, format!("{}: {}", reason.tool, reason.message)).file(log);
    if let Some(said) = reason.said.first() {
        diagnostic = diagnostic.line(said.line);
    }
    if let Some(subject) = subject(reason, places.get(first).map_or(&[], Vec::as_slice)) {
        diagnostic = diagnostic.subject(subject);
    }
    if let Some(limit) = &reason.limit {
        diagnostic = diagnostic.need(format!("{limit} ({}: {})", reason.grade.name(), reason.source));
    }
    if let Some(actual) = &reason.actual {
        diagnostic = diagnostic.have(actual);
    }
    for (index, other) in reasons.iter().skip(1) {
        let subject = subject(other, places.get(*index).map_or(&[], Vec::as_slice));
        let of = subject.map(|subject| format!(", at {subject}")).unwrap_or_default();
        diagnostic = diagnostic.help(format!("also: {}{of}", other.message));
    }
    let mut said: Vec<String> = Vec::new();
    for remedy in reasons.iter().flat_map(|(_, reason)| &reason.remedies).map(ToString::to_string) {
        if !said.contains(&remedy) {
            said.push(remedy);
        }
    }
    let diagnostic = said.into_iter().fold(diagnostic, Diagnostic::help);
    Some(diagnostic.help(format!("`npuc explain {}` tells the whole answer", log.display())))
}

/// What a finding is about: places in graphs, or else the tool's name of the operation.
fn subject(finding: &Finding, places: &[Place]) -> Option<String> {
    let shown =
        places.iter().take(SHOWN_PLACES).map(|place| format!("{} ({}.ir:{})", place.path, place.graph, place.line));
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() {
        let name = |operation: &Operation| operation.node.as_ref().unwrap_or(&operation.builtin).clone();
        return finding.operations.first().map(name);
    }
    let more = places.len() - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("{}{more}", shown.join(", ")))
}

/// The lines of a log that say most, cut to a readable length: the first with an error where a compiler prints what it works on
/// behind each, otherwise the last that are not blank.
pub fn last_lines(log: &str) -> Vec<&str> {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let errors: Vec<&str> = lines.iter().copied().filter(|line| line.contains(": error: ")).take(LOG_LINES).collect();
    let told = match errors.is_empty() || lines.len() <= LOG_LINES {
        true => &lines[lines.len().saturating_sub(LOG_LINES)..],
        false => &errors[..],
    };
    let cut = |line: &&str| line.char_indices().nth(LINE_CHARS).map_or(line.len(), |(end, _)| end);
    told.iter().map(|line| &line[..cut(line)]).collect()
}

/// How much of a line is shown: compilers print whole programs into one.
const LINE_CHARS: usize = 400;
