//! What does not fit, with all the places of equal ones.

use std::collections::BTreeMap;

use serde::Serialize;

use super::rule::{Grade, Remedy};
use crate::diag::{Code, Diagnostic, Severity};
use crate::ir::{Graph, ValueId, text};

/// A place in the text of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The graph.
    pub graph: String,
    /// The 1-based line of its text.
    pub line: usize,
    /// The path in the model, or the name of the graph.
    pub path: String,
    /// The line itself.
    pub text: String,
}

impl Place {
    /// The line that defines a value.
    pub(crate) fn value(graph: &Graph, id: ValueId) -> Place {
        let value = graph.value(id);
        Place {
            graph: graph.name.clone(),
            line: text::value_line(id),
            path: value.name.clone(),
            text: text::value_text(graph, id),
        }
    }
}

/// One rule that is broken, at one or more places that are equal but for their layer and step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Misfit {
    /// Whether it keeps the model from the target.
    pub severity: Severity,
    /// The kind of limit.
    pub code: Code,
    /// The rule's name in the target file.
    pub rule: String,
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// The unit it is about.
    pub unit: String,
    /// What is allowed.
    pub limit: String,
    /// What was found at the first place.
    pub actual: String,
    /// What happens if nothing is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Where the rule comes from.
    pub source: String,
    /// How well it is founded.
    pub grade: Grade,
    /// What mends it, the cheapest first.
    pub remedies: Vec<Remedy>,
    /// Where, at least once.
    pub places: Vec<Place>,
}

impl Misfit {
    /// The same as an error or warning of npuc.
    pub fn diagnostic(&self) -> Diagnostic {
        let mut diagnostic = Diagnostic::error(self.code, self.message.clone());
        diagnostic.severity = self.severity;
        if let Some(place) = self.places.first() {
            diagnostic = diagnostic.line(place.line).subject(format!("{} ({})", place.path, place.graph));
        }
        let source = format!("{} ({}: {})", self.limit, self.grade.name(), self.source);
        diagnostic = diagnostic.need(source).have(&self.actual);
        self.remedies.iter().fold(diagnostic, |diagnostic, remedy| diagnostic.help(remedy.to_string()))
    }
}

/// Folds misfits that say the same of several places, whatever layer or step those belong to. Errors come first,
/// otherwise the order stays.
pub(crate) fn fold(misfits: Vec<Misfit>) -> Vec<Misfit> {
    let mut folded: Vec<Misfit> = Vec::new();
    let mut known: BTreeMap<(Severity, String, String, Vec<Remedy>), usize> = BTreeMap::new();
    for mut misfit in misfits {
        misfit.remedies.sort_by_key(|remedy| remedy.cost);
        let said = (misfit.severity, misfit.rule.clone(), misfit.message.clone(), misfit.remedies.clone());
        match known.get(&said) {
            Some(&at) => folded[at].places.append(&mut misfit.places),
            None => {
                known.insert(said, folded.len());
                folded.push(misfit);
            }
        }
    }
    folded.sort_by_key(|misfit| misfit.severity);
    folded
}

/// How much a remedy's text may say of a list.
const SHOWN: usize = 4;

/// A list of numbers for people: equal ones are counted, long lists cut short.
pub(super) fn sizes(parts: &[usize]) -> String {
    match parts {
        [first, rest @ ..] if rest.iter().all(|part| part == first) => format!("{} parts of {first}", parts.len()),
        _ => {
            let shown: Vec<String> = parts.iter().take(SHOWN).map(usize::to_string).collect();
            let more = if parts.len() > SHOWN { ", …" } else { "" };
            format!("{} parts of {}{more}", parts.len(), shown.join(", "))
        }
    }
}
