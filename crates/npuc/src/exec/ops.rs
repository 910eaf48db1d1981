//! One function per operation, over placed operands.

use std::borrow::Cow;

use npuc_kernels::attention::{Attention, attention};
use npuc_kernels::linear::{Matrix, linear};
use npuc_kernels::matmul::matmul;
use npuc_kernels::vector;

use super::{Operand, Place, Step};
use crate::ir::Op;
use crate::tensor::{DType, Shape, Tensor};

/// A kernel of two operands of one shape.
type Elementwise = fn(&[f32], &[f32], &mut [f32]);

/// Computes a step into `out`, which has exactly the elements of its shape.
pub(super) fn compute<'a>(step: &'a Step, read: impl Fn(&'a Operand) -> &'a [f32], stored: &[Tensor], out: &mut [f32]) {
    let arg = |index: usize| read(&step.args[index]);
    let dims = |index: usize| &step.args[index].shape;
    let binary = |out: &mut [f32], equal: Elementwise, f: fn(f32, f32) -> f32| match dims(0) == dims(1) {
        true => equal(arg(0), arg(1), out),
        false => broadcast((arg(0), dims(0)), (arg(1), dims(1)), (out, &step.shape), f),
    };
    match &step.op {
        Op::RmsNorm { eps } => vector::rms_norm(arg(0), arg(1), *eps, out),
        Op::LayerNorm { eps } => vector::layer_norm(arg(0), arg(1), arg(2), *eps, out),
        Op::Linear {} | Op::PointwiseConv {} => project(step, &read, stored, out),
        Op::ShortConv {} => short_conv(arg(0), (arg(1), dims(1)), step.args.get(2).map(&read), out),
        Op::Rope {} => vector::rope(arg(0), arg(1), arg(2), 2 * dims(1)[1], out),
        Op::Attention { scale } => attend(step, &arg, *scale, out),
        Op::MatMul { transpose_b } => {
            let (rank, last) = (dims(0).len(), step.shape[step.shape.len() - 1]);
            let (m, k) = (dims(0)[rank - 2], dims(0)[rank - 1]);
            matmul(arg(0), arg(1), dims(0)[..rank - 2].iter().product(), m, k, last, *transpose_b, out);
        }
        Op::Softmax {} => vector::softmax(arg(0), step.shape[step.shape.len() - 1], out),
        Op::Silu {} => vector::silu(arg(0), out),
        Op::Gelu {} => vector::gelu(arg(0), out),
        Op::Sigmoid {} => vector::sigmoid(arg(0), out),
        Op::Exp {} => vector::exp(arg(0), out),
        Op::Abs {} => out.iter_mut().zip(arg(0)).for_each(|(out, x)| *out = x.abs()),
        Op::Rsqrt {} => vector::rsqrt(arg(0), out),
        Op::Affine { scale, offset } => vector::affine(arg(0), *scale, *offset, out),
        Op::Add {} => binary(out, vector::add, |a, b| a + b),
        Op::Sub {} => binary(out, vector::sub, |a, b| a - b),
        Op::Mul {} => binary(out, vector::mul, |a, b| a * b),
        Op::Div {} => binary(out, vector::div, |a, b| a / b),
        Op::Sum { axis } => sum(arg(0), dims(0), *axis, out),
        Op::Mean { axis } => {
            sum(arg(0), dims(0), *axis, out);
            let count = dims(0)[*axis] as f32;
            out.iter_mut().for_each(|x| *x /= count);
        }
        Op::Max { axis } => reduce(arg(0), dims(0), *axis, out, f32::NEG_INFINITY, f32::max),
        Op::Concat { axis } => concat(step, &read, *axis, out),
        Op::Slice { axis, start, len } => slice(arg(0), dims(0), *axis, *start, *len, out),
        Op::Reshape { .. } => out.copy_from_slice(arg(0)),
        Op::Transpose { perm } => transpose(arg(0), dims(0), perm, &step.shape, out),
    }
}

fn project<'a>(step: &'a Step, read: &impl Fn(&'a Operand) -> &'a [f32], stored: &[Tensor], out: &mut [f32]) {
    let weight = &step.args[1];
    let (rows, cols) = (weight.shape[0], weight.shape[1]);
    let (dtype, bytes) = match &weight.place {
        Place::Stored(index) => (stored[*index].dtype, stored[*index].bytes()),
        Place::Input(_) | Place::Slot(_) | Place::Const(_) | Place::Rounded(_) => {
            (DType::F32, Cow::Borrowed(bytemuck::cast_slice(read(weight))))
        }
    };
    let x = read(&step.args[0]);
    let matrix = Matrix { dtype, bytes: &bytes, rows, cols };
    linear(x, x.len() / cols, matrix, step.args.get(2).map(read), out);
}

/// Each column of `x [l-1+t, d]` convolved by its row of `weight [d, l]`, the taps added in order.
fn short_conv(x: &[f32], weight: (&[f32], &Shape), bias: Option<&[f32]>, out: &mut [f32]) {
    let (weight, dims) = weight;
    let (width, taps) = (dims[0], dims[1]);
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        let window = &x[row * width..][..taps * width];
        for (channel, out) in out.iter_mut().enumerate() {
            let inputs = window[channel..].iter().step_by(width);
            let sum: f32 = weight[channel * taps..][..taps].iter().zip(inputs).map(|(w, x)| w * x).sum();
            *out = sum + bias.map_or(0.0, |bias| bias[channel]);
        }
    }
}

/// A row whose mask hides every column gives zeros instead of the formula's mean; runners make no such row.
fn attend<'a>(step: &Step, arg: &impl Fn(usize) -> &'a [f32], scale: f32, out: &mut [f32]) {
    let (q, past) = (&step.args[0].shape, &step.args[1].shape);
    let operands = Attention {
        q: arg(0),
        past_k: arg(1),
        past_v: arg(2),
        new_k: arg(3),
        new_v: arg(4),
        mask: arg(5),
        heads: q[0],
        kv_heads: past[0],
        tokens: q[1],
        capacity: past[1],
        dim: q[2],
        scale,
    };
    attention(&operands, out);
}

/// Strides of an operand in the result's axes; 0 where it stretches.
fn broadcast_strides(shape: &Shape, result: &Shape) -> [usize; 4] {
    let mut strides = [0; 4];
    let mut stride = 1;
    for (back, &extent) in shape.iter().rev().enumerate() {
        let stretches = extent == 1 && result[result.len() - 1 - back] != 1;
        strides[3 - back] = if stretches { 0 } else { stride };
        stride *= extent;
    }
    strides
}

/// The extents as rank 4, outermost axes 1.
fn rank4(shape: &[usize]) -> [usize; 4] {
    let mut extents = [1; 4];
    extents[4 - shape.len()..].copy_from_slice(shape);
    extents
}

fn broadcast(a: (&[f32], &Shape), b: (&[f32], &Shape), out: (&mut [f32], &Shape), f: fn(f32, f32) -> f32) {
    let (out, shape) = out;
    let (sa, sb) = (broadcast_strides(a.1, shape), broadcast_strides(b.1, shape));
    let last = shape[shape.len() - 1];
    for (row, out) in out.chunks_exact_mut(last).enumerate() {
        let (at_a, at_b) = (row_start(row, shape, &sa), row_start(row, shape, &sb));
        for (i, out) in out.iter_mut().enumerate() {
            *out = f(a.0[at_a + i * sa[3]], b.0[at_b + i * sb[3]]);
        }
    }
}

/// Where row `row` of the result begins in an operand with those strides.
fn row_start(row: usize, shape: &[usize], strides: &[usize; 4]) -> usize {
    let extents = rank4(shape);
    let (mut rest, mut start) = (row, 0);
    for axis in (0..3).rev() {
        start += (rest % extents[axis]) * strides[axis];
        rest /= extents[axis];
    }
    start
}

/// Extents before, at and after an axis.
fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// The sums along an axis.
pub(super) fn sum(x: &[f32], shape: &[usize], axis: usize, out: &mut [f32]) {
    reduce(x, shape, axis, out, 0.0, |a, b| a + b);
}

fn reduce(x: &[f32], shape: &[usize], axis: usize, out: &mut [f32], start: f32, f: fn(f32, f32) -> f32) {
    let (_, extent, inner) = around(shape, axis);
    for (block, out) in x.chunks_exact(extent * inner).zip(out.chunks_exact_mut(inner)) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = block[i..].iter().step_by(inner).fold(start, |sum, &x| f(sum, x));
        }
    }
}

fn concat<'a>(step: &'a Step, read: &impl Fn(&'a Operand) -> &'a [f32], axis: usize, out: &mut [f32]) {
    let (_, extent, inner) = around(&step.shape, axis);
    let mut start = 0;
    for operand in &step.args {
        let len = operand.shape[axis] * inner;
        for (from, to) in read(operand).chunks_exact(len).zip(out.chunks_exact_mut(extent * inner)) {
            to[start..start + len].copy_from_slice(from);
        }
        start += len;
    }
}

fn slice(x: &[f32], shape: &[usize], axis: usize, start: usize, len: usize, out: &mut [f32]) {
    let (_, extent, inner) = around(shape, axis);
    for (from, to) in x.chunks_exact(extent * inner).zip(out.chunks_exact_mut(len * inner)) {
        to.copy_from_slice(&from[start * inner..(start + len) * inner]);
    }
}

fn transpose(x: &[f32], from: &Shape, perm: &[usize], to: &Shape, out: &mut [f32]) {
    let mut strides = [0; 4];
    for (axis, &source) in perm.iter().enumerate() {
        strides[4 - perm.len() + axis] = from[source + 1..].iter().product();
    }
    let last = to[to.len() - 1];
    for (row, out) in out.chunks_exact_mut(last).enumerate() {
        let start = row_start(row, to, &strides);
        if strides[3] == 1 {
            out.copy_from_slice(&x[start..start + last]);
        } else {
            out.iter_mut().enumerate().for_each(|(i, out)| *out = x[start + i * strides[3]]);
        }
    }
}
