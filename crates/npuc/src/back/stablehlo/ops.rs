//! Operations as lines of StableHLO, and where its compilers need them, of linalg.

use std::ops::Range;

use super::emit::{Emitter, Term};
use super::{CacheWrites, Constant, Dialect, Element, cache, projection};
use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Def, Op, ValueId};

/// Writes the operation whose result is `id`.
pub(super) fn emit(e: &mut Emitter<'_>, id: ValueId, op: &Op, args: &[ValueId]) -> Result<()> {
    match op {
        Op::Linear {} => projection::emit(e, id, args),
        Op::ShortConv {} => short_conv(e, id, args),
        Op::MatMul { transpose_b } => matmul(e, id, args, *transpose_b),
        Op::Softmax {} => softmax(e, id, args[0]),
        Op::Sigmoid {} => unary(e, id, "logistic", args[0]),
        Op::Exp {} => unary(e, id, "exponential", args[0]),
        Op::Abs {} => unary(e, id, "abs", args[0]),
        Op::Rsqrt {} => rsqrt(e, id, args[0]),
        Op::Affine { scale, offset } => affine(e, id, args[0], *scale, *offset),
        Op::Add {} => match (e.style.dialect, e.style.cache_writes, cache::written(e, args)) {
            (Dialect::Torq, CacheWrites::Chosen, Some(written)) if e.leaves(id) => {
                e.writes.push((id, written));
                Ok(())
            }
            (Dialect::Torq | Dialect::Iree, CacheWrites::Chosen | CacheWrites::Added, _) => binary(e, id, "add", args),
        },
        Op::Sub {} => binary(e, id, "subtract", args),
        Op::Mul {} => binary(e, id, "multiply", args),
        Op::Div {} => binary(e, id, "divide", args),
        Op::Sum { axis } => reduce(e, id, args[0], *axis, "add", None),
        Op::Mean { axis } => reduce(e, id, args[0], *axis, "add", Some(e.shape(args[0])[*axis])),
        Op::Max { axis } => reduce(e, id, args[0], *axis, "maximum", None),
        Op::Concat { axis } => concat(e, id, args, *axis),
        Op::Slice { axis, start, len } => slice(e, id, args[0], *axis, *start..*start + *len),
        Op::Reshape { .. } => {
            let x = e.operand(args[0])?;
            e.define(id, &x);
            Ok(())
        }
        Op::Transpose { perm } => transpose(e, id, args[0], perm),
        Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Rope {}
        | Op::Attention { .. }
        | Op::Silu {}
        | Op::Gelu {}
        | Op::PointwiseConv {} => {
            let fault = Diagnostic::error(Code::Misfit, "the operation has no form in StableHLO");
            Err(fault.subject(&e.value(id).name).have(op.name()).help("decompose it first").into())
        }
    }
}

/// A convolution of every channel by itself.
fn short_conv(e: &mut Emitter<'_>, id: ValueId, args: &[ValueId]) -> Result<()> {
    let (x, w) = (e.operand(args[0])?, e.operand(args[1])?);
    let (channels, window) = (w.shape[0], w.shape[1]);
    let x_shape = [1, x.shape[0], channels];
    let (x, w) = (e.reshape(x, &x_shape), e.reshape(w, &[channels, 1, window]));
    let tokens = e.shape(id)[0];
    let y = e.term(&[1, tokens, channels], x.element);
    e.line(format_args!(
        "{} = stablehlo.convolution({}, {}) dim_numbers = [b, 0, f]x[o, i, 0]->[b, 0, f], window = {{stride = [1], pad = \
         [[0, 0]]}} {{batch_group_count = 1 : i64, feature_group_count = {channels} : i64}} : ({}, {}) -> {}",
        y.name,
        x.name,
        w.name,
        x.ty(),
        w.ty(),
        y.ty()
    ));
    let y = match args.get(2) {
        None => y,
        Some(&bias) => {
            let bias = e.operand(bias)?;
            let bias = broadcast(e, bias, &y.shape);
            let sum = e.term(&y.shape, y.element);
            e.line(format_args!("{} = stablehlo.add {}, {} : {}", sum.name, y.name, bias.name, sum.ty()));
            sum
        }
    };
    e.define(id, &y);
    Ok(())
}

fn unary(e: &mut Emitter<'_>, id: ValueId, name: &str, x: ValueId) -> Result<()> {
    let x = e.operand(x)?;
    let to = e.result(id);
    e.line(format_args!("{} = stablehlo.{name} {} : {}", to.name, x.name, to.ty()));
    Ok(())
}

/// Torq's root is off by up to 1 % (torq-compile 2.3.0), which one step of Newton's method halves: `y + y · -(x·y·y - 1) / 2`. The
/// host follows every rounding of it (`exec/integer/torq`).
fn rsqrt(e: &mut Emitter<'_>, id: ValueId, x: ValueId) -> Result<()> {
    if e.style.dialect == Dialect::Iree {
        return unary(e, id, "rsqrt", x);
    }
    let x = e.operand(x)?;
    let shape = x.shape.clone();
    let line = |e: &mut Emitter<'_>, name: &str, operands: &[&Term]| {
        let to = e.term(&shape, x.element);
        let operands: Vec<&str> = operands.iter().map(|term| term.name.as_str()).collect();
        e.line(format_args!("{} = stablehlo.{name} {} : {}", to.name, operands.join(", "), to.ty()));
        to
    };
    let root = line(e, "rsqrt", &[&x]);
    let (minus_one, minus_half) = (e.splat(-1.0, &shape), e.splat(-0.5, &shape));
    let square = line(e, "multiply", &[&x, &root]);
    let square = line(e, "multiply", &[&square, &root]);
    let error = line(e, "add", &[&square, &minus_one]);
    let error = line(e, "multiply", &[&error, &minus_half]);
    let step = line(e, "multiply", &[&error, &root]);
    let to = e.result(id);
    e.line(format_args!("{} = stablehlo.add {}, {} : {}", to.name, root.name, step.name, to.ty()));
    Ok(())
}

fn affine(e: &mut Emitter<'_>, id: ValueId, x: ValueId, scale: f32, offset: f32) -> Result<()> {
    let mut x = e.operand(x)?;
    let steps = [(scale, 1.0, "multiply"), (offset, 0.0, "add")];
    let steps: Vec<_> = steps.into_iter().filter(|(by, neutral, _)| by != neutral).collect();
    for (place, (by, _, name)) in steps.iter().enumerate() {
        let by = e.splat(*by, &x.shape);
        let to = if place + 1 == steps.len() { e.result(id) } else { e.term(&x.shape, x.element) };
        e.line(format_args!("{} = stablehlo.{name} {}, {} : {}", to.name, x.name, by.name, to.ty()));
        x = to;
    }
    if steps.is_empty() {
        e.define(id, &x);
    }
    Ok(())
}

fn binary(e: &mut Emitter<'_>, id: ValueId, name: &str, args: &[ValueId]) -> Result<()> {
    let to = e.result(id);
    let mut terms = Vec::with_capacity(2);
    for (&arg, &other) in args.iter().zip([&args[1], &args[0]]) {
        let x = e.operand(arg)?;
        let x = if e.is_write_mask(other) { barrier(e, x) } else { x };
        terms.push(broadcast(e, x, &to.shape));
    }
    e.line(format_args!("{} = stablehlo.{name} {}, {} : {}", to.name, terms[0].name, terms[1].name, to.ty()));
    Ok(())
}

/// Keeps IREE from fusing a projection with the write of its rows into a cache, which it refuses to compile for Mali from
/// 512 rows on.
fn barrier(e: &mut Emitter<'_>, x: Term) -> Term {
    match e.style.dialect {
        Dialect::Torq => x,
        Dialect::Iree => {
            let to = e.term(&x.shape, x.element);
            e.line(format_args!("{} = stablehlo.optimization_barrier {} : {}", to.name, x.name, to.ty()));
            to
        }
    }
}

/// The operand stretched to `shape`, aligned at the last axis. Axes of extent 1 are dropped first: Torq stretches none in its place.
pub(super) fn broadcast(e: &mut Emitter<'_>, x: Term, shape: &[usize]) -> Term {
    if x.shape == shape {
        return x;
    }
    let first = shape.len() - x.shape.len();
    let kept: Vec<usize> = (0..x.shape.len()).filter(|&axis| x.shape[axis] > 1).collect();
    let extents: Vec<usize> = kept.iter().map(|&axis| x.shape[axis]).collect();
    let x = e.reshape(x, &extents);
    if x.shape == shape {
        return x;
    }
    let to = e.term(shape, x.element);
    let dims: Vec<String> = kept.iter().map(|axis| (first + axis).to_string()).collect();
    e.line(format_args!(
        "{} = stablehlo.broadcast_in_dim {}, dims = [{}] : ({}) -> {}",
        to.name,
        x.name,
        dims.join(", "),
        x.ty(),
        to.ty()
    ));
    to
}

/// `axis` stays with extent 1. With `mean` the sum is divided by that count.
fn reduce(e: &mut Emitter<'_>, id: ValueId, x: ValueId, axis: usize, name: &str, mean: Option<usize>) -> Result<()> {
    let x = e.operand(x)?;
    let start = if name == "add" { 0.0 } else { lowest(x.element) };
    let start = e.splat(start, &[]);
    let outer: Vec<usize> = x.shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, &n)| n).collect();
    let mut reduced = e.term(&outer, x.element);
    e.line(format_args!(
        "{} = stablehlo.reduce({} init: {}) applies stablehlo.{name} across dimensions = [{axis}] : ({}, {}) -> {}",
        reduced.name,
        x.name,
        start.name,
        x.ty(),
        start.ty(),
        reduced.ty()
    ));
    if let Some(count) = mean {
        let by = e.splat(1.0 / count as f32, &outer);
        let to = e.term(&outer, x.element);
        e.line(format_args!("{} = stablehlo.multiply {}, {} : {}", to.name, reduced.name, by.name, to.ty()));
        reduced = to;
    }
    e.define(id, &reduced);
    Ok(())
}

/// The lowest finite number: the compilers turn infinities into other numbers.
fn lowest(element: Element) -> f32 {
    match element {
        Element::F16 => -65504.0,
        Element::Bf16 => f32::from_bits(0xFF7F_0000),
        Element::F32 | Element::I8 | Element::I4 => f32::MIN,
    }
}

fn concat(e: &mut Emitter<'_>, id: ValueId, args: &[ValueId], axis: usize) -> Result<()> {
    let terms = args.iter().map(|&arg| e.operand(arg)).collect::<Result<Vec<Term>>>()?;
    let to = e.result(id);
    join(e, &terms, axis, &to);
    Ok(())
}

pub(super) fn join(e: &mut Emitter<'_>, terms: &[Term], axis: usize, to: &Term) {
    let names: Vec<&str> = terms.iter().map(|term| term.name.as_str()).collect();
    let types: Vec<String> = terms.iter().map(Term::ty).collect();
    e.line(format_args!(
        "{} = stablehlo.concatenate {}, dim = {axis} : ({}) -> {}",
        to.name,
        names.join(", "),
        types.join(", "),
        to.ty()
    ));
}

fn slice(e: &mut Emitter<'_>, id: ValueId, x: ValueId, axis: usize, part: Range<usize>) -> Result<()> {
    let x = e.operand(x)?;
    let to = e.result(id);
    cut_into(e, &x, axis, part, &to);
    Ok(())
}

pub(super) fn cut_into(e: &mut Emitter<'_>, x: &Term, axis: usize, part: Range<usize>, to: &Term) {
    let extent = |(i, &n): (usize, &usize)| match i == axis {
        true => format!("{}:{}", part.start, part.end),
        false => format!("0:{n}"),
    };
    let extents: Vec<String> = x.shape.iter().enumerate().map(extent).collect();
    e.line(format_args!(
        "{} = stablehlo.slice {} [{}] : ({}) -> {}",
        to.name,
        x.name,
        extents.join(", "),
        x.ty(),
        to.ty()
    ));
}

/// A permutation that leaves the order of all axes longer than 1 moves nothing. Torq turns no matrix on the slices, so one of weights is
/// stored turned.
fn transpose(e: &mut Emitter<'_>, id: ValueId, x: ValueId, perm: &[usize]) -> Result<()> {
    if e.style.dialect == Dialect::Torq && perm == [1, 0] && e.value(x).def == Def::Weight {
        let turned = e.constant(Constant::transposed(&e.value(x).name, &e.weight(x)?))?;
        e.define(id, &turned);
        return Ok(());
    }
    let x = e.operand(x)?;
    let long: Vec<usize> = perm.iter().copied().filter(|&axis| x.shape[axis] > 1).collect();
    if long.is_sorted() {
        e.define(id, &x);
        return Ok(());
    }
    let to = e.result(id);
    let dims: Vec<String> = perm.iter().map(usize::to_string).collect();
    e.line(format_args!(
        "{} = stablehlo.transpose {}, dims = [{}] : ({}) -> {}",
        to.name,
        x.name,
        dims.join(", "),
        x.ty(),
        to.ty()
    ));
    Ok(())
}

fn matmul(e: &mut Emitter<'_>, id: ValueId, args: &[ValueId], transpose_b: bool) -> Result<()> {
    let a = e.operand(args[0])?;
    let b = e.operand(args[1])?;
    let a = if e.is_write_mask(args[1]) { barrier(e, a) } else { a };
    let b = if e.is_write_mask(args[0]) { barrier(e, b) } else { b };
    let rank = b.shape.len();
    if e.style.dialect == Dialect::Torq && transpose_b && b.shape[rank - 2] == b.shape[rank - 1] {
        let message = "the NPU's compiler computes a product with a turned square matrix wrong";
        return Err(Diagnostic::error(Code::Misfit, message)
            .subject(&e.value(id).name)
            .need("keys stored as columns, or a capacity other than the width of a head")
            .have(format!("{} turned", b.ty()))
            .help("run the pass `keys-as-columns`")
            .into());
    }
    let is_row = a.shape[..rank - 1].iter().all(|&extent| extent == 1);
    let product = match (e.style.dialect, is_row, transpose_b) {
        // The compiler makes a vector of a single row, whose products leave the slices unless they are written as a batch.
        (Dialect::Torq, true, false) => {
            let batch = [1, b.shape[rank - 2], b.shape[rank - 1]];
            let (a, b) = (e.reshape(a, &[1, batch[1]]), e.reshape(b, &batch));
            projection::batch_matmul(e, a, b)?
        }
        (Dialect::Torq | Dialect::Iree, _, _) => dot(e, &a, &b, transpose_b),
    };
    e.define(id, &product);
    Ok(())
}

fn dot(e: &mut Emitter<'_>, a: &Term, b: &Term, transpose_b: bool) -> Term {
    let rank = a.shape.len();
    let batch: Vec<String> = (0..rank - 2).map(|axis| axis.to_string()).collect();
    let batch = batch.join(", ");
    let batch = if batch.is_empty() { String::new() } else { format!("batching_dims = [{batch}] x [{batch}], ") };
    let (inner, outer) = if transpose_b { (rank - 1, rank - 2) } else { (rank - 2, rank - 1) };
    let to = e.term(&[&a.shape[..rank - 1], &[b.shape[outer]]].concat(), a.element);
    e.line(format_args!(
        "{} = stablehlo.dot_general {}, {}, {batch}contracting_dims = [{}] x [{inner}] : ({}, {}) -> {}",
        to.name,
        a.name,
        b.name,
        rank - 1,
        a.ty(),
        b.ty(),
        to.ty()
    ));
    to
}

fn softmax(e: &mut Emitter<'_>, id: ValueId, x: ValueId) -> Result<()> {
    let x = e.operand(x)?;
    let empty = e.term(&x.shape, x.element);
    e.line(format_args!("{} = tensor.empty() : {}", empty.name, empty.ty()));
    let to = e.result(id);
    let axis = x.shape.len() - 1;
    e.line(format_args!(
        "{} = linalg.softmax dimension({axis}) ins({} : {}) outs({} : {}) -> {}",
        to.name,
        x.name,
        x.ty(),
        empty.name,
        empty.ty(),
        to.ty()
    ));
    Ok(())
}
