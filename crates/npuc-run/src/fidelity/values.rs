//! Every value of a program's graphs, as the host computes it.

use std::sync::{Arc, Mutex, PoisonError};

use npuc::ir::{Def, Graph, Op, ValueId};
use npuc::{Code, Diagnostic, Result};

use super::trace::{Difference, Distance, Where};
use crate::device::host::{Observer, thread_pool};
use crate::program::Program;
use crate::session::Session;

/// A step shape on a device against the host, in its last run.
#[derive(Debug)]
pub struct OfStep {
    /// The place of the step in the program.
    pub step: usize,
    /// How far the values are, in the order of computation.
    pub differences: Vec<Difference>,
    /// For each of them, how far the operation alone is: its result against the host's from the same operands. Empty where that
    /// is not computed.
    pub own: Vec<Distance>,
    /// Computed values that the device does not have: reshapes, and joined caches that are never there as a whole.
    pub alone: usize,
}

impl OfStep {
    /// Nothing compared yet.
    pub(super) const fn new(step: usize) -> OfStep {
        OfStep { step, differences: Vec::new(), own: Vec::new(), alone: 0 }
    }
}

/// The elements of the values of a graph, by id; those of reshapes, of weights and of graphs that did not run are empty.
pub(super) type Values = Vec<Vec<f32>>;

/// The values of every step and segment, each as its last run left them, after the ids were fed in groups.
pub(super) fn host_values(program: &Program, fed: &[&[u32]], threads: usize) -> Result<Vec<Vec<Values>>> {
    type Seen = Arc<Mutex<Values>>;
    let seen: Vec<Vec<Seen>> = program
        .steps
        .iter()
        .map(|step| {
            step.segments.iter().map(|s| Arc::new(Mutex::new(vec![Vec::new(); s.graph.values.len()]))).collect()
        })
        .collect();
    let steps: Vec<&crate::program::Step> = program.steps.iter().collect();
    let mut host = Session::observed(program, &steps, &thread_pool(threads)?, |step, segment| {
        let seen = Arc::clone(&seen[step][segment]);
        let observer: Observer = Box::new(move |id: ValueId, elements: &[f32]| {
            seen.lock().unwrap_or_else(PoisonError::into_inner)[id.index()] = elements.to_vec();
        });
        observer
    })?;
    for ids in fed {
        host.feed(ids, |_| {})?;
    }
    drop(host);
    let taken = |seen: Seen| std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(seen.into_iter().map(|step| step.into_iter().map(taken).collect()).collect())
}

/// How many values of a graph are computed.
pub(super) fn computed(graph: &Graph) -> usize {
    graph.values.iter().filter(|value| matches!(value.def, Def::Op { .. })).count()
}

/// The elements of an input port.
///
/// Errors: [`Code::BadBundle`] if the graph has no such port.
pub(super) fn input<'a>(graph: &Graph, values: &'a Values, name: &str) -> Result<&'a [f32]> {
    let at = graph.values.iter().position(|value| value.def == Def::Input && value.name == name);
    let fault = || Diagnostic::error(Code::BadBundle, "a graph lacks an input that its device form has").subject(name);
    Ok(at.map(|at| values[at].as_slice()).ok_or_else(fault)?)
}

/// The value whose elements the host shows: a reshape has those of its operand.
pub(super) fn shown(graph: &Graph, mut id: ValueId) -> ValueId {
    while let Def::Op { op: Op::Reshape { .. }, args } = &graph.value(id).def {
        id = args[0];
    }
    id
}

/// Where a value is, for a graph that is compared with itself.
pub(super) fn place_of(graph: &Graph, id: ValueId) -> Where {
    let value = graph.value(id);
    let op = match &value.def {
        Def::Op { op, .. } => Op::name(op),
        Def::Input | Def::Weight => "port",
    };
    Where {
        path: value.name.clone(),
        op,
        shape: value.ty.shape.to_vec(),
        reference: id.0,
        model: id.0,
        reference_graph: graph.name.clone(),
        model_graph: graph.name.clone(),
    }
}
