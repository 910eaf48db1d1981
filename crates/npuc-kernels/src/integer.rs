//! Exact products of whole numbers: int16 activations by stored rows of weights, and by each other; and the rounding of
//! real numbers to whole steps.
//!
//! Totals are i64 and exact, so that no order of summation and no number of threads changes them.

use rayon::prelude::*;

use crate::format::DType;
use crate::level::{Level, leveled};
use crate::linear::PARALLEL_WORK;

/// A matrix `[rows, cols]` of whole numbers.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Its numbers.
    pub numbers: Numbers<'a>,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

/// How the numbers of a matrix lie in memory.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// Rows of a format for which [`has_row_scale`] holds, as stored.
    Stored(DType, &'a [u8]),
    /// Row after row.
    Int16(&'a [i16]),
}

/// Whether a format stores whole numbers of at most 8 bits that one scale a row makes real: in
/// [`DType::Lpbq4`] the number is `block scale * q`, which is -128 to 120.
pub const fn has_row_scale(dtype: DType) -> bool {
    match dtype {
        DType::Int8 | DType::Int4 | DType::Lpbq4(_) => true,
        DType::F32 | DType::F16 | DType::BF16 | DType::Bw4(_) => false,
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => false,
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => false,
    }
}

/// The scale of every row of a format for which [`has_row_scale`] holds.
///
/// # Panics
/// For another format, or when `bytes` are not whole rows of `cols` elements.
pub fn row_scales(dtype: DType, bytes: &[u8], cols: usize) -> Vec<f32> {
    let row_bytes = stored_row_bytes(dtype, cols);
    assert!(bytes.len().is_multiple_of(row_bytes), "{dtype} bytes are not rows of {cols}");
    bytes.chunks_exact(row_bytes).map(|row| f32::from_le_bytes([row[0], row[1], row[2], row[3]])).collect()
}

fn stored_row_bytes(dtype: DType, cols: usize) -> usize {
    assert!(has_row_scale(dtype), "{dtype} has no scale a row");
    dtype.row_bytes(cols).unwrap_or_else(|| panic!("{dtype} has no rows of {cols}"))
}

impl Matrix<'_> {
    fn check(&self) {
        match self.numbers {
            Numbers::Stored(dtype, bytes) => {
                let len = stored_row_bytes(dtype, self.cols).checked_mul(self.rows);
                assert_eq!(len, Some(bytes.len()), "{dtype} weight [{}, {}]", self.rows, self.cols);
            }
            Numbers::Int16(numbers) => {
                let len = self.rows.checked_mul(self.cols);
                assert_eq!(len, Some(numbers.len()), "int16 weight [{}, {}]", self.rows, self.cols);
            }
        }
    }

    /// Writes the numbers of a row to `out` and says whether they have at most 8 bits.
    fn read_row(&self, level: Level, row: usize, out: &mut [i16]) -> bool {
        match self.numbers {
            Numbers::Stored(dtype, bytes) => {
                let row_bytes = stored_row_bytes(dtype, self.cols);
                decode_at(
                    level,
                    dtype,
                    &bytes[row * row_bytes + dtype.row_header_bytes()..][..row_bytes - dtype.row_header_bytes()],
                    out,
                );
                true
            }
            Numbers::Int16(numbers) => {
                out.copy_from_slice(&numbers[row * self.cols..][..self.cols]);
                false
            }
        }
    }
}

leveled! {
    /// The whole numbers of a stored row without its scale.
    fn decode_at(dtype: DType, blocks: &[u8], out: &mut [i16]) {
        match dtype {
            DType::Int8 => out.iter_mut().zip(blocks).for_each(|(out, q)| *out = i16::from(*q as i8)),
            DType::Int4 => nibbles(blocks, 1, out),
            DType::Lpbq4(group) => {
                let len = group.elements();
                for (out, block) in out.chunks_exact_mut(len).zip(blocks.chunks_exact(1 + len / 2)) {
                    nibbles(&block[1..], i16::from(block[0]), out);
                }
            }
            DType::F32 | DType::F16 | DType::BF16 | DType::Bw4(_) => unreachable!("{dtype} has no scale a row"),
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => unreachable!("nor has {dtype}"),
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => unreachable!("nor has {dtype}"),
        }
    }
}

#[inline(always)]
fn nibbles(bytes: &[u8], factor: i16, out: &mut [i16]) {
    for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        pair[0] = i16::from((*byte << 4) as i8 >> 4) * factor;
        pair[1] = i16::from(*byte as i8 >> 4) * factor;
    }
}

/// Products that are added up in 32 bits: |x| <= 2^15 and |w| <= [`NARROW_WEIGHT`] = 2^7, so that a sum is at most
/// 2^15 * 2^7 * 2^8 = 2^30.
const NARROW: usize = 256;

/// The largest magnitude of a weight that [`NARROW`] products are proved for. Only a damaged block scale leaves it.
const NARROW_WEIGHT: u16 = 1 << 7;

leveled! {
    /// The products of a row of weights with every row of `x`; `narrow` where no weight is beyond [`NARROW_WEIGHT`].
    fn row_products_at(x: &[i16], row: &[i16], narrow: bool, totals: &mut [i64]) {
        for (x, total) in x.chunks_exact(row.len()).zip(totals) {
            *total = if narrow { dot_narrow(x, row) } else { dot(x, row) };
        }
    }
}

#[inline(always)]
fn dot_narrow(x: &[i16], w: &[i16]) -> i64 {
    let product = |(x, w): (&i16, &i16)| i32::from(*x) * i32::from(*w);
    let (x, x_rest) = x.as_chunks::<NARROW>();
    let (w, w_rest) = w.as_chunks::<NARROW>();
    let whole: i64 = x.iter().zip(w).map(|(x, w)| i64::from(x.iter().zip(w).map(product).sum::<i32>())).sum();
    whole + i64::from(x_rest.iter().zip(w_rest).map(product).sum::<i32>())
}

/// A single product is at most 2^30, so 2^33 of them stay within an i64.
#[inline(always)]
fn dot(a: &[i16], b: &[i16]) -> i64 {
    a.iter().zip(b).map(|(a, b)| i64::from(i32::from(*a) * i32::from(*b))).sum()
}

/// Rows of weights that a thread takes at a time.
const BLOCK_ROWS: usize = 16;

/// `totals[row, token] = Σ x[token, col] · weight[row, col]`: `x` is `[tokens, weight.cols]`, `totals`
/// `[weight.rows, tokens]`. Exact. Runs on the current rayon pool.
///
/// # Panics
/// When a format has no scale a row, blocks do not divide `weight.cols`, or a slice is not of its length.
pub fn linear(x: &[i16], tokens: usize, weight: Matrix<'_>, totals: &mut [i64]) {
    linear_at(Level::detect(), x, tokens, weight, totals);
}

pub(crate) fn linear_at(level: Level, x: &[i16], tokens: usize, weight: Matrix<'_>, totals: &mut [i64]) {
    weight.check();
    assert_eq!(tokens.checked_mul(weight.cols), Some(x.len()), "linear: x is not [{tokens}, {}]", weight.cols);
    assert_eq!(
        tokens.checked_mul(weight.rows),
        Some(totals.len()),
        "linear: totals are not [{}, {tokens}]",
        weight.rows
    );
    if totals.is_empty() {
        return;
    }
    if weight.cols == 0 {
        totals.fill(0);
        return;
    }
    let work = |numbers: &mut Vec<i16>, (block, totals): (usize, &mut [i64])| {
        for (place, totals) in totals.chunks_exact_mut(tokens).enumerate() {
            let small = weight.read_row(level, block * BLOCK_ROWS + place, numbers);
            let narrow = small && numbers.iter().all(|w| w.unsigned_abs() <= NARROW_WEIGHT);
            row_products_at(level, x, numbers, narrow, totals);
        }
    };
    let blocks = BLOCK_ROWS * tokens;
    if x.len().saturating_mul(weight.rows) < 2 * PARALLEL_WORK {
        let mut numbers = vec![0; weight.cols];
        totals.chunks_mut(blocks).enumerate().for_each(|block| work(&mut numbers, block));
    } else {
        let numbers = || vec![0; weight.cols];
        totals.par_chunks_mut(blocks).enumerate().for_each_init(numbers, work);
    }
}

/// The sum of the numbers of every row.
///
/// # Panics
/// As [`linear`].
pub fn row_sums(weight: Matrix<'_>) -> Vec<i64> {
    weight.check();
    let sum = |numbers: &mut Vec<i16>, row: usize| {
        weight.read_row(Level::detect(), row, numbers);
        numbers.iter().map(|&w| i64::from(w)).sum()
    };
    (0..weight.rows).into_par_iter().map_init(|| vec![0; weight.cols], sum).collect()
}

/// An operand of [`matmul`]: the number of an element is `numbers[i] + shift`.
#[derive(Clone, Copy, Debug)]
pub struct Shifted<'a> {
    /// Row-major.
    pub numbers: &'a [i16],
    /// What is added to every number.
    pub shift: i32,
}

/// The extents of a product of matrices.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    /// Pairs of matrices.
    pub batch: usize,
    /// Rows of the first and of the result.
    pub m: usize,
    /// Columns of the first.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
}

/// The exact products of `a [batch, m, k]` and `b [batch, k, n]`, or `[batch, n, k]` with `transpose_b`, `[batch, m, n]`.
/// Runs on the current rayon pool.
///
/// # Panics
/// When a slice is not of its length.
pub fn matmul(a: Shifted<'_>, b: Shifted<'_>, extents: Extents, transpose_b: bool, totals: &mut [i64]) {
    let Extents { batch, m, k, n } = extents;
    let len = |x: usize, y: usize| batch.checked_mul(x).and_then(|v| v.checked_mul(y));
    assert_eq!(len(m, k), Some(a.numbers.len()), "matmul: a is not [{batch}, {m}, {k}]");
    assert_eq!(len(k, n), Some(b.numbers.len()), "matmul: b is not {batch} of {k} by {n}");
    assert_eq!(len(m, n), Some(totals.len()), "matmul: totals are not [{batch}, {m}, {n}]");
    if totals.is_empty() {
        return;
    }
    let level = Level::detect();
    let work = |(row, totals): (usize, &mut [i64])| {
        let matrix = &b.numbers[row / m * k * n..][..k * n];
        let row = &a.numbers[row * k..][..k];
        match transpose_b {
            true => row_by_rows_at(level, row, matrix, a.shift, b.shift, totals),
            false => row_by_columns_at(level, row, matrix, a.shift, b.shift, totals),
        }
    };
    if a.numbers.len().saturating_mul(n) < 2 * PARALLEL_WORK {
        totals.chunks_mut(n).enumerate().for_each(work);
    } else {
        totals.par_chunks_mut(n).enumerate().for_each(work);
    }
}

leveled! {
    fn row_by_rows_at(a: &[i16], b: &[i16], a_shift: i32, b_shift: i32, totals: &mut [i64]) {
        let constant = constant(a, a_shift, b_shift);
        totals.fill(constant);
        if a.is_empty() {
            return;
        }
        for (b, total) in b.chunks_exact(a.len()).zip(totals) {
            *total += dot(a, b);
            if a_shift != 0 {
                *total += i64::from(a_shift) * sum(b);
            }
        }
    }
}

leveled! {
    fn row_by_columns_at(a: &[i16], b: &[i16], a_shift: i32, b_shift: i32, totals: &mut [i64]) {
        let constant = constant(a, a_shift, b_shift);
        totals.fill(constant);
        for (a, b) in a.iter().zip(b.chunks_exact(totals.len())) {
            let a = i32::from(*a) + a_shift;
            for (total, b) in totals.iter_mut().zip(b) {
                *total += i64::from(a) * i64::from(*b);
            }
        }
    }
}

/// What the shift of the second operand adds to every element: `b_shift · Σ (a + a_shift)`.
#[inline(always)]
fn constant(a: &[i16], a_shift: i32, b_shift: i32) -> i64 {
    i64::from(b_shift) * (sum(a) + a.len() as i64 * i64::from(a_shift))
}

#[inline(always)]
fn sum(x: &[i16]) -> i64 {
    x.iter().map(|&x| i64::from(x)).sum()
}

/// Whole steps of a scale within bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// The size of a step.
    pub scale: f32,
    /// The lowest number of steps.
    pub low: f32,
    /// The highest number of steps.
    pub high: f32,
}

/// Rounds every number to the nearest step, halves away from zero, and cuts off what is beyond the bounds. Gives how many
/// numbers were cut by more than a step; NaN stays NaN and counts as cut.
pub fn round(values: &mut [f32], grid: Grid) -> u64 {
    round_at(Level::detect(), values, grid)
}

leveled! {
    pub(crate) fn round_at(values: &mut [f32], grid: Grid) -> u64 {
        let mut cut = 0u64;
        for values in values.chunks_mut(1 << 16) {
            let mut part = 0u32;
            for value in values {
                let steps = (*value / grid.scale).round();
                let within = if steps > grid.high { grid.high } else { steps };
                let within = if within < grid.low { grid.low } else { within };
                part += u32::from((steps - within).abs().partial_cmp(&1.0).is_none_or(|order| order.is_gt()));
                *value = within * grid.scale;
            }
            cut += u64::from(part);
        }
        cut
    }
}

/// Numbers on whole steps as those steps less `shift`, which brings them within int16.
///
/// # Panics
/// When the lengths differ.
pub fn steps(values: &[f32], scale: f32, shift: i32, out: &mut [i16]) {
    assert_eq!(values.len(), out.len(), "steps: lengths differ");
    steps_at(Level::detect(), values, scale, shift, out);
}

leveled! {
    pub(crate) fn steps_at(values: &[f32], scale: f32, shift: i32, out: &mut [i16]) {
        let shift = shift as f32;
        for (value, out) in values.iter().zip(out) {
            *out = ((*value / scale).round() - shift) as i16;
        }
    }
}

#[cfg(test)]
mod tests;
