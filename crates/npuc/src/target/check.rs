//! The check before emission: the only maker of [`Checked`], and emitters take nothing else.

use std::collections::BTreeSet;

use super::ledger;
use super::misfit::fold;
use super::{Misfit, Precision, Target, graph};
use crate::diag::{Code, Diagnostic, Error, Result, Severity};
use crate::ir::{Graph, verify};
use crate::place::{Assignment, Side};

/// A graph that a target takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    graph: Graph,
    target: Target,
    question: Question,
}

impl Checked {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The target that takes it.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What it was checked for.
    pub fn question(&self) -> &Question {
        &self.question
    }
}

/// What a graph is checked for besides the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The formats that the model gets.
    pub precision: Precision,
    /// Flags, without their dashes, that the vendor's compiler will get besides the target's own.
    pub flags: BTreeSet<String>,
    /// Whether the weights of TFLite files lie behind the flatbuffer, whose offsets then bound no file.
    pub outer_buffers: bool,
}

impl Question {
    /// Weights as they are stored, activations in the target's float format, no flags.
    pub fn stored(target: &Target) -> Question {
        Question { precision: Precision::stored(target.float), flags: BTreeSet::new(), outer_buffers: false }
    }

    /// A question about `precision` and flags that lift limits of the target.
    ///
    /// # Errors
    /// [`Code::BadArgument`] for a flag that no rule of the target knows.
    pub fn new(target: &Target, precision: Precision, flags: &[String]) -> Result<Question> {
        let known = target.lifting_flags();
        let flags: BTreeSet<String> = flags.iter().map(|flag| flag.trim_start_matches('-').to_owned()).collect();
        if let Some(unknown) = flags.iter().find(|flag| !known.contains(&flag.as_str())) {
            let need = if known.is_empty() { "no flag".to_owned() } else { format!("one of: {}", known.join(", ")) };
            return Err(Diagnostic::error(Code::BadArgument, format!("no rule of {} knows the flag", target.name))
                .need(need)
                .have(unknown)
                .into());
        }
        Ok(Question { precision, flags, outer_buffers: false })
    }
}

/// What keeps the operations of a verified graph that are placed on the NPU from the target, or is worth knowing about
/// them, apart from memory and counts (see [`ledger`]). Equal ones are folded; errors come first.
pub fn misfits(graph: &Graph, target: &Target, question: &Question, placement: &Assignment) -> Vec<Misfit> {
    fold(graph::misfits(graph, target, question, placement))
}

/// The operations of a graph that are placed on the CPU, as misfits of a model that the NPU has to compute alone.
pub fn fallbacks(graph: &Graph, target: &Target, placement: &Assignment) -> Vec<Misfit> {
    fold(graph::fallbacks(graph, target, placement))
}

/// Checks a graph against a target.
///
/// # Errors
/// What the verifier finds; otherwise all misfits at once.
pub fn check(graph: Graph, target: &Target, question: &Question) -> Result<Checked> {
    verify::verify(&graph)?;
    let memory = ledger::measure(std::slice::from_ref(&graph), target, &question.precision);
    let mut found = graph::misfits(&graph, target, question, &Assignment::by(&graph, |_| Side::Npu));
    found.extend(ledger::misfits(&memory, std::slice::from_ref(&graph), target, question));
    let found = fold(found).into_iter().filter(|misfit| misfit.severity == Severity::Error);
    Error::check(found.map(|misfit| misfit.diagnostic()).collect())?;
    Ok(Checked { graph, target: target.clone(), question: question.clone() })
}
