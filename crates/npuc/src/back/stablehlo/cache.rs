//! New rows written into caches for Torq: chosen where the one-hot mask says so, a few heads at a time.
//!
//! The graph's form, `past · (1 - mask) + new · mask`, gives the same numbers for a mask of zeros and a single one, but takes more
//! cycles. Whole caches as temporaries leave no room to load weights ahead, and one that layers share stays in the memory
//! between them, so every layer compares the mask with a number of its own.

use super::emit::{Emitter, Term};
use super::tensor_type;
use crate::diag::Result;
use crate::ir::{Def, Op, Value, ValueId};
use crate::model::Port;

/// Groups of heads that are written one after the other: the fastest of 1, 2, 4 and 8 for 8 heads of 64 rows and columns.
const GROUPS: usize = 4;

/// What is written where.
#[derive(Clone, Copy)]
pub(super) struct Written {
    past: ValueId,
    new: ValueId,
    mask: ValueId,
    layer: usize,
}

/// The parts of a sum that writes new rows into a cache `[heads, ..]`; `None` for any other sum.
pub(super) fn written(e: &Emitter<'_>, args: &[ValueId]) -> Option<Written> {
    let &[kept, placed] = args else { return None };
    let (kept, placed) = (factors(e, kept)?, factors(e, placed)?);
    let past = kept.into_iter().find_map(|id| Some((id, past_layer(e, id)?)));
    let (past, layer) = past?;
    let keep = kept.into_iter().find(|&id| id != past)?;
    let mask = placed.into_iter().find(|&id| e.is_write_mask(id))?;
    let new = placed.into_iter().find(|&id| id != mask)?;
    (e.shape(past).len() == 3 && is_rest(e, keep)).then_some(Written { past, new, mask, layer })
}

fn factors(e: &Emitter<'_>, id: ValueId) -> Option<[ValueId; 2]> {
    match &e.value(id).def {
        Def::Op { op: Op::Mul {}, args } => <[ValueId; 2]>::try_from(args.as_slice()).ok(),
        Def::Op { .. } | Def::Input | Def::Weight => None,
    }
}

/// Of a cache before the step, which layer it is of, counted from the first with states in the module.
fn past_layer(e: &Emitter<'_>, id: ValueId) -> Option<usize> {
    let value = e.value(id);
    let Ok(Port::Past(_, layer)) = value.name.parse() else { return None };
    let layer_of = |value: &Value| match value.name.parse() {
        Ok(Port::Past(_, layer)) if value.def == Def::Input => Some(layer),
        Ok(_) | Err(_) => None,
    };
    let first = e.graph.values.iter().filter_map(layer_of).min()?;
    (value.def == Def::Input).then_some(layer - first)
}

/// Whether a value is 1 where nothing is written.
fn is_rest(e: &Emitter<'_>, id: ValueId) -> bool {
    let Def::Op { op, args } = &e.value(id).def else { return false };
    if matches!(op, Op::Reshape { .. }) {
        return is_rest(e, args[0]);
    }
    *op == Op::Affine { scale: -1.0, offset: 1.0 } && is_mask_or_sum(e, args[0])
}

fn is_mask_or_sum(e: &Emitter<'_>, id: ValueId) -> bool {
    let through = |args: &[ValueId]| args.iter().any(|&arg| is_mask_or_sum(e, arg));
    match &e.value(id).def {
        Def::Op { op: Op::Sum { .. } | Op::Reshape { .. }, args } => through(args),
        Def::Op { .. } | Def::Input | Def::Weight => e.is_write_mask(id),
    }
}

/// Writes the lines whose result is the cache `id`.
pub(super) fn emit(e: &mut Emitter<'_>, id: ValueId, parts: Written) -> Result<()> {
    let Written { past, new, mask, layer } = parts;
    let (past, new, mask) = (e.operand(past)?, e.operand(new)?, e.operand(mask)?);
    let shape = past.shape.clone();
    let rows_axis = (0..3).rev().find(|&axis| mask.shape[axis] > 1).unwrap_or(2);
    let rows = mask.shape[rows_axis];
    let mask = e.reshape(mask, &[rows]);
    // Any number between 0 and 1 tells them apart.
    let bound = e.splat((layer % 64 + 1) as f32 / 128.0, &[rows]);
    let chosen = e.term(&[rows], mask.element);
    let chosen_type = |shape: &[usize]| tensor_type(shape, mask.element).replace(mask.element.name(), "i1");
    e.line(format_args!(
        "{} = stablehlo.compare GT, {}, {} : ({}, {}) -> {}",
        chosen.name,
        mask.name,
        bound.name,
        mask.ty(),
        bound.ty(),
        chosen_type(&[rows])
    ));
    let groups = if shape[0].is_multiple_of(GROUPS) { GROUPS } else { 1 };
    let heads = shape[0] / groups;
    let mut written = Vec::with_capacity(groups);
    for group in 0..groups {
        let part = [heads, shape[1], shape[2]];
        let here = e.term(&part, mask.element);
        e.line(format_args!(
            "{} = stablehlo.broadcast_in_dim {}, dims = [{rows_axis}] : ({}) -> {}",
            here.name,
            chosen.name,
            chosen_type(&[rows]),
            chosen_type(&part)
        ));
        let of_heads = group * heads..(group + 1) * heads;
        let (old, row) = (cut(e, &past, of_heads.clone()), cut(e, &new, of_heads));
        let row = super::ops::broadcast(e, row, &part);
        let to = if groups == 1 { e.result(id) } else { e.term(&part, old.element) };
        e.line(format_args!(
            "{} = stablehlo.select {}, {}, {} : {}, {}",
            to.name,
            here.name,
            row.name,
            old.name,
            chosen_type(&part),
            to.ty()
        ));
        written.push(to);
    }
    if groups > 1 {
        let to = e.result(id);
        super::ops::join(e, &written, 0, &to);
    }
    Ok(())
}

/// Heads of a value `[heads, ..]`.
fn cut(e: &mut Emitter<'_>, x: &Term, heads: std::ops::Range<usize>) -> Term {
    if heads.len() == x.shape[0] {
        return x.clone();
    }
    let to = e.term(&[&[heads.len()], &x.shape[1..]].concat(), x.element);
    super::ops::cut_into(e, x, 0, heads, &to);
    to
}
