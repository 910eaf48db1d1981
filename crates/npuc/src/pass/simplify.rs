//! What a graph can do without: operations that change nothing, two rearrangements in a row, and results
//! that are computed already. Only rewrites that are exact in every number format.

use std::collections::HashMap;

use super::{Patch, Source, describe};
use crate::ir::text::call;
use crate::ir::{Def, Graph, Op, ValueId};

/// The simplifications of a verified graph, one a value at most.
pub(super) fn patches(graph: &Graph) -> Vec<Patch> {
    let mut patches = Vec::new();
    // The value that stands for each; equal values are compared by their calls on those.
    let mut standing: Vec<ValueId> = Vec::with_capacity(graph.values.len());
    let mut computed: HashMap<String, ValueId> = HashMap::new();
    for (id, value) in graph.ids().zip(&graph.values) {
        let Def::Op { op, args } = &value.def else {
            standing.push(id);
            continue;
        };
        let patch = identity(graph, id, op, args).or_else(|| rearrangement(graph, id, op, args)).or_else(|| {
            let args: Vec<ValueId> = args.iter().map(|arg| standing[arg.index()]).collect();
            let earlier = *computed.entry(call(op, &args)).or_insert(id);
            let reason = || format!("{}: {earlier} computes the same", describe(graph, id));
            (earlier != id).then(|| Patch::redirect(id, earlier, reason()))
        });
        standing.push(match &patch {
            Some(Patch { result: Source::Old(to), .. }) => standing[to.index()],
            Some(Patch { result: Source::New(_), .. }) | None => id,
        });
        patches.extend(patch);
    }
    patches
}

/// An operation whose result is its operand.
fn identity(graph: &Graph, id: ValueId, op: &Op, args: &[ValueId]) -> Option<Patch> {
    let (x, ty) = (*args.first()?, &graph.value(id).ty);
    let nothing = match op {
        Op::Affine { scale, offset } => *scale == 1.0 && *offset == 0.0,
        Op::Transpose { perm } => perm.is_sorted(),
        // Same type: the whole, the same shape, one element to reduce.
        Op::Sum { .. } | Op::Mean { .. } | Op::Max { .. } | Op::Slice { .. } | Op::Reshape { .. } => true,
        Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Linear {}
        | Op::PointwiseConv {}
        | Op::ShortConv {}
        | Op::Rope {}
        | Op::Attention { .. }
        | Op::MatMul { .. }
        | Op::Softmax {}
        | Op::Silu {}
        | Op::Gelu {}
        | Op::Sigmoid {}
        | Op::Exp {}
        | Op::Abs {}
        | Op::Rsqrt {}
        | Op::Add {}
        | Op::Sub {}
        | Op::Mul {}
        | Op::Div {}
        | Op::Concat { .. } => false,
    };
    let reason = || format!("{} changes nothing", describe(graph, id));
    (nothing && graph.value(x).ty == *ty).then(|| Patch::redirect(id, x, reason()))
}

/// A reshape of a reshape or a transpose of a transpose, as one.
fn rearrangement(graph: &Graph, id: ValueId, op: &Op, args: &[ValueId]) -> Option<Patch> {
    let Def::Op { op: inner, args: inner_args } = &graph.value(*args.first()?).def else {
        return None;
    };
    let whole = if let (Op::Reshape { shape }, Op::Reshape { .. }) = (op, inner) {
        Op::Reshape { shape: shape.clone() }
    } else if let (Op::Transpose { perm: outer }, Op::Transpose { perm: inner }) = (op, inner) {
        Op::Transpose { perm: outer.iter().map(|&axis| inner[axis]).collect() }
    } else {
        return None;
    };
    let reason = format!("{} does in one what took two", describe(graph, id));
    let x = Source::Old(*inner_args.first()?);
    Some(Patch::compute(id, reason, |ops| ops.op(whole, &[x])))
}
