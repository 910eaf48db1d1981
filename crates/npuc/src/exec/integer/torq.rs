//! Single operations on bf16 numbers in the arithmetic of Torq's slices, bit for bit what the simulator of torq-runtime 2.3.0 gives.
//!
//! A product halfway between two numbers becomes the even one at even places of the result and the upper one at odd places. The
//! reciprocal root is not a table but a shifted bit pattern with a step of Newton's method, every part of it rounded.

use half::bf16;

use super::super::{Operand, Step, ops};
use crate::ir::Op;

/// An operation whose arithmetic is more than its result rounded once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arithmetic {
    /// Two numbers multiplied.
    Product,
    /// `x * scale`, then `+ offset`.
    Affine(f32, f32),
    /// A sum along an axis, multiplied by the reciprocal of its extent.
    Mean(usize),
    /// A reciprocal root.
    Rsqrt,
    /// Exponentials multiplied by the reciprocal of their sum.
    Softmax,
}

/// The arithmetic of an operation.
pub(super) const fn arithmetic(op: &Op) -> Option<Arithmetic> {
    match op {
        Op::Mul {} => Some(Arithmetic::Product),
        Op::Affine { scale, offset } => Some(Arithmetic::Affine(*scale, *offset)),
        Op::Mean { axis } => Some(Arithmetic::Mean(*axis)),
        Op::Rsqrt {} => Some(Arithmetic::Rsqrt),
        Op::Softmax {} => Some(Arithmetic::Softmax),
        Op::Linear {} | Op::PointwiseConv {} | Op::ShortConv {} | Op::MatMul { .. } => None,
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::Gelu {} | Op::Rope {} | Op::Attention { .. } | Op::Silu {} => {
            None
        }
        Op::Sigmoid {} | Op::Exp {} | Op::Abs {} | Op::Add {} | Op::Sub {} | Op::Div {} => None,
        Op::Sum { .. } | Op::Max { .. } | Op::Concat { .. } | Op::Slice { .. } => None,
        Op::Reshape { .. } | Op::Transpose { .. } => None,
    }
}

/// Computes a step of that arithmetic. Gives how many results are not finite.
pub(super) fn compute<'a>(
    arithmetic: Arithmetic,
    step: &'a Step,
    read: impl Fn(&'a Operand) -> &'a [f32],
    out: &mut [f32],
) -> u64 {
    let Operand { shape, .. } = &step.args[0];
    let x = read(&step.args[0]);
    match arithmetic {
        Arithmetic::Product => {
            // Products of two bf16 numbers are exact in f32.
            ops::compute(step, read, &[], out);
            out.iter_mut().enumerate().for_each(|(place, y)| *y = product(*y, 1.0, place));
        }
        Arithmetic::Affine(scale, offset) => {
            let (scale, offset) = (rounded(scale), rounded(offset));
            for (place, (y, &x)) in out.iter_mut().zip(x).enumerate() {
                let scaled = if scale == 1.0 { x } else { product(x, scale, place) };
                *y = if offset == 0.0 { scaled } else { rounded(scaled + offset) };
            }
        }
        Arithmetic::Mean(axis) => {
            ops::sum(x, shape, axis, out);
            let by = rounded(1.0 / shape[axis] as f32);
            out.iter_mut().enumerate().for_each(|(place, y)| *y = product(rounded(*y), by, place));
        }
        Arithmetic::Rsqrt => {
            out.iter_mut().zip(x).enumerate().for_each(|(place, (y, &x))| *y = rsqrt(x, place));
        }
        Arithmetic::Softmax => softmax(x, shape[shape.len() - 1], out),
    }
    out.iter().filter(|y| !y.is_finite()).count() as u64
}

pub(super) fn rounded(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// The product of two numbers as the element of that place in a result.
fn product(a: f32, b: f32, place: usize) -> f32 {
    let exact = a * b;
    let bits = exact.to_bits();
    let is_half = bits & 0xFFFF == 0x8000;
    if place % 2 == 1 && is_half && exact.is_finite() {
        // Away from zero for a positive number, towards it for a negative one.
        return f32::from_bits(if exact > 0.0 { (bits | 0xFFFF) + 1 } else { bits & 0xFFFF_0000 });
    }
    rounded(exact)
}

/// `1 / sqrt(x)` as the compiler writes it, and one more step of Newton's method as npuc does: `y + y · -(x·y·y - 1) / 2`.
fn rsqrt(x: f32, place: usize) -> f32 {
    let times = |a: f32, b: f32| product(a, b, place);
    let pattern = 0x5F37_i32 - ((x.to_bits() >> 16) as i32 >> 1);
    let first = f32::from_bits((pattern as u32) << 16);
    let squared = times(times(times(x, 0.5), first), first);
    let y = times(first, rounded(1.5 - squared));
    let error = rounded(times(times(x, y), y) - 1.0);
    rounded(y + times(times(error, -0.5), y))
}

/// The exponential is a table that errs by a step of bf16 where it is below a thousandth; here it is exact and rounded.
fn softmax(x: &[f32], len: usize, out: &mut [f32]) {
    for (row, (x, out)) in x.chunks_exact(len).zip(out.chunks_exact_mut(len)).enumerate() {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        out.iter_mut().zip(x).for_each(|(y, &x)| *y = rounded(rounded(x - max).exp()));
        let by = rounded(1.0 / rounded(out.iter().sum()));
        out.iter_mut().zip(row * len..).for_each(|(y, place)| *y = product(*y, by, place));
    }
}

#[cfg(test)]
#[path = "torq_tests.rs"]
mod tests;
