//! Rewrites that keep intermediate values inside binary16, whose largest number is 65504: the same numbers by
//! another way. They look for whole norms and `silu` operations, so they run before any decomposition.

use super::{NewOps, Patch, Source, describe};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::tensor::DType;

/// What [`guard_swiglu`] divides by: a power of two, so that neither the division nor the product with it rounds.
pub(crate) const SWIGLU_DIVISOR: f32 = 16.0;

/// Every `rms_norm(x, gain)` over `y = x / m` with `m = max|x| + 1` along the row, so that no square exceeds 1.
///
/// `x / sqrt(mean(x²) + eps)` is `y / sqrt(mean(y²) + eps / m²)`. The reciprocal of m is squared, never m. A `layer_norm` is that of
/// what differs from the mean, and a bias.
pub(super) fn rescale_rms_norm(graph: &Graph) -> Vec<Patch> {
    let patch = |id: ValueId| {
        let Def::Op { op, args } = &graph.value(id).def else { return None };
        let args: Vec<Source> = args.iter().copied().map(Source::Old).collect();
        let axis = graph.value(id).ty.shape.len().checked_sub(1)?;
        let mut ops = NewOps::default();
        let result = match (op, &args[..]) {
            (Op::RmsNorm { eps }, &[x, gain]) => rescaled(&mut ops, x, gain, axis, *eps),
            (Op::LayerNorm { eps }, &[x, gain, bias]) => {
                let mean = ops.op(Op::Mean { axis }, &[x]);
                let centred = ops.op(Op::Sub {}, &[x, mean]);
                let normed = rescaled(&mut ops, centred, gain, axis, *eps);
                ops.op(Op::Add {}, &[normed, bias])
            }
            _ => return None,
        };
        let reason = format!("{} squares numbers of at most 1", describe(graph, id));
        Some(Patch { reason, target: id, ops, result })
    };
    graph.ids().filter_map(patch).collect()
}

fn rescaled(ops: &mut NewOps, x: Source, gain: Source, axis: usize, eps: f32) -> Source {
    let magnitude = ops.op(Op::Abs {}, &[x]);
    let largest = ops.op(Op::Max { axis }, &[magnitude]);
    let m = ops.op(Op::Affine { scale: 1.0, offset: 1.0 }, &[largest]);
    let y = ops.op(Op::Div {}, &[x, m]);

    // 1 / m² is the fourth power of 1 / sqrt(m).
    let root = ops.op(Op::Rsqrt {}, &[m]);
    let reciprocal = ops.op(Op::Mul {}, &[root, root]);
    let reciprocal = ops.op(Op::Mul {}, &[reciprocal, reciprocal]);
    let eps = ops.op(Op::Affine { scale: eps, offset: 0.0 }, &[reciprocal]);

    let squares = ops.op(Op::Mul {}, &[y, y]);
    let mean = ops.op(Op::Mean { axis }, &[squares]);
    let mean = ops.op(Op::Add {}, &[mean, eps]);
    let factor = ops.op(Op::Rsqrt {}, &[mean]);
    let normed = ops.op(Op::Mul {}, &[y, factor]);
    ops.op(Op::Mul {}, &[normed, gain])
}

/// Every `linear(silu(gate) · up, down)` as `16 · linear(silu(gate) · (up / 16), down)`, where nothing else reads
/// the product. A bias is added afterwards.
pub(super) fn guard_swiglu(graph: &Graph) -> Vec<Patch> {
    let reads = reads(graph);
    let pair = |id: ValueId| {
        let Def::Op { op: Op::Linear {}, args } = &graph.value(id).def else { return None };
        let (&product, rest) = args.split_first()?;
        let (&weight, bias) = rest.split_first()?;
        let product_patch = (reads[product.index()] == 1).then(|| divided(graph, product)).flatten()?;
        let reason = format!("{} is taken {SWIGLU_DIVISOR} times, for its divided operand", describe(graph, id));
        let linear_patch = Patch::compute(id, reason, |ops| {
            let projected = ops.op(Op::Linear {}, &[Source::Old(product), Source::Old(weight)]);
            let whole = ops.op(Op::Affine { scale: SWIGLU_DIVISOR, offset: 0.0 }, &[projected]);
            bias.iter().fold(whole, |sum, &bias| ops.op(Op::Add {}, &[sum, Source::Old(bias)]))
        });
        Some([product_patch, linear_patch])
    };
    graph.ids().filter_map(pair).flatten().collect()
}

/// The product of a silu and something that is not divided yet, divided.
fn divided(graph: &Graph, product: ValueId) -> Option<Patch> {
    let Def::Op { op: Op::Mul {}, args } = &graph.value(product).def else { return None };
    let is_silu = |id: ValueId| matches!(&graph.value(id).def, Def::Op { op: Op::Silu {}, .. });
    let (gate, up) = match args.as_slice() {
        &[gate, up] if is_silu(gate) => (gate, up),
        &[up, gate] if is_silu(gate) => (gate, up),
        [..] => return None,
    };
    let part = Op::Affine { scale: 1.0 / SWIGLU_DIVISOR, offset: 0.0 };
    let value = graph.value(up);
    if value.ty.dtype != DType::F32 || matches!(&value.def, Def::Op { op, .. } if *op == part) {
        return None;
    }
    let reason = format!("{} is divided by {SWIGLU_DIVISOR}", describe(graph, product));
    Some(Patch::compute(product, reason, |ops| {
        let up = ops.op(part, &[Source::Old(up)]);
        ops.op(Op::Mul {}, &[Source::Old(gate), up])
    }))
}

/// How often each value is read by an operation or leaves.
fn reads(graph: &Graph) -> Vec<usize> {
    let mut reads = vec![0; graph.values.len()];
    for value in &graph.values {
        if let Def::Op { op: _, args } = &value.def {
            args.iter().for_each(|arg| reads[arg.index()] += 1);
        }
    }
    graph.outputs.iter().for_each(|output| reads[output.value.index()] += 1);
    reads
}

#[cfg(test)]
#[path = "range_tests.rs"]
mod tests;
