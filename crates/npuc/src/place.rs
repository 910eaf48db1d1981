//! Placement: which operations of a graph the NPU computes and which the CPU, and the graphs that come of it.
//!
//! Offline compilers refuse a whole file for one operation and choose no other unit themselves, so npuc decides:
//! [`assign`] gives every operation a [`Side`] by rules, [`segments`] cuts the graph where the side changes, and
//! [`bill`] counts what the changes cost.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::diag::{Code, Diagnostic, Error, Result};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::target::Precision;

mod bill;
pub(crate) mod rule;
mod segment;

#[cfg(test)]
mod tests;

pub use bill::{Bill, bill};
pub use rule::{Bound, Condition, Measure, Rule, parse_bytes};
pub use segment::{Segment, segments};

/// Who computes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The chip's NPU.
    Npu,
    /// The CPU beside it, through npuc's own executor.
    Cpu,
}

impl Side {
    /// The name in rules and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Npu => "npu",
            Side::Cpu => "cpu",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Side {
    type Err = Error;

    /// Errors: [`Code::BadArgument`] with the names that there are.
    fn from_str(text: &str) -> Result<Side> {
        [Side::Npu, Side::Cpu].into_iter().find(|side| side.name() == text).ok_or_else(|| {
            Diagnostic::error(Code::BadArgument, format!("`{text}` is no side of a placement"))
                .need("npu or cpu")
                .have(text)
                .into()
        })
    }
}

/// A side for every operation of one graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// By value; `None` for inputs and weights.
    sides: Vec<Option<Side>>,
    /// The places of the rules that hold for no operation of the graph.
    pub idle: Vec<usize>,
}

impl Assignment {
    /// The side that `side` says for each operation.
    pub fn by(graph: &Graph, mut side: impl FnMut(ValueId) -> Side) -> Assignment {
        let is_op = |id: &ValueId| matches!(graph.value(*id).def, Def::Op { .. });
        let sides = graph.ids().map(|id| Some(id).filter(is_op).map(&mut side)).collect();
        Assignment { sides, idle: Vec::new() }
    }

    /// The side of an operation; `None` for inputs, weights and values of another graph.
    pub fn side(&self, id: ValueId) -> Option<Side> {
        self.sides.get(id.index()).copied().flatten()
    }

    /// How many operations are on a side.
    pub fn count(&self, side: Side) -> usize {
        self.sides.iter().filter(|have| **have == Some(side)).count()
    }
}

/// Places every operation of a verified graph: as the last rule says that holds for it, otherwise on the NPU.
///
/// What only moves numbers and has no rule follows the work: it goes to the CPU if all that read it are there, so that a
/// cache that the CPU alone reads does not pass through the NPU; a reshape otherwise goes where its operand is computed.
/// `precision` gives the bytes that rules ask for.
pub fn assign(graph: &Graph, rules: &[Rule], precision: &Precision) -> Assignment {
    let mut idle: Vec<bool> = rules.iter().map(|rule| rule.condition != Condition::Gather).collect();
    let mut sides: Vec<Option<Side>> = Vec::with_capacity(graph.values.len());
    for id in graph.ids() {
        let mut side = None;
        for (rule, idle) in rules.iter().zip(&mut idle).filter(|(rule, _)| rule.holds(graph, id, precision)) {
            *idle = false;
            side = Some(rule.side);
        }
        sides.push(side.or_else(|| match &graph.value(id).def {
            Def::Op { op, .. } => (!op.only_moves()).then_some(Side::Npu),
            Def::Input | Def::Weight => None,
        }));
    }
    follow_readers(graph, &mut sides);
    follow_operands(graph, &mut sides);
    let idle = (0..rules.len()).filter(|&rule| idle[rule]).collect();
    Assignment { sides, idle }
}

/// Places what has no side yet and is read by the CPU alone.
fn follow_readers(graph: &Graph, sides: &mut [Option<Side>]) {
    // Whether a value is read, and whether the CPU alone reads it; what leaves is read by whoever comes next.
    let mut readers = vec![(false, true); graph.values.len()];
    graph.outputs.iter().for_each(|output| readers[output.value.index()] = (true, false));
    for (index, value) in graph.values.iter().enumerate().rev() {
        let Def::Op { op: _, args } = &value.def else { continue };
        if sides[index].is_none() && readers[index] == (true, true) {
            sides[index] = Some(Side::Cpu);
        }
        for arg in args {
            let reader = &mut readers[arg.index()];
            *reader = (true, reader.1 && sides[index] == Some(Side::Cpu));
        }
    }
}

/// Places what has no side yet: reshapes where their operands are computed, all else on the NPU.
fn follow_operands(graph: &Graph, sides: &mut [Option<Side>]) {
    for (index, value) in graph.values.iter().enumerate() {
        let Def::Op { op, args } = &value.def else { continue };
        let reshaped = args.first().filter(|_| matches!(op, Op::Reshape { .. }));
        let of_operand = reshaped.and_then(|arg| sides[arg.index()]);
        sides[index].get_or_insert(of_operand.unwrap_or(Side::Npu));
    }
}
