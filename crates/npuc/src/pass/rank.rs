//! Operations of rank 4 as operations of rank 3: two neighbouring axes that an operation does not tell apart are
//! joined by reshapes around it. `simplify` then merges the reshapes that meet; not a number changes.

use super::{NewOps, Patch, Source, describe};
use crate::ir::{Def, Graph, Op, Type, ValueId};
use crate::tensor::DType;

/// The rank that is too high.
const RANK: usize = 4;

/// Every operation of rank 4 that can do with 3 axes, each with the first pair of axes that can be joined.
pub(super) fn join_axes(graph: &Graph) -> Vec<Patch> {
    let patch = |id: ValueId| {
        let Def::Op { op, args } = &graph.value(id).def else { return None };
        let wide = graph.value(id).ty.shape.len() == RANK;
        wide.then(|| (0..RANK - 1).find_map(|axis| joined(graph, id, op, args, axis))).flatten()
    };
    graph.ids().filter_map(patch).collect()
}

/// Which operands have the axes of the result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Along {
    First,
    All,
}

/// The operation `id` with its axes `axis` and `axis + 1` as one; `None` where an operand does not allow it.
fn joined(graph: &Graph, id: ValueId, op: &Op, args: &[ValueId], axis: usize) -> Option<Patch> {
    let (op, along) = on_joined(op, axis)?;
    let result = &graph.value(id).ty.shape;
    let mut ops = NewOps::default();
    let mut operands = Vec::with_capacity(args.len());
    for (position, &arg) in args.iter().enumerate() {
        let through = position == 0 || along == Along::All;
        operands.push(match through {
            true => operand(&mut ops, arg, &graph.value(arg).ty, (result, along), axis)?,
            false => Source::Old(arg),
        });
    }
    let narrow = ops.op(op, &operands);
    let result = ops.op(Op::Reshape { shape: result.to_vec() }, &[narrow]);
    let reason = format!("{} takes its axes {axis} and {} as one", describe(graph, id), axis + 1);
    Some(Patch { reason, target: id, ops, result })
}

/// An operand with the axes joined: both whole or, where it stretches, both of extent 1.
fn operand(ops: &mut NewOps, id: ValueId, ty: &Type, of: (&[usize], Along), axis: usize) -> Option<Source> {
    let (result, along) = of;
    let mut shape = [&[1; RANK][..RANK - ty.shape.len()], &ty.shape].concat();
    let extent = shape[axis] * shape[axis + 1];
    if along == Along::All && extent != 1 && extent != result[axis] * result[axis + 1] {
        return None;
    }
    shape.splice(axis..axis + 2, [extent]);
    if ty.shape.len() < RANK && without_ones(&shape) == without_ones(&ty.shape) {
        return Some(Source::Old(id));
    }
    (ty.dtype == DType::F32).then(|| ops.op(Op::Reshape { shape }, &[Source::Old(id)]))
}

/// The extents after the leading ones, which broadcasting ignores.
fn without_ones(shape: &[usize]) -> &[usize] {
    &shape[shape.iter().take_while(|&&extent| extent == 1).count()..]
}

/// What an operation of rank 4 is when `axis` and the next one are joined; `None` if it tells them apart.
fn on_joined(op: &Op, axis: usize) -> Option<(Op, Along)> {
    let elsewhere = |at: usize| (at != axis && at != axis + 1).then(|| if at > axis { at - 1 } else { at });
    match op {
        Op::Silu {}
        | Op::Gelu {}
        | Op::Sigmoid {}
        | Op::Exp {}
        | Op::Abs {}
        | Op::Rsqrt {}
        | Op::Affine { .. }
        | Op::Add {}
        | Op::Sub {}
        | Op::Mul {}
        | Op::Div {} => Some((op.clone(), Along::All)),
        // These work along the last axis.
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::Linear {} | Op::Softmax {} => {
            (axis + 2 < RANK).then(|| (op.clone(), Along::First))
        }
        // These work along the last two.
        Op::Rope {} => (axis == 0).then_some((Op::Rope {}, Along::First)),
        Op::MatMul { .. } => (axis == 0).then(|| (op.clone(), Along::All)),
        Op::Sum { axis: at } => Some((Op::Sum { axis: elsewhere(*at)? }, Along::First)),
        Op::Mean { axis: at } => Some((Op::Mean { axis: elsewhere(*at)? }, Along::First)),
        Op::Max { axis: at } => Some((Op::Max { axis: elsewhere(*at)? }, Along::First)),
        Op::Concat { axis: at } => Some((Op::Concat { axis: elsewhere(*at)? }, Along::All)),
        Op::Slice { axis: at, start, len } => {
            Some((Op::Slice { axis: elsewhere(*at)?, start: *start, len: *len }, Along::First))
        }
        Op::Transpose { perm } => {
            let stay_together = perm.windows(2).any(|pair| pair == [axis, axis + 1]);
            let rest = perm.iter().filter(|&&at| at != axis + 1);
            let perm = rest.map(|&at| if at > axis { at - 1 } else { at }).collect();
            stay_together.then_some((Op::Transpose { perm }, Along::First))
        }
        Op::PointwiseConv {} | Op::ShortConv {} | Op::Attention { .. } | Op::Reshape { .. } => None,
    }
}

#[cfg(test)]
#[path = "rank_tests.rs"]
mod tests;
