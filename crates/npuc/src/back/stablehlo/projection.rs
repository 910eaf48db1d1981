//! Projections: products of activations with weights, which stay packed where they are in blocks.
//!
//! IREE fuses the dequantisation of blocks with their product only where both are one `linalg.generic`, and then keeps no
//! f32 weights; Torq only where blocks are `[blocks, block, out]` in front of a batched product of one row.

use super::constant::{Blocks, Constant, Part};
use super::emit::{Emitter, Term, no_form};
use super::{Dialect, Element, Products, Side, ops};
use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Def, Op, ValueId};
use crate::tensor::Tensor;

/// Writes `x [.., in] · weight [out, in]ᵀ (+ bias)`.
pub(super) fn emit(e: &mut Emitter<'_>, id: ValueId, args: &[ValueId]) -> Result<()> {
    let x = e.operand(args[0])?;
    let name = e.value(args[1]).name.clone();
    let weight = e.weight(args[1])?;
    let &[out, cols] = &weight.shape[..] else { return Err(no_form(&name, &weight)) };
    let rows = x.shape.iter().product::<usize>() / cols.max(1);
    let x = e.reshape(x, &[rows, cols]);
    let blocks = Blocks::of(weight.dtype, cols);
    if let (Dialect::Torq, Products::Joined, Some(blocks)) = (e.style.dialect, e.style.products, blocks) {
        let alike = alike(e, args);
        if alike.len() > 1 {
            return joined(e, id, &alike, blocks, x);
        }
    }
    // Lets whoever reads a compiler's complaint find the weight.
    e.line(format_args!("// {name}"));
    let y = match (e.style.dialect, blocks) {
        (Dialect::Iree, None) => iree_plain(e, &name, &weight, x)?,
        (Dialect::Iree, Some(blocks)) => iree_blocks(e, &name, &weight, blocks, x)?,
        (Dialect::Torq, None) => torq_plain(e, &name, &weight, x)?,
        (Dialect::Torq, Some(blocks)) => torq_matrix(e, &name, &weight, blocks, x)?,
    };
    if blocks.is_some() {
        e.packed.push(name);
    }
    let Some(&bias) = args.get(2) else {
        e.define(id, &y);
        return Ok(());
    };
    let bias = e.operand(bias)?;
    let wide = e.term(&[rows, out], y.element);
    e.line(format_args!(
        "{} = stablehlo.broadcast_in_dim {}, dims = [1] : ({}) -> {}",
        wide.name,
        bias.name,
        bias.ty(),
        wide.ty()
    ));
    let sum = e.term(&[rows, out], y.element);
    e.line(format_args!("{} = stablehlo.add {}, {} : {}", sum.name, y.name, wide.name, sum.ty()));
    e.define(id, &sum);
    Ok(())
}

/// Projections without a bias of the same values by matrices in one format, none with more rows than columns: their results and
/// weights.
fn alike(e: &Emitter<'_>, args: &[ValueId]) -> Vec<(ValueId, ValueId)> {
    let &[x, weight] = args else { return Vec::new() };
    let dtype = e.value(weight).ty.dtype;
    let same = |id: &ValueId| match &e.value(*id).def {
        Def::Op { op: Op::Linear {}, args } => match args[..] {
            [other, weight] if other == x && e.value(weight).ty.dtype == dtype => Some((*id, weight)),
            _ => None,
        },
        Def::Op { .. } | Def::Input | Def::Weight => None,
    };
    let narrow = |&(_, weight): &(ValueId, ValueId)| e.shape(weight)[0] <= e.shape(weight)[1];
    let all: Vec<(ValueId, ValueId)> = e.graph.ids().filter_map(|id| same(&id)).collect();
    if all.iter().all(narrow) { all } else { Vec::new() }
}

/// Such projections as one product, at the first of them.
fn joined(e: &mut Emitter<'_>, id: ValueId, alike: &[(ValueId, ValueId)], blocks: Blocks, x: Term) -> Result<()> {
    if alike[0].0 != id {
        return Ok(());
    }
    let matrices = alike.iter().map(|&(_, weight)| e.weight(weight)).collect::<Result<Vec<Tensor>>>()?;
    let names: Vec<String> = alike.iter().map(|&(_, weight)| e.value(weight).name.clone()).collect();
    let name = names.join(" and ");
    e.line(format_args!("// {name}"));
    let y = torq_blocks(e, &name, &matrices, blocks, x)?;
    let mut start = 0;
    for (&(result, _), matrix) in alike.iter().zip(&matrices) {
        let end = start + matrix.shape[0];
        let part = e.term(&[y.shape[0], matrix.shape[0]], y.element);
        ops::cut_into(e, &y, 1, start..end, &part);
        e.define(result, &part);
        start = end;
    }
    e.packed.extend(names);
    Ok(())
}

/// `[rows, out]`, with the matrix on the side that the style says.
fn iree_plain(e: &mut Emitter<'_>, name: &str, weight: &Tensor, x: Term) -> Result<Term> {
    let constant = Constant::plain(name, weight).ok_or_else(|| no_form(name, weight))?;
    let w = e.constant(constant)?;
    let w = e.convert(w, e.activation);
    let (rows, out) = (x.shape[0], w.shape[0]);
    let dot = |e: &mut Emitter<'_>, a: &Term, b: &Term, shape: &[usize]| {
        let to = e.term(shape, a.element);
        let axes = [a.shape.len() - 1, b.shape.len() - 1];
        e.line(format_args!(
            "{} = stablehlo.dot_general {}, {}, contracting_dims = [{}] x [{}] : ({}, {}) -> {}",
            to.name,
            a.name,
            b.name,
            axes[0],
            axes[1],
            a.ty(),
            b.ty(),
            to.ty()
        ));
        to
    };
    match (e.style.side, rows) {
        (Side::Right, _) => Ok(dot(e, &x, &w, &[rows, out])),
        (Side::Left, 1) => {
            let x = e.reshape(x, &[w.shape[1]]);
            let y = dot(e, &w, &x, &[out]);
            Ok(e.reshape(y, &[1, out]))
        }
        (Side::Left, _) => {
            let y = dot(e, &w, &x, &[out, rows]);
            let to = e.term(&[rows, out], y.element);
            e.line(format_args!(
                "{} = stablehlo.transpose {}, dims = [1, 0] : ({}) -> {}",
                to.name,
                y.name,
                y.ty(),
                to.ty()
            ));
            Ok(to)
        }
    }
}

/// Sums of each block first, which read the packed numbers and no others, then the scaled sum of blocks.
fn iree_blocks(e: &mut Emitter<'_>, name: &str, weight: &Tensor, blocks: Blocks, x: Term) -> Result<Term> {
    let q = e.constant(Constant::of_blocks(name, weight, blocks, Part::Quants))?;
    let s = e.constant(Constant::of_blocks(name, weight, blocks, Part::Scales))?;
    let (rows, out, count) = (x.shape[0], q.shape[0], q.shape[1]);
    let x = e.reshape(x, &[rows, count, blocks.len]);
    let sums = generic(
        e,
        Generic {
            axes: "d0, d1, d2, d3",
            maps: ["(d1, d2, d3)", "(d0, d2, d3)", "(d0, d1, d2)"],
            reduced: 1,
            inputs: [&q, &x],
            shape: &[rows, out, count],
        },
    );
    let mut y = generic(
        e,
        Generic {
            axes: "d0, d1, d2",
            maps: ["(d1, d2)", "(d0, d1, d2)", "(d0, d1)"],
            reduced: 1,
            inputs: [&s, &sums],
            shape: &[rows, out],
        },
    );
    if blocks.minima {
        let m = e.constant(Constant::of_blocks(name, weight, blocks, Part::Minima))?;
        let zero = e.splat(0.0, &[]);
        let of_x = e.term(&[rows, count], x.element);
        e.line(format_args!(
            "{} = stablehlo.reduce({} init: {}) applies stablehlo.add across dimensions = [2] : ({}, {}) -> {}",
            of_x.name,
            x.name,
            zero.name,
            x.ty(),
            zero.ty(),
            of_x.ty()
        ));
        let added = generic(
            e,
            Generic {
                axes: "d0, d1, d2",
                maps: ["(d1, d2)", "(d0, d2)", "(d0, d1)"],
                reduced: 1,
                inputs: [&m, &of_x],
                shape: &[rows, out],
            },
        );
        let sum = e.term(&[rows, out], y.element);
        e.line(format_args!("{} = stablehlo.add {}, {} : {}", sum.name, y.name, added.name, sum.ty()));
        y = sum;
    }
    Ok(y)
}

/// A sum of products as one `linalg.generic`.
struct Generic<'a> {
    axes: &'a str,
    /// Of the two inputs and the result.
    maps: [&'a str; 3],
    /// How many of the last axes are summed over.
    reduced: usize,
    inputs: [&'a Term; 2],
    shape: &'a [usize],
}

fn generic(e: &mut Emitter<'_>, g: Generic<'_>) -> Term {
    let zeros = e.splat(0.0, g.shape);
    let to = e.term(g.shape, zeros.element);
    let rank = g.axes.split(", ").count();
    let kinds: Vec<&str> =
        (0..rank).map(|axis| if axis + g.reduced < rank { "\"parallel\"" } else { "\"reduction\"" }).collect();
    let maps: Vec<String> = g.maps.iter().map(|map| format!("affine_map<({}) -> {map}>", g.axes)).collect();
    let [a, b] = g.inputs;
    let (left, acc) = (a.element, zeros.element);
    e.line(format_args!(
        "{} = linalg.generic {{indexing_maps = [{}], iterator_types = [{}]}} ins({}, {} : {}, {}) outs({} : {}) {{",
        to.name,
        maps.join(", "),
        kinds.join(", "),
        a.name,
        b.name,
        a.ty(),
        b.ty(),
        zeros.name,
        to.ty()
    ));
    e.line(format_args!("^bb0(%a: {left}, %b: {acc}, %sum: {acc}):"));
    let a = match left {
        Element::I8 | Element::I4 => "sitofp",
        Element::F16 | Element::Bf16 => "extf",
        Element::F32 => "",
    };
    let name = if a.is_empty() {
        "%a"
    } else {
        e.line(format_args!("  %wide = arith.{a} %a : {left} to {acc}"));
        "%wide"
    };
    e.line(format_args!("  %product = arith.mulf {name}, %b : {acc}"));
    e.line(format_args!("  %next = arith.addf %sum, %product : {acc}"));
    e.line(format_args!("  linalg.yield %next : {acc}"));
    e.line(format_args!("}} -> {}", to.ty()));
    to
}

/// A plain matrix in bf16 as a batched product, which alone lands on the slices.
fn torq_plain(e: &mut Emitter<'_>, name: &str, weight: &Tensor, x: Term) -> Result<Term> {
    let w = e.constant(Constant::transposed(name, weight))?;
    batch_matmul(e, x, w)
}

/// A matrix as one product or two.
fn torq_matrix(e: &mut Emitter<'_>, name: &str, weight: &Tensor, blocks: Blocks, x: Term) -> Result<Term> {
    let out = weight.shape[0];
    // Halves of an odd number of columns would leave 4-bit rows in the middle of a byte.
    if e.style.products != Products::Halved || !out.is_multiple_of(4) {
        return torq_blocks(e, name, std::slice::from_ref(weight), blocks, x);
    }
    let mut halves = Vec::with_capacity(2);
    for rows in [0..out / 2, out / 2..out] {
        let half = weight.rows(rows).ok_or_else(|| no_form(name, weight))?;
        halves.push(torq_blocks(e, name, &[half], blocks, x.clone())?);
    }
    let to = e.term(&[x.shape[0], out], x.element);
    ops::join(e, &halves, 1, &to);
    Ok(to)
}

/// The form that Torq raises to a product with weights in blocks: dequantised tile by tile beside the multipliers.
fn torq_blocks(e: &mut Emitter<'_>, name: &str, matrices: &[Tensor], blocks: Blocks, x: Term) -> Result<Term> {
    if blocks.minima || !TORQ_BLOCKS.contains(&blocks.len) {
        return Err(no_form(name, &matrices[0]));
    }
    if x.shape[0] > 1 {
        return Err(Diagnostic::error(Code::Misfit, "the NPU multiplies packed weights with one row at a time")
            .subject(name)
            .need("steps of one token")
            .have(format!("{} rows", x.shape[0]))
            .help("build for shapes of one token, e.g. --shapes 1t64c")
            .into());
    }
    let q = e.constant(Constant::of_turned_blocks(name, matrices, blocks, Part::TurnedQuants))?;
    let s = e.constant(Constant::of_turned_blocks(name, matrices, blocks, Part::TurnedScales))?;
    let empty = e.term(&q.shape, Element::Bf16);
    e.line(format_args!("{} = tensor.empty() : {}", empty.name, empty.ty()));
    let d = e.term(&q.shape, Element::Bf16);
    let map = |text: &str| format!("affine_map<(d0, d1, d2) -> {text}>");
    let (own, scale) = (map("(d0, d1, d2)"), map("(d0, 0, d2)"));
    e.line(format_args!(
        "{} = linalg.generic {{indexing_maps = [{own}, {scale}, {own}], iterator_types = [\"parallel\", \"parallel\", \
         \"parallel\"]}} ins({}, {} : {}, {}) outs({} : {}) {{",
        d.name,
        q.name,
        s.name,
        q.ty(),
        s.ty(),
        empty.name,
        empty.ty()
    ));
    e.line(format_args!("^bb0(%a: {}, %b: bf16, %old: bf16):", q.element));
    e.line(format_args!("  %wide = arith.sitofp %a : {} to bf16", q.element));
    e.line(format_args!("  %product = arith.mulf %wide, %b : bf16"));
    e.line(format_args!("  linalg.yield %product : bf16"));
    e.line(format_args!("}} -> {}", d.ty()));
    let (cols, out) = (q.shape[0] * q.shape[1], q.shape[2]);
    let flat = e.term(&[cols, out], Element::Bf16);
    e.line(format_args!(
        "{} = tensor.collapse_shape {} [[0, 1], [2]] : {} into {}",
        flat.name,
        d.name,
        d.ty(),
        flat.ty()
    ));
    let w = e.term(&[1, cols, out], Element::Bf16);
    e.line(format_args!(
        "{} = tensor.expand_shape {} [[0, 1], [2]] output_shape [1, {cols}, {out}] : {} into {}",
        w.name,
        flat.name,
        flat.ty(),
        w.ty()
    ));
    batch_matmul(e, x, w)
}

/// The lengths of blocks that Torq 2.3.0 raises.
const TORQ_BLOCKS: [usize; 4] = [16, 32, 64, 128];

/// `x [rows, in] · w [1, in, out]`.
pub(super) fn batch_matmul(e: &mut Emitter<'_>, x: Term, w: Term) -> Result<Term> {
    let (rows, out) = (x.shape[0], w.shape[2]);
    let x = e.reshape(x, &[1, rows, w.shape[1]]);
    // Torq folds the weights into the product only over a filled result, not over a constant.
    let number = e.term(&[], Element::Bf16);
    e.line(format_args!("{} = arith.constant 0.0 : bf16", number.name));
    let (empty, zero) = (e.term(&[1, rows, out], Element::Bf16), e.term(&[1, rows, out], Element::Bf16));
    e.line(format_args!("{} = tensor.empty() : {}", empty.name, empty.ty()));
    e.line(format_args!(
        "{} = linalg.fill ins({} : bf16) outs({} : {}) -> {}",
        zero.name,
        number.name,
        empty.name,
        empty.ty(),
        zero.ty()
    ));
    let y = e.term(&[1, rows, out], Element::Bf16);
    e.line(format_args!(
        "{} = linalg.batch_matmul ins({}, {} : {}, {}) outs({} : {}) -> {}",
        y.name,
        x.name,
        w.name,
        x.ty(),
        w.ty(),
        zero.name,
        zero.ty(),
        y.ty()
    ));
    Ok(e.reshape(y, &[rows, out]))
}
