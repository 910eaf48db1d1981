//! Which values of a graph must have equal scales, which are computed in float, and what the mask is added to.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ranges, keys, moves};
use crate::ir::{Def, Graph, Op, Value};
use crate::model::Port;

/// Disjoint sets of values.
pub(super) struct Groups {
    parent: Vec<usize>,
}

impl Groups {
    fn new(count: usize) -> Groups {
        Groups { parent: (0..count).collect() }
    }

    /// The value that stands for the set of `value`.
    pub(super) fn root(&self, mut value: usize) -> usize {
        while self.parent[value] != value {
            value = self.parent[value];
        }
        value
    }

    fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[a.max(b)] = a.min(b);
    }
}

/// The sets of values that hold the same numbers in another order: an operation that only moves numbers and its
/// operands, and the state of a layer before and after a step or beside its new rows. What is computed in float moves nothing.
pub(super) fn groups(graph: &Graph, float: &[bool]) -> Groups {
    let mut groups = Groups::new(graph.values.len());
    for (index, value) in graph.values.iter().enumerate() {
        if let Def::Op { op, args } = &value.def
            && moves(op)
            && !float[index]
        {
            args.iter().for_each(|arg| groups.unite(index, arg.index()));
        }
    }
    // The scores of all parts of a head are compared with each other.
    let of_head = |name: &str| matches!(name.parse(), Ok(Port::LogitsPart(_)));
    let mut head = graph.outputs.iter().filter(|output| of_head(&output.name)).map(|output| output.value.index());
    if let Some(first) = head.next() {
        head.for_each(|part| groups.unite(first, part));
    }
    for output in &graph.outputs {
        let Ok(Port::Next(kind, layer) | Port::New(kind, layer)) = output.name.parse() else { continue };
        let past = Port::Past(kind, layer).to_string();
        let input = graph.values.iter().position(|value| value.def == Def::Input && value.name == past);
        if let Some(input) = input {
            groups.unite(input, output.value.index());
        }
    }
    groups
}

/// For each value, whether it is the mask or a sum with it. The mask is the port [`Port::Mask`].
pub(super) fn masked(graph: &Graph) -> Vec<bool> {
    let mut mask: Vec<bool> = Vec::with_capacity(graph.values.len());
    for value in &graph.values {
        mask.push(match &value.def {
            Def::Input => value.name.parse() == Ok(Port::Mask),
            Def::Weight => false,
            Def::Op { op, args } => (moves(op) || *op == Op::Add {}) && args.iter().any(|arg| mask[arg.index()]),
        });
    }
    mask
}

/// For each value, whether it is computed in float: exponentials, what lies on the path of a reciprocal root, which is a
/// normalisation as a whole one is, and sums that such a normalisation reads, which are the residual stream.
///
/// In int16 LiteRT reads both functions from a table of 512 straight pieces over the whole range of the operand. The mean
/// squares of a real model lie in the first few pieces, where a reciprocal root is steepest, and the last piece of an
/// exponential saturates. In the residual stream the first token has single numbers in the ten thousands, beside
/// which the steps of an int16 are as large as all others.
///
/// So is what [`Ranges::is_outlier`] says has no step in int16, and a projection that reads it.
pub(super) fn float(graph: &Graph, ranges: &Ranges) -> Vec<bool> {
    let op = |value: &Value| match &value.def {
        Def::Op { op, .. } => Some(op.clone()),
        Def::Input | Def::Weight => None,
    };
    let of_root = |value: &&Value| op(value) == Some(Op::Rsqrt {});
    let norms: BTreeSet<&str> = graph.values.iter().filter(of_root).map(|value| value.name.as_str()).collect();
    let in_norm = |value: &Value| match op(value) {
        Some(Op::RmsNorm { .. } | Op::LayerNorm { .. }) => true,
        Some(_) => norms.contains(value.name.as_str()),
        None => false,
    };
    let mut float: Vec<bool> =
        graph.values.iter().map(|value| in_norm(value) || op(value) == Some(Op::Exp {})).collect();
    for value in graph.values.iter().filter(|value| in_norm(value)) {
        let Def::Op { args, .. } = &value.def else { continue };
        args.iter().for_each(|arg| float[arg.index()] |= op(graph.value(*arg)) == Some(Op::Add {}));
    }
    let outlier: Vec<bool> =
        keys(graph).iter().map(|key| key.as_ref().is_some_and(|key| ranges.is_outlier(key))).collect();
    for (index, value) in graph.values.iter().enumerate() {
        let Def::Op { op, args } = &value.def else { continue };
        let reads = op.is_projection() && args.first().is_some_and(|arg| outlier[arg.index()]);
        let arithmetic = op.is_projection() || matches!(op, Op::Add {} | Op::Mul {} | Op::Affine { .. });
        float[index] |= reads || (arithmetic && outlier[index]);
    }
    float
}

/// The values of each set, by the set's root.
pub(super) fn members(groups: &Groups, count: usize) -> BTreeMap<usize, Vec<usize>> {
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for value in 0..count {
        members.entry(groups.root(value)).or_default().push(value);
    }
    members
}
