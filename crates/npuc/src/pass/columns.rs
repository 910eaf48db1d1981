//! Caches of keys that are stored by columns, `[kv_heads, head_dim, capacity]`, where the whole cache enters and leaves.
//!
//! Scores are then products without a transposition. Only whoever fills the ports sees a difference, and one that starts
//! with zeros and copies what leaves to what enters, as the protocol `OneHot` has it, does not even see that.

use super::{Changes, NewOps, Patch, PortChange, Source, describe};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::model::{Port, StateKind};
use crate::tensor::Shape;

/// Changes every cache of keys that is joined with new rows for products with queries, in plain operations, and leaves with
/// these rows written under a mask. Other caches stay.
pub(super) fn keys_as_columns(graph: &Graph) -> Changes {
    let users = users(graph);
    let mut changes = Changes::default();
    for (id, value) in graph.ids().zip(&graph.values) {
        let Ok(Port::Past(StateKind::Key, layer)) = value.name.parse() else { continue };
        if value.def != Def::Input {
            continue;
        }
        if let (&[kv, capacity, dim], Some(patches)) = (&*value.ty.shape, cache(graph, &users, id, layer)) {
            changes.patches.extend(patches);
            changes.ports.push(PortChange { port: id, shape: Shape(vec![kv, dim, capacity]) });
        }
    }
    changes
}

/// For each value the operations that read it.
fn users(graph: &Graph) -> Vec<Vec<ValueId>> {
    let mut users = vec![Vec::new(); graph.values.len()];
    for (id, value) in graph.ids().zip(&graph.values) {
        if let Def::Op { op: _, args } = &value.def {
            args.iter().for_each(|arg| users[arg.index()].push(id));
        }
    }
    users
}

fn call(graph: &Graph, id: ValueId) -> Option<(&Op, &[ValueId])> {
    match &graph.value(id).def {
        Def::Op { op, args } => Some((op, args)),
        Def::Input | Def::Weight => None,
    }
}

/// What changes around one cache; `None` if something reads it that does not go with columns.
fn cache(graph: &Graph, users: &[Vec<ValueId>], past: ValueId, layer: usize) -> Option<Vec<Patch>> {
    let &[first, second] = &users[past.index()][..] else { return None };
    let is_concat = |id| matches!(call(graph, id), Some((Op::Concat { axis: 1 }, _)));
    let (joined, kept) = if is_concat(first) { (first, second) } else { (second, first) };
    let (Op::Concat { axis: 1 }, &[from, new]) = call(graph, joined)? else { return None };
    if from != past || graph.outputs.iter().any(|output| output.value == joined) {
        return None;
    }
    let mut patches = Vec::new();
    for &user in &users[joined.index()] {
        match call(graph, user)? {
            (Op::Slice { axis: 0, .. }, _) => {
                for &product in &users[user.index()] {
                    patches.push(scores(graph, product, user, past, new)?);
                }
            }
            _ => patches.push(scores(graph, user, joined, past, new)?),
        }
    }
    patches.push(written(graph, users, kept, past, new, layer)?);
    Some(patches)
}

/// The product of queries with `keys`, past and new ones joined or a part of their heads, as the products with each.
fn scores(graph: &Graph, product: ValueId, keys: ValueId, past: ValueId, new: ValueId) -> Option<Patch> {
    let (Op::MatMul { transpose_b: true }, &[queries, by]) = call(graph, product)? else { return None };
    if by != keys || queries == keys {
        return None;
    }
    let heads = match call(graph, keys)? {
        (Op::Slice { axis, start, len }, _) => Some(Op::Slice { axis: *axis, start: *start, len: *len }),
        _ => None,
    };
    let shape = &graph.value(new).ty.shape;
    let (kv, tokens, dim) = (graph.value(keys).ty.shape[0], shape[1], shape[2]);
    let reason = format!("{} takes past keys as columns", describe(graph, product));
    Some(Patch::compute(product, reason, |ops| {
        let queries = Source::Old(queries);
        let part = |ops: &mut NewOps, keys: ValueId| match &heads {
            Some(slice) => ops.op(slice.clone(), &[Source::Old(keys)]),
            None => Source::Old(keys),
        };
        let past = part(ops, past);
        let past = ops.op(Op::MatMul { transpose_b: false }, &[queries, past]);
        let new = part(ops, new);
        let new = if tokens == 1 {
            let column = ops.op(Op::Reshape { shape: vec![kv, dim, 1] }, &[new]);
            ops.op(Op::MatMul { transpose_b: false }, &[queries, column])
        } else {
            ops.op(Op::MatMul { transpose_b: true }, &[queries, new])
        };
        ops.op(Op::Concat { axis: 2 }, &[past, new])
    }))
}

/// The sum of what stays of a cache and the new rows at their places, as columns. One new row is written as its product with
/// the mask, several are transposed once they are placed.
fn written(
    graph: &Graph,
    users: &[Vec<ValueId>],
    kept: ValueId,
    past: ValueId,
    new: ValueId,
    layer: usize,
) -> Option<Patch> {
    let (Op::Mul {}, &[from, keep]) = call(graph, kept)? else { return None };
    let &[next] = &users[kept.index()][..] else { return None };
    let (Op::Add {}, &[summand, placed]) = call(graph, next)? else { return None };
    let port = Port::Next(StateKind::Key, layer).to_string();
    let leaves = graph.outputs.iter().any(|output| output.value == next && output.name == port);
    let capacity = graph.value(past).ty.shape[1];
    let column = [1, capacity, 1];
    if from != past || summand != kept || !leaves || !users[next.index()].is_empty() {
        return None;
    }
    if *graph.value(keep).ty.shape != column {
        return None;
    }
    let row = Op::Reshape { shape: vec![1, 1, capacity] };
    let one = match call(graph, placed)? {
        (Op::Mul {}, &[mask, rows]) if rows == new && *graph.value(mask).ty.shape == column => Some(mask),
        _ => None,
    };
    let (kv, dim) = (graph.value(new).ty.shape[0], graph.value(new).ty.shape[2]);
    let reason = format!("{} leaves as columns", describe(graph, next));
    Some(Patch::compute(next, reason, |ops| {
        let keep = ops.op(row.clone(), &[Source::Old(keep)]);
        let kept = ops.op(Op::Mul {}, &[Source::Old(past), keep]);
        let placed = match one {
            Some(mask) => {
                let column = ops.op(Op::Reshape { shape: vec![kv, dim, 1] }, &[Source::Old(new)]);
                let mask = ops.op(row, &[Source::Old(mask)]);
                ops.op(Op::Mul {}, &[column, mask])
            }
            None => ops.op(Op::Transpose { perm: vec![0, 2, 1] }, &[Source::Old(placed)]),
        };
        ops.op(Op::Add {}, &[kept, placed])
    }))
}

#[cfg(test)]
#[path = "columns_tests.rs"]
mod tests;
