//! `x · weightᵀ + bias` with a weight in any stored format, dequantised in small pieces as it is used.
//!
//! A few tokens go through row kernels that read each stored row once; many tokens through panels of
//! dequantised rows and the blocked product of `gemm`. Both compute in f32 and sum each element in
//! an order that depends on the shapes only, never on the number of threads.

use rayon::prelude::*;

use crate::dequant::dequantize_part;
use crate::format::DType;
use crate::gemm::{self, Left, ROWS_NARROW, ROWS_WIDE, Right, TokenTile};
use crate::level::Level;
use crate::scratch::{Scratch, SharedOut};

#[cfg(target_arch = "x86_64")]
mod avx2;
mod few;
#[cfg(target_arch = "x86_64")]
mod nibbles;
#[cfg(target_arch = "x86_64")]
mod signed;

/// A stored matrix `[rows, cols]`, row after row.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// How its elements are stored.
    pub dtype: DType,
    /// Exactly the bytes of `rows` rows.
    pub bytes: &'a [u8],
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

impl<'a> Matrix<'a> {
    fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.cols).expect("checked at entry")
    }

    /// The stored bytes of a row.
    fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.row_bytes()..][..self.row_bytes()]
    }
}

/// The largest number of tokens that go through the row kernels.
pub(crate) const FEW_TOKENS: usize = few::TOKENS;

/// Multiply-adds below which a second thread costs more than it saves (some 10 µs of work).
pub(crate) const PARALLEL_WORK: usize = 1 << 17;

/// `out = x · weightᵀ + bias`: `x` is `[tokens, weight.cols]`, `bias` `[weight.rows]`, `out` `[tokens, weight.rows]`.
///
/// The weight counts as the matrix it dequantises to; products and sums are f32. Runs on the current rayon pool.
///
/// # Panics
/// When blocks do not divide `weight.cols` or a slice is not of its length.
pub fn linear(x: &[f32], tokens: usize, weight: Matrix<'_>, bias: Option<&[f32]>, out: &mut [f32]) {
    linear_at(Level::detect(), x, tokens, weight, bias, out);
}

pub(crate) fn linear_at(
    level: Level,
    x: &[f32],
    tokens: usize,
    weight: Matrix<'_>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let row_bytes = weight.dtype.row_bytes(weight.cols);
    let bytes = row_bytes.and_then(|b| b.checked_mul(weight.rows));
    assert_eq!(bytes, Some(weight.bytes.len()), "{} weight [{}, {}]", weight.dtype, weight.rows, weight.cols);
    assert_eq!(tokens.checked_mul(weight.cols), Some(x.len()), "linear: x is not [{tokens}, {}]", weight.cols);
    assert_eq!(tokens.checked_mul(weight.rows), Some(out.len()), "linear: out is not [{tokens}, {}]", weight.rows);
    assert!(bias.is_none_or(|b| b.len() == weight.rows), "linear: bias is not [{}]", weight.rows);
    if out.is_empty() {
        return;
    }
    if tokens <= FEW_TOKENS {
        few::linear(level, x, tokens, weight, bias, out, few::Threads::Pool);
    } else {
        many(level, x, tokens, weight, bias, out);
    }
}

/// [`linear`] without a bias for at most [`FEW_TOKENS`] tokens, on this thread alone and without the checks of lengths.
pub(crate) fn few_rows(level: Level, x: &[f32], tokens: usize, weight: Matrix<'_>, out: &mut [f32]) {
    few::linear(level, x, tokens, weight, None, out, few::Threads::One);
}

/// Calls `work` with ranges of rows that together are `0..rows`, in parallel when `work_per_row` makes it worth while.
fn over_rows(rows: usize, work_per_row: usize, largest: usize, multiple: usize, work: impl Fn(usize, usize) + Sync) {
    let threads = rayon::current_num_threads();
    let total = rows.saturating_mul(work_per_row);
    let wanted = if total < 2 * PARALLEL_WORK || threads == 1 { 1 } else { (total / PARALLEL_WORK).min(4 * threads) };
    let chunks = wanted.max(rows.div_ceil(largest));
    let chunks = if wanted == 1 { chunks } else { chunks.next_multiple_of(threads) };
    let len = rows.div_ceil(chunks).next_multiple_of(multiple);
    let run = |chunk: usize| work(chunk * len, len.min(rows - chunk * len));
    if wanted == 1 {
        (0..rows.div_ceil(len)).for_each(run);
    } else {
        (0..rows.div_ceil(len)).into_par_iter().with_max_len(1).for_each(run);
    }
}

/// Elements of a row that one panel holds: the packed tokens of that depth stay near the first-level cache.
const PANEL_DEPTH: usize = 768;
/// Elements of a panel: 128 KiB, a quarter of a common second-level cache.
const PANEL_LEN: usize = 32 * 1024;

/// Splits `cols` into equal parts of at most [`PANEL_DEPTH`], each of whole blocks.
fn panel_depth(cols: usize, dtype: DType) -> usize {
    cols.div_ceil(cols.div_ceil(PANEL_DEPTH).max(1)).next_multiple_of(dtype.block_len().max(256)).min(cols)
}

fn many(level: Level, x: &[f32], tokens: usize, weight: Matrix<'_>, bias: Option<&[f32]>, out: &mut [f32]) {
    let cols = weight.cols;
    let depth = panel_depth(cols, weight.dtype);
    let rows = (PANEL_LEN / depth.max(1)).next_multiple_of(ROWS_NARROW);
    let mut packed = Scratch::take(gemm::packed_len(tokens, cols));
    pack_all(x, tokens, cols, &mut packed);
    let packed = &*packed;
    let shared = SharedOut::new(out);
    over_rows(weight.rows, cols * tokens, rows, ROWS_NARROW, |first, count| {
        let panel = Panel { first, count, tokens, bias };
        let mut values = Scratch::take(count.next_multiple_of(ROWS_NARROW) * depth);
        for start in (0..cols.max(1)).step_by(depth.max(1)) {
            let len = depth.min(cols - start);
            for row in 0..count {
                dequantize_part(level, weight.dtype, weight.row(first + row), start, &mut values[row * len..][..len]);
            }
            panel.multiply(level, &values, packed, start, len, weight, &shared);
        }
    });
}

fn pack_all(x: &[f32], tokens: usize, cols: usize, packed: &mut [f32]) {
    let pieces = gemm::tiles(tokens).zip(packed.chunks_mut(gemm::WIDE * cols.max(1)));
    if tokens * cols < PARALLEL_WORK || rayon::current_num_threads() == 1 {
        pieces.for_each(|(tile, out)| gemm::pack(x, cols, cols, tile, out));
    } else {
        pieces.par_bridge().for_each(|(tile, out)| gemm::pack(x, cols, cols, tile, out));
    }
}

/// A run of weight rows of which one panel holds the dequantised elements of some depth.
struct Panel<'a> {
    first: usize,
    count: usize,
    tokens: usize,
    bias: Option<&'a [f32]>,
}

impl Panel<'_> {
    /// Adds the products of elements `start..start + len` to the result; the first part begins it.
    fn multiply(
        &self,
        level: Level,
        panel: &[f32],
        packed: &[f32],
        start: usize,
        len: usize,
        weight: Matrix<'_>,
        out: &SharedOut<'_>,
    ) {
        let (rows, cols) = (weight.rows, weight.cols);
        for tokens in gemm::tiles(self.tokens) {
            let data = &packed[tokens.first * cols + start * tokens.lanes..];
            let b = Right { data, row: tokens.lanes };
            let step = if tokens.lanes == gemm::WIDE { ROWS_WIDE } else { ROWS_NARROW };
            for row in (0..self.count).step_by(step) {
                let a = Left { data: &panel[row * len..], row: len, step: 1 };
                let valid = step.min(self.count - row);
                let place = Place { tokens, first: self.first + row, valid, rows, begin: start == 0 };
                if tokens.lanes == gemm::WIDE {
                    let tile = gemm::tile::<ROWS_WIDE, { gemm::WIDE }>(level, a, b, len);
                    place.store(&tile, self.bias, out);
                } else {
                    let tile = gemm::tile::<ROWS_NARROW, { gemm::NARROW }>(level, a, b, len);
                    place.store(&tile, self.bias, out);
                }
            }
        }
    }
}

/// Where a tile of weight rows by tokens belongs in the result `[tokens, rows]`.
struct Place {
    tokens: TokenTile,
    first: usize,
    valid: usize,
    rows: usize,
    begin: bool,
}

impl Place {
    fn store<const R: usize, const W: usize>(&self, tile: &[[f32; W]; R], bias: Option<&[f32]>, out: &SharedOut<'_>) {
        for lane in 0..self.tokens.valid {
            let start = (self.tokens.first + lane) * self.rows + self.first;
            // SAFETY: each weight row belongs to one range of `over_rows`, so no two threads share an element,
            // and this part ends before the next one is made.
            let out = unsafe { out.part(start, self.valid) };
            for (r, (o, lanes)) in out.iter_mut().zip(tile).enumerate() {
                let begun = if self.begin { bias.map_or(0.0, |b| b[self.first + r]) } else { *o };
                *o = begun + lanes[lane];
            }
        }
    }
}

#[cfg(test)]
mod tests;
