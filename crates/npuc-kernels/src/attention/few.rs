//! Up to four query rows of one key/value head: scores as rows, one dot product a key.

use super::{Attention, HIDDEN, Runs};
use crate::format::DType;
use crate::level::{Level, leveled};
use crate::linear::{FEW_TOKENS, Matrix, few_rows};
use crate::scratch::{Scratch, SharedOut};
use crate::vector::{exp_of_differences_at, scale_at};

/// Query rows of a unit: with few heads one, so that there are enough units for every thread.
pub(super) fn rows(kv_heads: usize) -> usize {
    if kv_heads < 4 { 1 } else { FEW_TOKENS }
}

pub(super) fn unit(level: Level, args: &Attention<'_>, runs: &Runs, kv: usize, part: usize, out: &SharedOut<'_>) {
    let first = part * rows(args.kv_heads);
    let count = rows(args.kv_heads).min(args.group_rows() - first);
    let (dim, visible) = (args.dim, runs.visible());
    let start = (kv * args.group_rows() + first) * dim;
    let q = &args.q[start..][..count * dim];
    let mut scores = Scratch::take(count * visible);
    let mut products = Scratch::take(count * visible);
    for run in runs.iter() {
        let (keys, key) = args.rows_of(run, args.past_k, args.new_k, kv);
        let bytes = bytemuck::cast_slice(&keys[key * dim..][..run.len * dim]);
        let products = &mut products[..count * run.len];
        few_rows(level, q, count, Matrix { dtype: DType::F32, bytes, rows: run.len, cols: dim }, products);
        for row in 0..count {
            let scores = &mut scores[row * visible + run.before..][..run.len];
            let mask = &args.mask_row(first + row)[run.start..][..run.len];
            let products = &products[row * run.len..][..run.len];
            add_mask(level, products, args.scale, mask, scores);
        }
    }
    // SAFETY: every unit has its own query rows.
    let out = unsafe { out.part(start, count * dim) };
    out.fill(0.0);
    for (row, out) in out.chunks_exact_mut(dim.max(1)).enumerate() {
        let scores = &mut scores[row * visible..][..visible];
        if scores.iter().all(|s| *s == f32::NEG_INFINITY) {
            continue;
        }
        let sum = exp_of_differences_at(level, scores);
        for run in runs.iter() {
            let (values, value) = args.rows_of(run, args.past_v, args.new_v, kv);
            weigh(level, &scores[run.before..][..run.len], &values[value * dim..][..run.len * dim], out);
        }
        scale_at(level, out, 1.0 / sum);
    }
}

leveled! {
    /// `out = scale · products + mask`, minus infinity where the mask hides.
    fn add_mask(products: &[f32], scale: f32, mask: &[f32], out: &mut [f32]) {
        for ((o, p), m) in out.iter_mut().zip(products).zip(mask) {
            *o = if *m > HIDDEN { scale * p + m } else { f32::NEG_INFINITY };
        }
    }
}

leveled! {
    /// Adds the rows of `values`, each times its weight, to `out`; four rows a pass.
    fn weigh(weights: &[f32], values: &[f32], out: &mut [f32]) {
        let dim = out.len();
        let (quads, rest) = weights.as_chunks::<4>();
        let (values, values_rest) = values.split_at(quads.len() * 4 * dim);
        for (w, v) in quads.iter().zip(values.chunks_exact(4 * dim)) {
            let ((a, b), (c, d)) = (v[..2 * dim].split_at(dim), v[2 * dim..].split_at(dim));
            for i in 0..dim {
                out[i] += (w[0] * a[i] + w[1] * b[i]) + (w[2] * c[i] + w[3] * d[i]);
            }
        }
        for (w, v) in rest.iter().zip(values_rest.chunks_exact(dim)) {
            for i in 0..dim {
                out[i] += w * v[i];
            }
        }
    }
}
