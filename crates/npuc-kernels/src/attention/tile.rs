//! A tile of tokens, one a vector lane, through every query head of one key/value head.

use super::{Attention, HIDDEN, Run, Runs};
use crate::gemm::{self, Left, NARROW, ROWS_NARROW, ROWS_WIDE, Right, TokenTile, WIDE};
use crate::level::{Level, leveled};
use crate::scratch::{Scratch, SharedOut};
use crate::vector::exp_one;

/// Query rows of one tile of the second product.
const QUERIES: usize = 4;

pub(super) fn unit(level: Level, args: &Attention<'_>, kv: usize, part: usize, out: &SharedOut<'_>) {
    let tokens = gemm::tiles(args.tokens).nth(part).expect("one part a tile");
    if tokens.lanes == WIDE {
        lanes::<ROWS_WIDE, WIDE>(level, args, kv, tokens, out);
    } else {
        lanes::<ROWS_NARROW, NARROW>(level, args, kv, tokens, out);
    }
}

/// One unit in `W` lanes; `R` keys a tile of scores.
fn lanes<const R: usize, const W: usize>(
    level: Level,
    args: &Attention<'_>,
    kv: usize,
    tokens: TokenTile,
    out: &SharedOut<'_>,
) {
    let dim = args.dim;
    let runs = Runs::of(level, args, tokens.first..tokens.first + tokens.valid);
    let visible = runs.visible();
    let mut mask = Scratch::take(visible * W);
    runs.iter().for_each(|run| transpose_mask::<W>(args, tokens, run, &mut mask));

    let mut packed = Scratch::take(dim * W);
    let mut scores = Scratch::take(visible * W);
    let mut result = Scratch::take(W * dim);
    let group = args.heads / args.kv_heads;
    for head in kv * group..(kv + 1) * group {
        gemm::pack(&args.q[head * args.tokens * dim..][..args.tokens * dim], dim, dim, tokens, &mut packed);
        for run in runs.iter() {
            let (keys, first) = args.rows_of(run, args.past_k, args.new_k, kv);
            let scores = scores[run.before * W..][..run.len * W].as_chunks_mut::<W>().0;
            products::<R, W>(level, keys, first, dim, &packed, scores);
        }
        let sums = softmax::<W>(level, &mut scores, &mask, args.scale);
        result.fill(0.0);
        for run in runs.iter() {
            let (values, first) = args.rows_of(run, args.past_v, args.new_v, kv);
            let values = &values[first * dim..][..run.len * dim];
            weigh::<W>(level, &scores[run.before * W..][..run.len * W], values, dim, tokens.valid, &mut result);
        }
        for lane in 0..tokens.valid {
            let start = (head * args.tokens + tokens.first + lane) * dim;
            let factor = if sums[lane] > 0.0 { 1.0 / sums[lane] } else { 0.0 };
            // SAFETY: every unit has its own query rows, and this part ends before the next one is made.
            let out = unsafe { out.part(start, dim) };
            for (o, v) in out.iter_mut().zip(&result[lane * dim..][..dim]) {
                *o = v * factor;
            }
        }
    }
}

/// Writes the mask of a run as `[columns, W]`, minus infinity where it hides and past the last token.
fn transpose_mask<const W: usize>(args: &Attention<'_>, tokens: TokenTile, run: Run, out: &mut [f32]) {
    let out = out[run.before * W..][..run.len * W].as_chunks_mut::<W>().0;
    for lane in 0..W {
        if lane < tokens.valid {
            let row = &args.mask_row(tokens.first + lane)[run.start..][..run.len];
            for (out, m) in out.iter_mut().zip(row) {
                out[lane] = if *m > HIDDEN { *m } else { f32::NEG_INFINITY };
            }
        } else {
            out.iter_mut().for_each(|out| out[lane] = f32::NEG_INFINITY);
        }
    }
}

/// `scores[i][l] = keys[first + i] · query l`; a tile that would pass the last key starts earlier instead.
fn products<const R: usize, const W: usize>(
    level: Level,
    keys: &[f32],
    first: usize,
    dim: usize,
    packed: &[f32],
    scores: &mut [[f32; W]],
) {
    let right = Right { data: packed, row: W };
    let all = keys.len() / dim.max(1);
    let mut done = 0;
    while done < scores.len() {
        let left = |key: usize| Left { data: &keys[key * dim..], row: dim, step: 1 };
        if all < R {
            scores[done] = gemm::tile::<1, W>(level, left(first + done), right, dim)[0];
            done += 1;
            continue;
        }
        let start = (first + done).min(all - R);
        let tile = gemm::tile::<R, W>(level, left(start), right, dim);
        let skip = first + done - start;
        let count = (R - skip).min(scores.len() - done);
        scores[done..done + count].copy_from_slice(&tile[skip..skip + count]);
        done += count;
    }
}

leveled! {
    /// Replaces products by the exponentials of `scale · product + mask`, each lane less its largest; gives the sums.
    fn softmax<const W: usize>(scores: &mut [f32], mask: &[f32], scale: f32) -> [f32; W] {
        let scores = scores.as_chunks_mut::<W>().0;
        let mut largest = [f32::NEG_INFINITY; W];
        for (scores, mask) in scores.iter_mut().zip(mask.as_chunks::<W>().0) {
            for l in 0..W {
                scores[l] = scale * scores[l] + mask[l];
                largest[l] = if scores[l] > largest[l] { scores[l] } else { largest[l] };
            }
        }
        let largest = largest.map(|v| if v == f32::NEG_INFINITY { 0.0 } else { v });
        let mut sums = [0.0; W];
        for scores in scores.chunks_mut(64) {
            let mut part = [0.0; W];
            for scores in scores {
                for l in 0..W {
                    scores[l] = exp_one(scores[l] - largest[l]);
                    part[l] += scores[l];
                }
            }
            for l in 0..W {
                sums[l] += part[l];
            }
        }
        sums
    }
}

/// Adds the rows of `values`, weighted by the lanes of `scores`, to `out` `[W, dim]`.
fn weigh<const W: usize>(level: Level, scores: &[f32], values: &[f32], dim: usize, valid: usize, out: &mut [f32]) {
    let depth = scores.len() / W;
    for lane in (0..valid).step_by(QUERIES) {
        let left = Left { data: &scores[lane..], row: 1, step: W };
        let mut column = 0;
        while column + WIDE <= dim {
            let right = Right { data: &values[column..], row: dim };
            add(&gemm::tile::<QUERIES, WIDE>(level, left, right, depth), &mut out[lane * dim + column..], dim);
            column += WIDE;
        }
        if column + NARROW <= dim {
            let right = Right { data: &values[column..], row: dim };
            add(&gemm::tile::<QUERIES, NARROW>(level, left, right, depth), &mut out[lane * dim + column..], dim);
            column += NARROW;
        }
        for (column, query) in (column..dim).flat_map(|c| (lane..lane + QUERIES).map(move |q| (c, q))) {
            let weights = scores.iter().skip(query).step_by(W);
            let sum: f32 = weights.zip(values.iter().skip(column).step_by(dim)).map(|(w, v)| w * v).sum();
            out[query * dim + column] += sum;
        }
    }
}

fn add<const W: usize>(tile: &[[f32; W]; QUERIES], out: &mut [f32], row: usize) {
    for (r, lanes) in tile.iter().enumerate() {
        for (o, v) in out[r * row..][..W].iter_mut().zip(lanes) {
            *o += v;
        }
    }
}
