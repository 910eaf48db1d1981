//! The transformer's own operations in plain ones, all of rank 4 at most, for targets that lack them.

use super::{NewOps, Patch, Source, describe};
use crate::ir::{Def, Graph, Op, ValueId};

/// Rewrites every operation that has a plain form, or those of the name `only`.
pub(super) fn patches(graph: &Graph, only: Option<&str>) -> Vec<Patch> {
    let wanted = |op: &Op| only.is_none_or(|only| op.name() == only);
    let patch = |id| match &graph.value(id).def {
        Def::Op { op, args } if wanted(op) => patch(graph, id, op, args),
        Def::Op { .. } | Def::Input | Def::Weight => None,
    };
    graph.ids().filter_map(patch).collect()
}

fn patch(graph: &Graph, id: ValueId, op: &Op, args: &[ValueId]) -> Option<Patch> {
    let shapes: Vec<&[usize]> = args.iter().map(|&arg| &*graph.value(arg).ty.shape).collect();
    let args: Vec<Source> = args.iter().copied().map(Source::Old).collect();
    let mut ops = NewOps::default();
    let result = match op {
        Op::Attention { scale } => attention(&mut ops, &args, &shapes, *scale),
        Op::ShortConv {} => short_conv(&mut ops, &args, &shapes),
        Op::RmsNorm { eps } => rms_norm(&mut ops, &args, &shapes, *eps),
        Op::LayerNorm { eps } => layer_norm(&mut ops, &args, &shapes, *eps),
        Op::Rope {} => rope(&mut ops, &args, &shapes),
        Op::Softmax {} => softmax(&mut ops, &args, &shapes),
        Op::Silu {} => silu(&mut ops, &args),
        Op::Gelu {} => gelu(&mut ops, &args),
        Op::Linear {}
        | Op::PointwiseConv {}
        | Op::MatMul { .. }
        | Op::Sigmoid {}
        | Op::Exp {}
        | Op::Abs {}
        | Op::Rsqrt {}
        | Op::Affine { .. }
        | Op::Add {}
        | Op::Sub {}
        | Op::Mul {}
        | Op::Div {}
        | Op::Sum { .. }
        | Op::Mean { .. }
        | Op::Max { .. }
        | Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. } => None,
    }?;
    let reason = format!("{} has a plain form", describe(graph, id));
    Some(Patch { reason, target: id, ops, result })
}

/// The heads that share a key/value head become the rows of one matrix, so that no key or value is repeated
/// and no axis is added: `[heads, t, d]` is `[kv, group · t, d]`. The scale is applied to the queries, which
/// are fewer than the scores.
fn attention(ops: &mut NewOps, args: &[Source], shapes: &[&[usize]], scale: f32) -> Option<Source> {
    let &[q, past_k, past_v, new_k, new_v, mask] = args else { return None };
    let &[&[heads, tokens, dim], &[kv, capacity, _], ..] = shapes else { return None };
    let (group, total) = (heads / kv, capacity + tokens);
    let reshape = |ops: &mut NewOps, x, shape: &[usize]| ops.op(Op::Reshape { shape: shape.to_vec() }, &[x]);

    let q = ops.op(Op::Affine { scale, offset: 0.0 }, &[q]);
    let q = reshape(ops, q, &[kv, group * tokens, dim]);
    let k = ops.op(Op::Concat { axis: 1 }, &[past_k, new_k]);
    let scores = ops.op(Op::MatMul { transpose_b: true }, &[q, k]);
    let scores = reshape(ops, scores, &[kv, group, tokens, total]);
    let scores = ops.op(Op::Add {}, &[scores, mask]);
    let weights = ops.op(Op::Softmax {}, &[scores]);
    let weights = reshape(ops, weights, &[kv, group * tokens, total]);
    let v = ops.op(Op::Concat { axis: 1 }, &[past_v, new_v]);
    let mixed = ops.op(Op::MatMul { transpose_b: false }, &[weights, v]);
    Some(reshape(ops, mixed, &[heads, tokens, dim]))
}

/// The rows below each tap are multiplied by it and added up.
fn short_conv(ops: &mut NewOps, args: &[Source], shapes: &[&[usize]]) -> Option<Source> {
    let (&[x, weight, ref bias @ ..], &[&[rows, _], &[_, taps], ..]) = (args, shapes) else { return None };
    let len = (rows + 1).checked_sub(taps)?;
    let by_tap = ops.op(Op::Transpose { perm: vec![1, 0] }, &[weight]);
    let mut product = |start: usize| {
        let rows = ops.op(Op::Slice { axis: 0, start, len }, &[x]);
        let tap = ops.op(Op::Slice { axis: 0, start, len: 1 }, &[by_tap]);
        ops.op(Op::Mul {}, &[rows, tap])
    };
    let products: Vec<Source> = (0..taps).map(&mut product).collect();
    let sum = products.into_iter().reduce(|sum, product| ops.op(Op::Add {}, &[sum, product]))?;
    Some(bias.iter().fold(sum, |sum, &bias| ops.op(Op::Add {}, &[sum, bias])))
}

fn rms_norm(ops: &mut NewOps, args: &[Source], shapes: &[&[usize]], eps: f32) -> Option<Source> {
    let &[x, gain] = args else { return None };
    let axis = shapes.first()?.len().checked_sub(1)?;
    let squares = ops.op(Op::Mul {}, &[x, x]);
    let mean = ops.op(Op::Mean { axis }, &[squares]);
    let mean = ops.op(Op::Affine { scale: 1.0, offset: eps }, &[mean]);
    let factor = ops.op(Op::Rsqrt {}, &[mean]);
    let normed = ops.op(Op::Mul {}, &[x, factor]);
    Some(ops.op(Op::Mul {}, &[normed, gain]))
}

fn rope(ops: &mut NewOps, args: &[Source], shapes: &[&[usize]]) -> Option<Source> {
    let &[x, cos, sin] = args else { return None };
    let (&dim, outer) = shapes.first()?.split_last()?;
    let (axis, len) = (outer.len(), dim / 2);
    let low = ops.op(Op::Slice { axis, start: 0, len }, &[x]);
    let high = ops.op(Op::Slice { axis, start: len, len }, &[x]);
    let mut product = |a, b| ops.op(Op::Mul {}, &[a, b]);
    let (low_cos, high_sin) = (product(low, cos), product(high, sin));
    let (high_cos, low_sin) = (product(high, cos), product(low, sin));
    let new_low = ops.op(Op::Sub {}, &[low_cos, high_sin]);
    let new_high = ops.op(Op::Add {}, &[high_cos, low_sin]);
    Some(ops.op(Op::Concat { axis }, &[new_low, new_high]))
}

/// The largest element is taken off first, so that no exponential overflows.
fn softmax(ops: &mut NewOps, args: &[Source], shapes: &[&[usize]]) -> Option<Source> {
    let &[x] = args else { return None };
    let axis = shapes.first()?.len().checked_sub(1)?;
    let max = ops.op(Op::Max { axis }, &[x]);
    let below = ops.op(Op::Sub {}, &[x, max]);
    let exp = ops.op(Op::Exp {}, &[below]);
    let sum = ops.op(Op::Sum { axis }, &[exp]);
    Some(ops.op(Op::Div {}, &[exp, sum]))
}

fn layer_norm(ops: &mut NewOps, args: &[Source], shapes: &[&[usize]], eps: f32) -> Option<Source> {
    let &[x, gain, bias] = args else { return None };
    let axis = shapes.first()?.len().checked_sub(1)?;
    let mean = ops.op(Op::Mean { axis }, &[x]);
    let centred = ops.op(Op::Sub {}, &[x, mean]);
    let squares = ops.op(Op::Mul {}, &[centred, centred]);
    let variance = ops.op(Op::Mean { axis }, &[squares]);
    let variance = ops.op(Op::Affine { scale: 1.0, offset: eps }, &[variance]);
    let factor = ops.op(Op::Rsqrt {}, &[variance]);
    let normed = ops.op(Op::Mul {}, &[centred, factor]);
    let scaled = ops.op(Op::Mul {}, &[normed, gain]);
    Some(ops.op(Op::Add {}, &[scaled, bias]))
}

/// `(x + |x|) / 2 - |x| / 2 · erfc(|x| / √2)`, with Abramowitz and Stegun's 7.1.26 for erfc, whose error is at most 1.5e-7:
/// a polynomial of `t = 1 / (1 + 0.3275911 z)` times `e^(-z²)` for z ≥ 0.
fn gelu(ops: &mut NewOps, args: &[Source]) -> Option<Source> {
    const BY_POWER: [f32; 5] = [0.254_829_6, -0.284_496_74, 1.421_413_7, -1.453_152, 1.061_405_4];
    let &[x] = args else { return None };
    let affine = |ops: &mut NewOps, x, scale, offset| ops.op(Op::Affine { scale, offset }, &[x]);
    let magnitude = ops.op(Op::Abs {}, &[x]);
    let z = affine(ops, magnitude, std::f32::consts::FRAC_1_SQRT_2, 0.0);
    let z_squared = ops.op(Op::Mul {}, &[z, z]);
    let exponent = affine(ops, z_squared, -1.0, 0.0);
    let bell = ops.op(Op::Exp {}, &[exponent]);
    // The reciprocal of y > 0 is the reciprocal root of its square.
    let y = affine(ops, z, 0.327_591_1, 1.0);
    let y_squared = ops.op(Op::Mul {}, &[y, y]);
    let t = ops.op(Op::Rsqrt {}, &[y_squared]);
    let [low @ .., last] = BY_POWER;
    let mut polynomial = affine(ops, t, last, 0.0);
    for factor in low.into_iter().rev() {
        let sum = affine(ops, polynomial, 1.0, factor);
        polynomial = ops.op(Op::Mul {}, &[sum, t]);
    }
    let tail = ops.op(Op::Mul {}, &[polynomial, bell]);
    let tail = ops.op(Op::Mul {}, &[tail, magnitude]);
    let twice = ops.op(Op::Add {}, &[x, magnitude]);
    let twice = ops.op(Op::Sub {}, &[twice, tail]);
    Some(affine(ops, twice, 0.5, 0.0))
}

fn silu(ops: &mut NewOps, args: &[Source]) -> Option<Source> {
    let &[x] = args else { return None };
    let sigmoid = ops.op(Op::Sigmoid {}, &[x]);
    Some(ops.op(Op::Mul {}, &[x, sigmoid]))
}
