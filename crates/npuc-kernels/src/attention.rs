//! Attention over a cache of past rows and the rows of this step, computing only what the mask shows.
//!
//! Columns that are hidden from every row of a unit of work are never touched, so a nearly empty cache costs
//! little. A unit is a few rows by `few` or a tile of rows, one a vector lane, by `tile`.

use rayon::prelude::*;

use crate::gemm::WIDE;
use crate::level::{Level, leveled};
use crate::linear::{FEW_TOKENS, PARALLEL_WORK};
use crate::scratch::{Scratch, SharedOut};

mod few;
mod tile;

/// A mask value at or below this hides its column: the probability is exactly 0 and the column is not read.
pub const HIDDEN: f32 = -1e9;

/// The operands of one attention; `heads / kv_heads` query heads in a row share a key/value head.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Queries `[heads, tokens, dim]`.
    pub q: &'a [f32],
    /// Keys of earlier steps `[kv_heads, capacity, dim]`.
    pub past_k: &'a [f32],
    /// Values of earlier steps `[kv_heads, capacity, dim]`.
    pub past_v: &'a [f32],
    /// Keys of this step `[kv_heads, tokens, dim]`.
    pub new_k: &'a [f32],
    /// Values of this step `[kv_heads, tokens, dim]`.
    pub new_v: &'a [f32],
    /// Added to the scores `[tokens, capacity + tokens]`: the past columns, then the new ones.
    pub mask: &'a [f32],
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Rows of this step.
    pub tokens: usize,
    /// Past rows.
    pub capacity: usize,
    /// Elements of a head's row.
    pub dim: usize,
    /// Factor of the scores.
    pub scale: f32,
}

/// `out = softmax(scale · q · [past_k; new_k]ᵀ + mask) · [past_v; new_v]`, `[heads, tokens, dim]`, in f32.
///
/// Every row must see at least one column, which callers ensure; a row that sees none becomes zeros.
/// Runs on the current rayon pool.
///
/// # Panics
/// When `kv_heads` does not divide `heads`, or a slice is not of its length.
pub fn attention(args: &Attention<'_>, out: &mut [f32]) {
    attention_at(Level::detect(), args, out);
}

pub(crate) fn attention_at(level: Level, args: &Attention<'_>, out: &mut [f32]) {
    args.check(out);
    if out.is_empty() {
        return;
    }
    let shared = SharedOut::new(out);
    if args.tokens <= FEW_TOKENS {
        let runs = Runs::of(level, args, 0..args.tokens);
        let rows = few::rows(args.kv_heads);
        let parts = args.group_rows().div_ceil(rows);
        let work = args.group_rows() * args.dim * runs.visible();
        over_units(args.kv_heads, parts, work, |kv, part| few::unit(level, args, &runs, kv, part, &shared));
    } else {
        let parts = args.tokens.div_ceil(WIDE);
        let work = args.group_rows() * args.dim * args.tokens;
        over_units(args.kv_heads, parts, work, |kv, part| tile::unit(level, args, kv, part, &shared));
    }
}

/// Calls `work` with every pair of a key/value head and one of `parts`, of which a head costs `work_per_head`.
fn over_units(kv_heads: usize, parts: usize, work_per_head: usize, work: impl Fn(usize, usize) + Sync) {
    let unit = |unit: usize| work(unit / parts, unit % parts);
    if kv_heads * work_per_head < PARALLEL_WORK || rayon::current_num_threads() == 1 {
        (0..kv_heads * parts).for_each(unit);
    } else {
        (0..kv_heads * parts).into_par_iter().with_max_len(1).for_each(unit);
    }
}

impl<'a> Attention<'a> {
    fn check(&self, out: &[f32]) {
        assert!(
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads),
            "{} heads over {}",
            self.heads,
            self.kv_heads
        );
        let len = |a: usize, b: usize, c: usize| a.checked_mul(b).and_then(|v| v.checked_mul(c));
        let (queries, new) = (len(self.heads, self.tokens, self.dim), len(self.kv_heads, self.tokens, self.dim));
        let past = len(self.kv_heads, self.capacity, self.dim);
        let mask = self.capacity.checked_add(self.tokens).and_then(|columns| columns.checked_mul(self.tokens));
        let slices = [
            ("q", queries, self.q.len()),
            ("past_k", past, self.past_k.len()),
            ("past_v", past, self.past_v.len()),
            ("new_k", new, self.new_k.len()),
            ("new_v", new, self.new_v.len()),
            ("mask", mask, self.mask.len()),
            ("out", queries, out.len()),
        ];
        for (name, need, have) in slices {
            assert_eq!(need, Some(have), "attention: length of {name}");
        }
    }

    /// Columns of the mask.
    fn columns(&self) -> usize {
        self.capacity + self.tokens
    }

    /// Query rows that share a key/value head; they lie one after the other.
    fn group_rows(&self) -> usize {
        self.heads / self.kv_heads * self.tokens
    }

    /// The mask of a query row, counted within its key/value head.
    fn mask_row(&self, row: usize) -> &'a [f32] {
        &self.mask[row % self.tokens * self.columns()..][..self.columns()]
    }

    /// The rows of keys or values of a head that a run of columns lies in, and the run's first row there.
    fn rows_of(&self, run: Run, past: &'a [f32], new: &'a [f32], kv: usize) -> (&'a [f32], usize) {
        if run.start < self.capacity {
            (&past[kv * self.capacity * self.dim..][..self.capacity * self.dim], run.start)
        } else {
            (&new[kv * self.tokens * self.dim..][..self.tokens * self.dim], run.start - self.capacity)
        }
    }
}

/// Neighbouring columns that some row sees; all past or all new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The first column.
    start: usize,
    /// How many there are.
    len: usize,
    /// How many visible columns come before.
    before: usize,
}

/// The columns that some of a few rows see.
struct Runs {
    /// Start and length of each run as u32.
    words: Scratch,
    count: usize,
}

impl Runs {
    /// The runs of columns that any of the mask rows of `tokens` shows.
    fn of(level: Level, args: &Attention<'_>, tokens: std::ops::Range<usize>) -> Runs {
        let columns = args.columns();
        assert!(u32::try_from(columns).is_ok(), "attention: {columns} columns");
        let mut tops = Scratch::take(columns);
        tops.fill(f32::NEG_INFINITY);
        tokens.for_each(|token| raise(level, &mut tops, args.mask_row(token)));
        let mut words = Scratch::take((columns / 2 + 2) * 2);
        let pairs = bytemuck::cast_slice_mut::<f32, u32>(&mut words).as_chunks_mut::<2>().0;
        let count = find_runs(level, &tops[..args.capacity], 0, pairs);
        let count = count + find_runs(level, &tops[args.capacity..], args.capacity as u32, &mut pairs[count..]);
        Runs { words, count }
    }

    fn iter(&self) -> impl Iterator<Item = Run> {
        let pairs = bytemuck::cast_slice::<f32, u32>(&self.words).as_chunks::<2>().0;
        pairs[..self.count].iter().scan(0, |before, [start, len]| {
            let run = Run { start: *start as usize, len: *len as usize, before: *before };
            *before += run.len;
            Some(run)
        })
    }

    /// How many columns there are.
    fn visible(&self) -> usize {
        self.iter().map(|run| run.len).sum()
    }
}

leveled! {
    /// Writes start (counted from `offset`) and length of each run above [`HIDDEN`]; gives their number.
    fn find_runs(tops: &[f32], offset: u32, out: &mut [[u32; 2]]) -> usize {
        let (mut count, mut open) = (0, false);
        let mut at = offset;
        for chunk in tops.chunks(WIDE) {
            let visible: usize = chunk.iter().map(|v| usize::from(*v > HIDDEN)).sum();
            if visible == 0 {
                open = false;
            } else if visible == chunk.len() && open {
                out[count - 1][1] += chunk.len() as u32;
            } else {
                for (i, v) in (at..).zip(chunk) {
                    let shown = *v > HIDDEN;
                    if shown && open {
                        out[count - 1][1] += 1;
                    } else if shown {
                        out[count] = [i, 1];
                        count += 1;
                    }
                    open = shown;
                }
            }
            at += chunk.len() as u32;
        }
        count
    }
}

leveled! {
    /// Raises each of `tops` to the mask value of a row.
    fn raise(tops: &mut [f32], mask: &[f32]) {
        for (top, m) in tops.iter_mut().zip(mask) {
            *top = if *m > *top { *m } else { *top };
        }
    }
}

#[cfg(test)]
mod tests;
