//! Attention head by head, as Qualcomm's NPUs prefer it: small matrices of rank 3 whose rows are those of one head.

use super::{NewOps, Patch, Source, describe};
use crate::ir::{Def, Graph, Op, ValueId};

/// Rewrites every attention.
pub(super) fn split_attention(graph: &Graph) -> Vec<Patch> {
    let patch = |id| match &graph.value(id).def {
        Def::Op { op: Op::Attention { scale }, args } => patch(graph, id, *scale, args),
        Def::Op { .. } | Def::Input | Def::Weight => None,
    };
    graph.ids().filter_map(patch).collect()
}

/// The query is scaled and the cache joined with its new rows once for all heads. Each key/value head is then cut out
/// for the query heads that share it, whose results `[1, t, d]` are joined to `[heads, t, d]`. The operations are the
/// same in all step shapes, so that a head's numbers have the same key of calibration in each.
fn patch(graph: &Graph, id: ValueId, scale: f32, args: &[ValueId]) -> Option<Patch> {
    let &[q, past_k, past_v, new_k, new_v, mask] = args else { return None };
    let extent = |value: ValueId| graph.value(value).ty.shape.first().copied();
    let (heads, kv) = (extent(q)?, extent(past_k)?);
    let reason = format!("{} has a form for each of {heads} heads", describe(graph, id));
    Some(Patch::compute(id, reason, |ops| {
        let q = ops.op(Op::Affine { scale, offset: 0.0 }, &[Source::Old(q)]);
        let k = ops.op(Op::Concat { axis: 1 }, &[Source::Old(past_k), Source::Old(new_k)]);
        let v = ops.op(Op::Concat { axis: 1 }, &[Source::Old(past_v), Source::Old(new_v)]);
        let mut mixed = Vec::with_capacity(heads);
        for shared in 0..kv {
            let (k, v) = (head(ops, k, shared, kv), head(ops, v, shared, kv));
            for query in shared * (heads / kv)..(shared + 1) * (heads / kv) {
                let q = head(ops, q, query, heads);
                let scores = ops.op(Op::MatMul { transpose_b: true }, &[q, k]);
                let scores = ops.op(Op::Add {}, &[scores, Source::Old(mask)]);
                let weights = ops.op(Op::Softmax {}, &[scores]);
                mixed.push(ops.op(Op::MatMul { transpose_b: false }, &[weights, v]));
            }
        }
        match mixed[..] {
            [only] => only,
            _ => ops.op(Op::Concat { axis: 0 }, &mixed),
        }
    }))
}

/// `[1, rows, d]`, the `index`-th of `count` heads of `x [count, rows, d]`.
fn head(ops: &mut NewOps, x: Source, index: usize, count: usize) -> Source {
    match count {
        1 => x,
        _ => ops.op(Op::Slice { axis: 0, start: index, len: 1 }, &[x]),
    }
}

#[cfg(test)]
#[path = "heads_tests.rs"]
mod tests;
