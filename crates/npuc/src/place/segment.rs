//! Cutting a graph where the side changes, into graphs that are computed one after the other.

use std::collections::{BTreeMap, BTreeSet};

use super::{Assignment, Side};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::ir::verify::verify;
use crate::ir::{Def, Graph, Op, Output, Value, ValueId};
use crate::model::Port;

/// A part of a graph that one side computes without the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Who computes it.
    pub side: Side,
    /// Its graph. It takes those input ports and weights of the whole graph that it uses, under their names, and
    /// results of earlier segments as [`Port::Cross`]; it gives outputs of the whole graph under their names, and what
    /// later segments take as [`Port::Cross`], whose number is the value's in the whole graph, where a reshape of an input that
    /// both sides read stands once for each. Every output is a
    /// result of its own: a value that leaves under a further name leaves through a reshape that changes nothing,
    /// which `simplify` would drop.
    pub graph: Graph,
}

/// The graph as segments in the order of execution, named `<graph>.s<place>`. The sides alternate, and there are as
/// few as possible: an operation is in the first segment of its side that has, or comes after, all its operands, and
/// the side that begins is the one that makes fewer segments. Operations that no output needs are left out, and so
/// are inputs that no operation reads.
///
/// # Errors
/// What the verifier finds; an assignment of another graph ([`Code::IrInvalid`]); an output that is an input
/// or weight, which no segment computes ([`Code::Misfit`]); a graph that is a segment ([`Code::IrInvalid`]).
pub fn segments(graph: &Graph, assignment: &Assignment) -> Result<Vec<Segment>> {
    verify(graph)?;
    check_ports(graph)?;
    let (graph, assignment) = &with_own_reshapes(graph, assignment);
    let [npu_first, cpu_first] = [Side::Npu, Side::Cpu].map(|first| levels(graph, assignment, first));
    let (npu_first, cpu_first) = (npu_first?, cpu_first?);
    let (first, levels) =
        if count(&cpu_first) < count(&npu_first) { (Side::Cpu, cpu_first) } else { (Side::Npu, npu_first) };
    let leaving = leaving(graph, &levels);
    let mut by_level: BTreeMap<usize, Vec<ValueId>> = BTreeMap::new();
    for id in graph.ids() {
        if let Some(level) = levels[id.index()] {
            by_level.entry(level).or_default().push(id);
        }
    }
    let whole = Whole { graph, leaving: &leaving };
    let segment = |(place, (level, ids)): (usize, (usize, Vec<ValueId>))| {
        let graph = whole.part(&ids, format!("{}.s{place}", graph.name))?;
        Ok(Segment { side: side_of(level, first), graph })
    };
    by_level.into_iter().enumerate().map(segment).collect()
}

/// The graph with a reshape of an input for each side that reads it, so that a port such as a cache reaches both sides as it
/// is and does not pass through one on its way to the other. The copies come last before their first reader.
fn with_own_reshapes(graph: &Graph, assignment: &Assignment) -> (Graph, Assignment) {
    let is_leading = |value: &Value| match &value.def {
        Def::Op { op: Op::Reshape { .. }, args } => args.iter().all(|&arg| graph.value(arg).def == Def::Input),
        Def::Op { .. } | Def::Input | Def::Weight => false,
    };
    let mut values: Vec<Value> = Vec::with_capacity(graph.values.len());
    let mut sides: Vec<Option<Side>> = Vec::with_capacity(graph.values.len());
    let mut moved: Vec<ValueId> = Vec::with_capacity(graph.values.len());
    let mut copies: BTreeMap<(ValueId, Side), ValueId> = BTreeMap::new();
    let next = |values: &[Value]| ValueId(values.len() as u32);
    for (id, value) in graph.ids().zip(&graph.values) {
        let side = assignment.side(id);
        let mut value = value.clone();
        if let Def::Op { op: _, args } = &mut value.def {
            for arg in args {
                let source = *arg;
                let other =
                    side.filter(|side| is_leading(graph.value(source)) && assignment.side(source) != Some(*side));
                *arg = match other {
                    None => moved[source.index()],
                    Some(side) => *copies.entry((source, side)).or_insert_with(|| {
                        let copy = values_of(graph, source, &moved);
                        let place = next(&values);
                        values.push(copy);
                        sides.push(Some(side));
                        place
                    }),
                };
            }
        }
        moved.push(next(&values));
        values.push(value);
        sides.push(side);
    }
    let output = |output: &Output| Output { name: output.name.clone(), value: moved[output.value.index()] };
    let outputs = graph.outputs.iter().map(output).collect();
    (Graph { name: graph.name.clone(), values, outputs }, Assignment { sides, idle: assignment.idle.clone() })
}

/// A value over the places that its operands have moved to.
fn values_of(graph: &Graph, id: ValueId, moved: &[ValueId]) -> Value {
    let mut value = graph.value(id).clone();
    if let Def::Op { op: _, args } = &mut value.def {
        args.iter_mut().for_each(|arg| *arg = moved[arg.index()]);
    }
    value
}

fn check_ports(graph: &Graph) -> Result<()> {
    let inputs = graph.values.iter().filter(|value| value.def == Def::Input).map(|value| &value.name);
    let ports = inputs.chain(graph.outputs.iter().map(|output| &output.name));
    let crossing = ports.filter(|name| matches!(name.parse(), Ok(Port::Cross(_)))).map(|name| {
        Diagnostic::error(Code::IrInvalid, "the graph has a port between segments and is cut already").subject(name)
    });
    let no_result = |output: &Output| {
        let value = graph.value(output.value);
        let kind = match value.def {
            Def::Op { .. } => return None,
            Def::Input => "an input",
            Def::Weight => "a weight",
        };
        let fault = Diagnostic::error(Code::Misfit, "an output of a placed graph is the result of an operation");
        Some(fault.subject(&output.name).have(format!("{kind}, `{}`", value.name)))
    };
    Error::check(crossing.chain(graph.outputs.iter().filter_map(no_result)).collect())
}

/// The side of a level: the sides alternate from that of level 0 on.
fn side_of(level: usize, first: Side) -> Side {
    match (level.is_multiple_of(2), first) {
        (true, side) => side,
        (false, Side::Npu) => Side::Cpu,
        (false, Side::Cpu) => Side::Npu,
    }
}

/// How many levels have an operation.
fn count(levels: &[Option<usize>]) -> usize {
    levels.iter().flatten().collect::<BTreeSet<_>>().len()
}

/// The level of every operation that an output needs: the lowest of its side that is not below an operand's.
fn levels(graph: &Graph, assignment: &Assignment, first: Side) -> Result<Vec<Option<usize>>> {
    let needed = needed(graph);
    let mut levels: Vec<Option<usize>> = Vec::with_capacity(graph.values.len());
    for (id, value) in graph.ids().zip(&graph.values) {
        let Def::Op { op: _, args } = &value.def else {
            levels.push(None);
            continue;
        };
        let side = assignment.side(id).ok_or_else(|| {
            Diagnostic::error(Code::IrInvalid, format!("the placement has no side for {id}")).subject(&value.name)
        })?;
        let lowest = args.iter().filter_map(|arg| levels[arg.index()]).max().unwrap_or(0);
        let level = if side_of(lowest, first) == side { lowest } else { lowest + 1 };
        levels.push(needed[id.index()].then_some(level));
    }
    move_to_readers(graph, assignment, first, &mut levels);
    Ok(levels)
}

/// Moves what only rearranges ports to the segment that reads it first, which then takes the ports themselves.
fn move_to_readers(graph: &Graph, assignment: &Assignment, first: Side, levels: &mut [Option<usize>]) {
    let mut of_ports: Vec<bool> = Vec::with_capacity(graph.values.len());
    for value in &graph.values {
        of_ports.push(match &value.def {
            Def::Input => true,
            Def::Weight => false,
            Def::Op { op, args } => op.only_moves() && args.iter().all(|arg| of_ports[arg.index()]),
        });
    }
    let mut earliest: Vec<Option<usize>> = vec![None; graph.values.len()];
    for id in graph.ids().rev() {
        let Def::Op { op: _, args } = &graph.value(id).def else { continue };
        let (Some(level), place) = (levels[id.index()], id.index()) else { continue };
        if let (true, Some(reader)) = (of_ports[place], earliest[place]) {
            let same = Some(side_of(reader, first)) == assignment.side(id);
            levels[place] = Some(level.max(if same { reader } else { reader.saturating_sub(1) }));
        }
        for arg in args {
            let known = &mut earliest[arg.index()];
            *known = (*known).into_iter().chain(levels[place]).min();
        }
    }
}

/// Whether an output needs each value.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|output| needed[output.value.index()] = true);
    for (index, value) in graph.values.iter().enumerate().rev() {
        if let (true, Def::Op { op: _, args }) = (needed[index], &value.def) {
            args.iter().for_each(|arg| needed[arg.index()] = true);
        }
    }
    needed
}

/// The results that a later level reads.
fn leaving(graph: &Graph, levels: &[Option<usize>]) -> BTreeSet<ValueId> {
    let mut leaving = BTreeSet::new();
    for (value, level) in graph.values.iter().zip(levels) {
        if let (Some(level), Def::Op { op: _, args }) = (level, &value.def) {
            leaving.extend(args.iter().filter(|arg| levels[arg.index()].is_some_and(|of| of != *level)));
        }
    }
    leaving
}

struct Whole<'a> {
    graph: &'a Graph,
    leaving: &'a BTreeSet<ValueId>,
}

impl Whole<'_> {
    /// The graph of the operations `ids`, in order.
    fn part(&self, ids: &[ValueId], name: String) -> Result<Graph> {
        let own: BTreeSet<ValueId> = ids.iter().copied().collect();
        let operands = ids.iter().flat_map(|&id| match &self.graph.value(id).def {
            Def::Op { op: _, args } => args.as_slice(),
            Def::Input | Def::Weight => &[],
        });
        let entering: BTreeSet<ValueId> = operands.copied().filter(|arg| !own.contains(arg)).collect();
        let mut part = Graph { name, values: Vec::with_capacity(entering.len() + ids.len()), outputs: Vec::new() };
        let mut moved: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for id in entering.into_iter().chain(ids.iter().copied()) {
            let value = self.graph.value(id);
            let new = match &value.def {
                Def::Op { op, args } if own.contains(&id) => {
                    let args = args.iter().map(|arg| moved[arg]).collect();
                    Value { def: Def::Op { op: op.clone(), args }, ..value.clone() }
                }
                Def::Op { .. } => Value { name: cross(id), ty: value.ty.clone(), def: Def::Input },
                Def::Input | Def::Weight => value.clone(),
            };
            moved.insert(id, push(&mut part, new));
        }
        let given = self.graph.outputs.iter().filter(|output| own.contains(&output.value));
        let given = given.map(|output| (output.name.clone(), output.value));
        let crossing = self.leaving.iter().filter(|id| own.contains(id)).map(|&id| (cross(id), id));
        let mut left = BTreeSet::new();
        for (name, id) in given.chain(crossing) {
            let value = if left.insert(id) { moved[&id] } else { copy(&mut part, moved[&id]) };
            part.outputs.push(Output { name, value });
        }
        verify(&part)?;
        Ok(part)
    }
}

fn cross(id: ValueId) -> String {
    Port::Cross(id.index()).to_string()
}

/// The value as another result.
fn copy(part: &mut Graph, id: ValueId) -> ValueId {
    let value = part.value(id);
    let op = Op::Reshape { shape: value.ty.shape.to_vec() };
    let copied = Value { name: value.name.clone(), ty: value.ty.clone(), def: Def::Op { op, args: vec![id] } };
    push(part, copied)
}

/// Appends a value; a part has few more than the whole, whose ids are 32 bits.
fn push(part: &mut Graph, value: Value) -> ValueId {
    part.values.push(value);
    ValueId(part.values.len() as u32 - 1)
}
