//! From a log back to the graph: by names of tensors where the log has them, else by operation and extents.

use std::collections::BTreeSet;

use npuc::ir::{Def, Graph, Op, Type, ValueId, text};
use npuc::target::{self, Place};

use super::{Finding, Operation, tensors};

/// Where each finding may come from, in the order of the findings; see [`locate`].
pub fn locate_all(findings: &[Finding], graphs: &[Graph]) -> Vec<Vec<Place>> {
    findings.iter().map(|finding| locate(finding, graphs)).collect()
}

/// The operations of the graphs that a finding may be about, in the order of graphs and lines.
///
/// A node's name (`<path>/<operation>.<value>`) is its operation; the same as a computed tensor's name, a weight's or a
/// port's leads to operations around it. Without such a name the
/// operations are those that become the built-in operator on some chip and agree with all extents that the log gives; axes of
/// extent 1 do not count, for files and graphs differ in them. Without extents, a limit of extents keeps what exceeds
/// it. A finding of no operation has no places.
pub fn locate(finding: &Finding, graphs: &[Graph]) -> Vec<Place> {
    let mut places = Vec::new();
    for graph in graphs {
        let mut found: BTreeSet<ValueId> = BTreeSet::new();
        for operation in &finding.operations {
            if let Some(node) = &operation.node {
                found.extend(values_of(node, graph));
                continue;
            }
            let named = by_names(operation, graph);
            found.extend(if named.is_empty() { by_shapes(operation, finding.max_extent, graph) } else { named });
        }
        places.extend(found.into_iter().map(|id| place(graph, id)));
    }
    places
}

fn place(graph: &Graph, id: ValueId) -> Place {
    Place {
        graph: graph.name.clone(),
        line: text::value_line(id),
        path: graph.value(id).name.clone(),
        text: text::value_text(graph, id),
    }
}

/// The operation of a value, with its operands.
fn op(graph: &Graph, id: ValueId) -> Option<(&Op, &[ValueId])> {
    match &graph.value(id).def {
        Def::Op { op, args } => Some((op, args)),
        Def::Input | Def::Weight => None,
    }
}

/// The operations that have the most of the named tensors as operand or result: those of the built-in operator, or any
/// if it has none of them.
fn by_names(operation: &Operation, graph: &Graph) -> Vec<ValueId> {
    let kinds = ops_of(&operation.builtin);
    let named: Vec<BTreeSet<ValueId>> = operation.names.iter().map(|name| values_of(name, graph)).collect();
    let named: Vec<BTreeSet<ValueId>> = named.into_iter().filter(|values| !values.is_empty()).collect();
    let score = |id: ValueId, args: &[ValueId]| {
        let touches = |values: &&BTreeSet<ValueId>| values.contains(&id) || args.iter().any(|arg| values.contains(arg));
        named.iter().filter(touches).count()
    };
    let best = |of_kind: bool| {
        let scored = graph.ids().filter_map(|id| {
            let (op, args) = op(graph, id)?;
            (kinds.contains(op.name()) || !of_kind).then(|| (id, score(id, args))).filter(|(_, score)| *score > 0)
        });
        let scored: Vec<(ValueId, usize)> = scored.collect();
        let most = scored.iter().map(|(_, score)| *score).max();
        scored.into_iter().filter(|(_, score)| Some(*score) == most).map(|(id, _)| id).collect::<Vec<_>>()
    };
    if named.is_empty() {
        return Vec::new();
    }
    Some(best(true)).filter(|best| !best.is_empty()).unwrap_or_else(|| best(false))
}

/// The values that a name in a file stands for.
fn values_of(name: &str, graph: &Graph) -> BTreeSet<ValueId> {
    if let Some((path, number)) = tensors::port(name) {
        let of_path = |id: &ValueId| graph.value(*id).name == path && op(graph, *id).is_none();
        let exact = graph.ids().find(|id| id.0 == number).filter(of_path);
        return exact.map_or_else(|| graph.ids().filter(of_path).collect(), |id| BTreeSet::from([id]));
    }
    let Some((path, kind, number)) = tensors::computed(name) else {
        let ports = graph.outputs.iter().filter(|output| output.name == name).map(|output| output.value);
        let given = graph.ids().filter(|id| graph.value(*id).name == name && op(graph, *id).is_none());
        return ports.chain(given).collect();
    };
    let same = |id: &ValueId| graph.value(*id).name == path && op(graph, *id).is_some_and(|(op, _)| op.name() == kind);
    let exact = graph.ids().find(|id| id.0 == number).filter(same);
    // Another cut of the model has other numbers.
    exact.map_or_else(|| graph.ids().filter(same).collect(), |id| BTreeSet::from([id]))
}

fn by_shapes(operation: &Operation, max_extent: Option<usize>, graph: &Graph) -> Vec<ValueId> {
    let kinds = ops_of(&operation.builtin);
    let unknown = operation.shapes().next().is_none();
    let agrees = |id: &ValueId| {
        let Some((_, args)) = op(graph, *id).filter(|(op, _)| kinds.contains(op.name())) else { return false };
        let result = extents(&graph.value(*id).ty);
        let operands: Vec<Vec<usize>> = args.iter().map(|arg| extents(&graph.value(*arg).ty)).collect();
        if unknown {
            let large = |max| operands.iter().chain([&result]).flatten().any(|extent| *extent > max);
            return max_extent.is_none_or(large);
        }
        // Lists of axes, shapes and the factors of `affine` are operands in the file alone.
        let is_operand = |shape: &Vec<usize>| shape.len() < 2 || operands.contains(&without_ones(shape));
        let is_result = |shape: &Vec<usize>| without_ones(shape) == result;
        operation.operands.iter().all(is_operand)
            && operation.results.iter().all(is_result)
            && operation.tensors.iter().all(|shape| is_operand(shape) || is_result(shape))
    };
    graph.ids().filter(agrees).collect()
}

fn extents(ty: &Type) -> Vec<usize> {
    without_ones(&ty.shape)
}

fn without_ones(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|extent| *extent != 1).collect()
}

/// The operations of the IR that become the built-in operator, by the tables of all chips.
fn ops_of(builtin: &str) -> BTreeSet<&'static str> {
    let tables = target::all().iter().flat_map(|target| &target.ops);
    let rows = tables.flat_map(|ops| ops.takes.iter().chain(&ops.refuses));
    rows.filter(|(_, text)| text.0.split(", ").any(|name| name == builtin)).map(|(op, _)| op.0).collect()
}
