//! Batched products of f32 matrices, from the tiles of `gemm`.

use rayon::prelude::*;

use crate::gemm::{self, Left, NARROW, ROWS_NARROW, ROWS_WIDE, Right, TokenTile, WIDE};
use crate::level::Level;
use crate::linear::PARALLEL_WORK;
use crate::scratch::{Scratch, SharedOut};

/// `out[i] = a[i] · b[i]` for each of `batch` matrices: `a` is `[batch, m, k]`, `b` `[batch, k, n]`, or `[batch, n, k]`
/// when `transpose_b`, and `out` `[batch, m, n]`. Runs on the current rayon pool.
///
/// # Panics
/// When a slice is not of its length.
pub fn matmul(a: &[f32], b: &[f32], batch: usize, m: usize, k: usize, n: usize, transpose_b: bool, out: &mut [f32]) {
    let product = Product { a, b, batch, m, k, n };
    if transpose_b {
        transposed_at(Level::detect(), product, out);
    } else {
        plain_at(Level::detect(), product, out);
    }
}

/// The operands of [`matmul`].
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
}

impl Product<'_> {
    fn check(&self, out: &[f32]) {
        let len = |x: usize, y: usize| self.batch.checked_mul(x).and_then(|v| v.checked_mul(y));
        assert_eq!(
            len(self.m, self.k),
            Some(self.a.len()),
            "matmul: a is not [{}, {}, {}]",
            self.batch,
            self.m,
            self.k
        );
        assert_eq!(
            len(self.k, self.n),
            Some(self.b.len()),
            "matmul: b is not {} of {} by {}",
            self.batch,
            self.k,
            self.n
        );
        assert_eq!(len(self.m, self.n), Some(out.len()), "matmul: out is not [{}, {}, {}]", self.batch, self.m, self.n);
    }

    /// Calls `work` with every pair of a matrix and one of `parts` parts of it.
    fn over_parts(&self, parts: usize, work: impl Fn(usize, usize) + Sync) {
        let units = self.batch * parts;
        let run = |unit: usize| work(unit / parts, unit % parts);
        if self.batch * self.m * self.k * self.n < 2 * PARALLEL_WORK || rayon::current_num_threads() == 1 {
            (0..units).for_each(run);
        } else {
            (0..units).into_par_iter().for_each(run);
        }
    }
}

/// `a · b`: tiles of rows of `a` by runs of columns of `b`, the last run of which is copied and padded.
pub(crate) fn plain_at(level: Level, p: Product<'_>, out: &mut [f32]) {
    p.check(out);
    let shared = SharedOut::new(out);
    p.over_parts(p.n.div_ceil(WIDE), |batch, part| {
        let (a, b) = (&p.a[batch * p.m * p.k..][..p.m * p.k], &p.b[batch * p.k * p.n..][..p.k * p.n]);
        let column = part * WIDE;
        let valid = WIDE.min(p.n - column);
        let mut padded = Scratch::take(if valid < WIDE { p.k * WIDE } else { 0 });
        let b = if valid < WIDE {
            for (row, padded) in padded.as_chunks_mut::<WIDE>().0.iter_mut().enumerate() {
                padded[..valid].copy_from_slice(&b[row * p.n + column..][..valid]);
                padded[valid..].fill(0.0);
            }
            Right { data: &padded, row: WIDE }
        } else {
            Right { data: b.get(column..).unwrap_or_default(), row: p.n }
        };
        let store = |row: usize, tile: &[[f32; WIDE]]| {
            for (r, lanes) in tile.iter().enumerate() {
                let start = (batch * p.m + row + r) * p.n + column;
                // SAFETY: every part has its own columns, and this slice ends before the next one is made.
                unsafe { shared.part(start, valid) }.copy_from_slice(&lanes[..valid]);
            }
        };
        let whole = p.m / ROWS_WIDE * ROWS_WIDE;
        for row in (0..whole).step_by(ROWS_WIDE) {
            let a = Left { data: &a[row * p.k..], row: p.k, step: 1 };
            store(row, &gemm::tile::<ROWS_WIDE, WIDE>(level, a, b, p.k));
        }
        for row in whole..p.m {
            let a = Left { data: &a[row * p.k..], row: p.k, step: 1 };
            store(row, &gemm::tile::<1, WIDE>(level, a, b, p.k));
        }
    });
}

/// `a · bᵀ`: tiles of rows of `b` by packed rows of `a`.
pub(crate) fn transposed_at(level: Level, p: Product<'_>, out: &mut [f32]) {
    p.check(out);
    let shared = SharedOut::new(out);
    p.over_parts(p.m.div_ceil(WIDE), |batch, part| {
        let (a, b) = (&p.a[batch * p.m * p.k..][..p.m * p.k], &p.b[batch * p.k * p.n..][..p.k * p.n]);
        let tile = gemm::tiles(p.m).nth(part).expect("one part a tile");
        let mut packed = Scratch::take(p.k * tile.lanes);
        gemm::pack(a, p.k, p.k, tile, &mut packed);
        let place = |row: usize| Place { out: &shared, first: (batch * p.m + tile.first) * p.n + row, tile, n: p.n };
        if tile.lanes == WIDE {
            rows_of_b::<ROWS_WIDE, WIDE>(level, b, &packed, p, place);
        } else {
            rows_of_b::<ROWS_NARROW, NARROW>(level, b, &packed, p, place);
        }
    });
}

fn rows_of_b<'a, const R: usize, const W: usize>(
    level: Level,
    b: &[f32],
    packed: &[f32],
    p: Product<'_>,
    place: impl Fn(usize) -> Place<'a>,
) {
    let right = Right { data: packed, row: W };
    let whole = p.n / R * R;
    for row in (0..whole).step_by(R) {
        let left = Left { data: &b[row * p.k..], row: p.k, step: 1 };
        place(row).store(&gemm::tile::<R, W>(level, left, right, p.k));
    }
    for row in whole..p.n {
        let left = Left { data: &b[row * p.k..], row: p.k, step: 1 };
        place(row).store(&gemm::tile::<1, W>(level, left, right, p.k));
    }
}

/// Where a tile of rows of `b` by rows of `a` belongs.
struct Place<'a> {
    out: &'a SharedOut<'a>,
    first: usize,
    tile: TokenTile,
    n: usize,
}

impl Place<'_> {
    fn store<const W: usize>(&self, tile: &[[f32; W]]) {
        for lane in 0..self.tile.valid {
            // SAFETY: every part has its own rows of `a`, and this slice ends before the next one is made.
            let out = unsafe { self.out.part(self.first + lane * self.n, tile.len()) };
            for (o, lanes) in out.iter_mut().zip(tile) {
                *o = lanes[lane];
            }
        }
    }
}

#[cfg(test)]
mod tests;
