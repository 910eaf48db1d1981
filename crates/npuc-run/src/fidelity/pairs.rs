//! Which values of two forms of a step are the same: what a path in the model results in, and what leads there alike.
//!
//! A rewrite may scale what lies between, so where the operations of a path differ only its result and what comes before
//! the first other operation are compared.

use std::collections::{BTreeMap, BTreeSet};

use npuc::Shape;
use npuc::ir::{Def, Op, Value, ValueId};
use npuc::model::Port;

use crate::program::Step;

/// A value of a step: the place of its segment, and the value in there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) segment: usize,
    pub(super) id: ValueId,
}

/// The values of two forms of a step that can be compared.
#[derive(Debug)]
pub(super) struct Pairing {
    /// The reference's value and the model's, in the order of the model's.
    pub(super) pairs: Vec<(At, At)>,
    /// Computed values of the reference and of the model that have no partner.
    pub(super) unpaired: (usize, usize),
}

/// The computed values of each path in order, with the kinds of their operations.
type Paths<'a> = BTreeMap<&'a str, Vec<(&'static str, At)>>;

/// Pairs the values of two forms of a step. Unless they have the `same_state`, which is how caches lie and what masks
/// hold, only the result of a path that reads either is compared: the order of rows and hidden scores are their own.
pub(super) fn pair(reference: &Step, model: &Step, same_state: bool) -> Pairing {
    let (of_reference, of_model) = (paths(reference), paths(model));
    let mut only_results = readers_of_state(reference);
    only_results.extend(readers_of_state(model));
    let same_shape = |a: At, b: At| extents(&value(reference, a).ty.shape) == extents(&value(model, b).ty.shape);
    let mut pairs: Vec<(At, At)> = Vec::new();
    for (path, ours) in &of_model {
        let Some(theirs) = of_reference.get(path) else { continue };
        let inside = same_state || !only_results.contains(path);
        let mut same = theirs.iter().zip(ours).map(|(&(theirs, a), &(ours, b))| (theirs == ours, a, b));
        if inside && theirs.len() == ours.len() && same.clone().all(|(same, ..)| same) {
            pairs.extend(same.filter(|&(_, a, b)| same_shape(a, b)).map(|(_, a, b)| (a, b)));
            continue;
        }
        let before_results = if inside { theirs.len().min(ours.len()).saturating_sub(1) } else { 0 };
        let alike = same.by_ref().take(before_results).take_while(|&(same, a, b)| same && same_shape(a, b));
        pairs.extend(alike.map(|(_, a, b)| (a, b)));
        if let (Some(&(_, a)), Some(&(_, b))) = (theirs.last(), ours.last()) {
            pairs.extend(same_shape(a, b).then_some((a, b)));
        }
    }
    pairs.sort_by_key(|&(_, ours)| ours);
    let alone = |paths: &Paths<'_>| paths.values().map(Vec::len).sum::<usize>() - pairs.len();
    Pairing { unpaired: (alone(&of_reference), alone(&of_model)), pairs }
}

/// The value at a place of a step.
pub(super) fn value(step: &Step, at: At) -> &Value {
    step.segments[at.segment].graph.value(at.id)
}

/// The computed values of a step, those left out that the host is not told (see `Executor::run_observed`).
fn paths(step: &Step) -> Paths<'_> {
    let mut paths = Paths::new();
    for (place, segment) in step.segments.iter().enumerate() {
        for id in segment.graph.ids() {
            let value = segment.graph.value(id);
            let Def::Op { op, .. } = &value.def else { continue };
            if !matches!(op, Op::Reshape { .. }) {
                paths.entry(value.name.as_str()).or_default().push((kind(op), At { segment: place, id }));
            }
        }
    }
    paths
}

/// The paths of which an operation reads a mask or a cache.
fn readers_of_state(step: &Step) -> BTreeSet<&str> {
    let is_state = |value: &Value| {
        let port = value.name.parse();
        value.def == Def::Input && matches!(port, Ok(Port::Mask | Port::WriteMask | Port::History | Port::Past(..)))
    };
    let mut paths = BTreeSet::new();
    for graph in step.segments.iter().map(|segment| &segment.graph) {
        let reads = |value: &&Value| match &value.def {
            Def::Op { args, .. } => args.iter().any(|&arg| is_state(graph.value(arg))),
            Def::Input | Def::Weight => false,
        };
        paths.extend(graph.values.iter().filter(reads).map(|value| value.name.as_str()));
    }
    paths
}

/// Operations of one kind compute the same in the same order of elements.
fn kind(op: &Op) -> &'static str {
    if *op == (Op::PointwiseConv {}) { Op::Linear {}.name() } else { op.name() }
}

/// The extents without those of 1, which do not change the order of elements.
fn extents(shape: &Shape) -> Vec<usize> {
    shape.iter().copied().filter(|&extent| extent != 1).collect()
}

#[cfg(test)]
#[path = "pairs_tests.rs"]
mod tests;
