//! Products with joined values as products with each piece, for compilers that take longer over a joined copy than over one more product.

use super::{NewOps, Patch, Source, describe};
use crate::ir::{Def, Graph, Op, ValueId};

/// Every product whose second operand is joined along one of its last two axes and read by such products alone.
pub(super) fn split_joined_products(graph: &Graph) -> Vec<Patch> {
    let joined: Vec<Option<(usize, &[ValueId])>> = graph.ids().map(|id| joined(graph, id)).collect();
    graph.ids().filter_map(|id| patch(graph, id, &joined)).collect()
}

/// The axis and the pieces of a value of which nothing needs the whole.
fn joined(graph: &Graph, id: ValueId) -> Option<(usize, &[ValueId])> {
    let Def::Op { op: Op::Concat { axis }, args } = &graph.value(id).def else { return None };
    let inner = axis + 2 >= graph.value(id).ty.shape.len();
    let leaves = graph.outputs.iter().any(|output| output.value == id);
    let multiplies = |user: &Def| match user {
        Def::Op { op: Op::MatMul { transpose_b: false }, args } => args[0] != id && args[1] == id,
        Def::Op { op: _, args } => !args.contains(&id),
        Def::Input | Def::Weight => true,
    };
    let fits = inner && !leaves && graph.values.iter().filter(|user| reads(&user.def, id)).all(|u| multiplies(&u.def));
    fits.then_some((*axis, args.as_slice()))
}

fn reads(def: &Def, id: ValueId) -> bool {
    match def {
        Def::Op { op: _, args } => args.contains(&id),
        Def::Input | Def::Weight => false,
    }
}

fn patch(graph: &Graph, id: ValueId, joined: &[Option<(usize, &[ValueId])>]) -> Option<Patch> {
    let Def::Op { op: op @ Op::MatMul { transpose_b: false }, args } = &graph.value(id).def else { return None };
    let &[a, b] = &args[..] else { return None };
    let (axis, pieces) = joined[b.index()]?;
    let last = graph.value(a).ty.shape.len() - 1;
    let reason = format!("{} takes the pieces of its operand one by one", describe(graph, id));
    let a = Source::Old(a);
    Some(Patch::compute(id, reason, |ops| {
        let mut start = 0;
        let mut product = |ops: &mut NewOps, &piece: &ValueId| {
            let len = graph.value(piece).ty.shape[axis];
            let left = match axis == last {
                true => a,
                false => ops.op(Op::Slice { axis: last, start, len }, &[a]),
            };
            start += len;
            ops.op(op.clone(), &[left, Source::Old(piece)])
        };
        let products: Vec<Source> = pieces.iter().map(|piece| product(ops, piece)).collect();
        if axis == last {
            return ops.op(Op::Concat { axis }, &products);
        }
        let (first, rest) = products.split_first().expect("a joined value has pieces");
        rest.iter().fold(*first, |sum, product| ops.op(Op::Add {}, &[sum, *product]))
    }))
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
