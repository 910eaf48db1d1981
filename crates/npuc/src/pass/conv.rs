//! Projections as convolutions, for units that take convolutions where they refuse or slow down projections.
//! The rows become pixels; not a number changes.

use super::{Patch, Source, describe};
use crate::ir::{Def, Graph, Op, ValueId};

/// Every `linear` as a `pointwise_conv` over `[1, 1, rows, in]` between two reshapes.
pub(super) fn linear_to_conv(graph: &Graph) -> Vec<Patch> {
    let patch = |id: ValueId| {
        let Def::Op { op: Op::Linear {}, args } = &graph.value(id).def else { return None };
        let (&x, rest) = args.split_first()?;
        let (&inputs, outer) = graph.value(x).ty.shape.split_last()?;
        let pixels = vec![1, 1, outer.iter().product(), inputs];
        let shape = graph.value(id).ty.shape.to_vec();
        let reason = format!("{} is a convolution of one pixel", describe(graph, id));
        Some(Patch::compute(id, reason, |ops| {
            let x = ops.op(Op::Reshape { shape: pixels }, &[Source::Old(x)]);
            let operands: Vec<Source> = [x].into_iter().chain(rest.iter().copied().map(Source::Old)).collect();
            let y = ops.op(Op::PointwiseConv {}, &operands);
            ops.op(Op::Reshape { shape }, &[y])
        }))
    };
    graph.ids().filter_map(patch).collect()
}

#[cfg(test)]
#[path = "conv_tests.rs"]
mod tests;
