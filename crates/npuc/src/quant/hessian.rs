//! What the inputs of a projection are like: the sum of `xᵀ x` over calibration tokens, and its Cholesky factor.
//!
//! For a projection `x Wᵀ` the squared error of its outputs over all tokens is `Σ (w - w') H (w - w')ᵀ` over the rows of
//! `W`, with `H = Σ xᵀ x`: everything that rounding needs to know of the inputs is in H.

use std::ops::Range;

use npuc_kernels::matmul::matmul;
use rayon::prelude::*;

use crate::diag::{Code, Diagnostic, Result};

/// Rows of a matrix that one task works on.
const TASK_ROWS: usize = 96;
/// Tokens whose products are summed at a time: so many rows of a packed tile stay in the first cache.
const TASK_TOKENS: usize = 256;
/// Columns of a block: of a Cholesky factor, and of those whose errors reach the later columns together.
pub(super) const BLOCK: usize = 128;

/// What an error matters where an input was always zero, beside a mean of 1.
const LEAST_IMPORTANCE: f32 = 0.01;

/// `Σ xᵀ x` over the inputs of a projection, `[width, width]`.
#[derive(Clone, Debug)]
pub struct Hessian {
    width: usize,
    /// Rows of `width`.
    sums: Vec<f32>,
    tokens: usize,
}

impl Hessian {
    /// That of no tokens yet.
    pub fn new(width: usize) -> Hessian {
        Hessian { width, sums: vec![0.0; width * width], tokens: 0 }
    }

    /// Takes in the inputs of some tokens, `[tokens, width]`.
    ///
    /// # Panics
    /// When `rows` are no whole rows.
    pub fn add(&mut self, rows: &[f32]) {
        let width = self.width;
        assert!(rows.len().is_multiple_of(width), "whole rows of {width} numbers");
        for rows in rows.chunks(TASK_TOKENS * width.max(1)) {
            let tokens = rows.len() / width;
            let mut columns = vec![0.0; rows.len()];
            columns.par_chunks_mut(tokens).enumerate().for_each(|(column, out)| {
                out.iter_mut().zip(rows.chunks_exact(width)).for_each(|(o, row)| *o = row[column]);
            });
            add_products(&mut self.sums, &columns, Area { stride: width, first: 0, depth: tokens }, 1.0);
            self.tokens += tokens;
        }
        mirror(&mut self.sums, width);
    }

    /// The inputs of a projection.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The tokens that were taken in.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Element (i, j) of the sum.
    pub fn at(&self, i: usize, j: usize) -> f32 {
        self.sums[i * self.width + j]
    }

    /// The sum of the squares of every input, `[width]`: how much an error of a weight's column matters by itself.
    pub fn diagonal(&self) -> Vec<f32> {
        (0..self.width).map(|i| self.at(i, i)).collect()
    }

    /// The mean of [`Hessian::diagonal`]; 0 without inputs.
    pub fn mean_of_diagonal(&self) -> f32 {
        let sum: f64 = self.diagonal().into_iter().map(f64::from).sum();
        (sum / self.width.max(1) as f64) as f32
    }

    /// The mean square of every input in units of that of all, and a hundredth more for inputs that were always zero,
    /// `[width]`: the weights of errors in a search for scales.
    pub fn importance(&self) -> Vec<f32> {
        let mean = self.mean_of_diagonal();
        let unit = if mean > 0.0 { mean } else { 1.0 };
        self.diagonal().into_iter().map(|square| square / unit + LEAST_IMPORTANCE).collect()
    }

    /// That of the same inputs, each divided by its scale: what a weight meets whose columns are multiplied by the scales.
    ///
    /// # Panics
    /// When there are not as many scales as inputs.
    pub fn scaled(&self, scales: &[f32]) -> Hessian {
        assert_eq!(scales.len(), self.width, "one scale for each input");
        let mut sums = self.sums.clone();
        sums.par_chunks_mut(self.width.max(1)).zip(scales).for_each(|(row, by)| {
            row.iter_mut().zip(scales).for_each(|(element, scale)| *element = *element / scale / by);
        });
        Hessian { sums, ..*self }
    }

    /// Row `i` of the sum, `[width]`.
    pub(super) fn row(&self, i: usize) -> &[f32] {
        &self.sums[i * self.width..][..self.width]
    }

    /// `rows · H` of `[rows, width]`.
    pub(super) fn product(&self, rows: &[f32]) -> Vec<f32> {
        let mut product = vec![0.0; rows.len()];
        let count = rows.len() / self.width.max(1);
        matmul(rows, &self.sums, 1, count, self.width, self.width, true, &mut product);
        product
    }

    /// For every row `d` of `differences` `[rows, width]` the number `d H dᵀ / tokens`: the squared error of an output, as
    /// the mean over the tokens, when the row of a weight is off by `d`.
    ///
    /// # Panics
    /// When `differences` are no whole rows.
    pub fn losses(&self, differences: &[f32]) -> Vec<f64> {
        let width = self.width;
        assert!(differences.len().is_multiple_of(width), "whole rows of {width} numbers");
        let rows = differences.len() / width.max(1);
        let mut losses = vec![0.0; rows];
        for start in (0..width).step_by(BLOCK) {
            let end = (start + BLOCK).min(width);
            // Twice what is left of the diagonal block, for what is above it, and the block itself.
            let element = |i: usize, j: usize| if j < start { 2.0 * self.at(i, j) } else { self.at(i, j) };
            let part: Vec<f32> = (start..end).flat_map(|i| (0..end).map(move |j| element(i, j))).collect();
            let left: Vec<f32> = differences.chunks_exact(width).flat_map(|row| &row[..end]).copied().collect();
            let mut product = vec![0.0; rows * (end - start)];
            matmul(&left, &part, 1, rows, end, end - start, true, &mut product);
            let products = product.chunks_exact(end - start).zip(differences.chunks_exact(width));
            for (loss, (product, row)) in losses.iter_mut().zip(products) {
                let terms = product.iter().zip(&row[start..end]).map(|(a, b)| f64::from(*a) * f64::from(*b));
                *loss += terms.sum::<f64>();
            }
        }
        // Rounding may leave a negative number where H is singular. NaN stays.
        let tokens = self.tokens.max(1) as f64;
        losses.iter_mut().for_each(|loss| *loss = if *loss < 0.0 { 0.0 } else { *loss / tokens });
        losses
    }
}

/// Copies what is below the diagonal of a matrix `[width, width]` to above it, by squares of a block's columns.
fn mirror(sums: &mut [f32], width: usize) {
    for start in (0..width).step_by(BLOCK) {
        let end = (start + BLOCK).min(width);
        let (above, below) = sums.split_at_mut(end * width);
        above[start * width..].par_chunks_mut(width).enumerate().for_each(|(i, row)| {
            let column = start + i;
            row[end..].iter_mut().zip(below.chunks_exact(width)).for_each(|(x, row)| *x = row[column]);
        });
        for i in start..end {
            (i + 1..end).for_each(|j| above[i * width + j] = above[j * width + i]);
        }
    }
}

/// Where products are added: rows of `stride` numbers, in columns from `first` on, sums of `depth` terms.
#[derive(Clone, Copy)]
struct Area {
    stride: usize,
    first: usize,
    depth: usize,
}

/// `out[i, first + j] += sign · a[i] · a[j]` for `j` up to `i` and a little further, where nothing counts; `a` is
/// `[rows, depth]`.
fn add_products(out: &mut [f32], a: &[f32], area: Area, sign: f32) {
    let Area { stride, first, depth } = area;
    out.par_chunks_mut(TASK_ROWS * stride).zip(a.par_chunks(TASK_ROWS * depth)).enumerate().for_each(
        |(task, (out, rows))| {
            let count = rows.len() / depth;
            let width = task * TASK_ROWS + count;
            let mut product = vec![0.0; count * width];
            matmul(rows, &a[..width * depth], 1, count, depth, width, true, &mut product);
            for (out, product) in out.chunks_exact_mut(stride).zip(product.chunks_exact(width)) {
                out[first..].iter_mut().zip(product).for_each(|(o, p)| *o += sign * p);
            }
        },
    );
}

/// In which order the columns of a weight are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they are stored.
    Stored,
    /// Those with the largest inputs first, while there are many later columns to make up for their errors.
    Descending,
}

/// The Cholesky factor that [`super::gptq`] works with: `H + damping = M Mᵀ` with an upper triangle `M`.
///
/// GPTQ is commonly written with the upper Cholesky factor of the inverse of H, which is `M⁻¹`. With `M` itself the same
/// numbers come out (Chee et al., QuIP, 2023, theorem 6), no inverse is needed, and nothing is lost to one.
#[derive(Clone, Debug)]
pub struct Factor {
    /// The column of the weight at each place of the factor.
    order: Vec<usize>,
    /// Row `n-1-i`, column `n-1-j` is element (i, j) of M.
    reversed: Vec<f32>,
    importance: Vec<f32>,
    damping: f32,
}

impl Factor {
    /// The factor of `hessian` with `damping` times the mean of its diagonal added to the diagonal, or ten times as much
    /// as often as it takes until there is one. Inputs that were always zero then have an error that reaches no other
    /// column. If all of them were, the identity stands in for H.
    ///
    /// Errors: [`Code::BadRange`] for inputs that were not finite, or a damping that is not above zero.
    pub fn of(hessian: &Hessian, damping: f32, order: Order) -> Result<Factor> {
        let mean = hessian.mean_of_diagonal();
        if !mean.is_finite() {
            let fault = Diagnostic::error(Code::BadRange, "the inputs of a projection are not finite, or too large");
            return Err(fault.need("finite sums of squares").have(mean).into());
        }
        if !(damping > 0.0 && damping.is_finite()) {
            let fault = Diagnostic::error(Code::BadRange, "the damping of a factor is a share of the mean square");
            return Err(fault.need("a finite number above zero").have(damping).into());
        }
        let places = ordered(&hessian.diagonal(), order);
        let mut damping = damping;
        loop {
            let mut reversed = reversed(hessian, &places, mean, damping);
            if cholesky(&mut reversed, places.len(), damping / 2.0) {
                return Ok(Factor { order: places, reversed, importance: hessian.importance(), damping });
            }
            damping *= 10.0;
            if !damping.is_finite() {
                let fault = Diagnostic::error(Code::BadRange, "the inputs of a projection have no Cholesky factor");
                return Err(fault.need("finite inputs").have(format!("a mean square of {mean}")).into());
            }
        }
    }

    /// The column at each place: columns are rounded in this order.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The damping that was used, as a share of the mean of the diagonal.
    pub fn damping(&self) -> f32 {
        self.damping
    }

    /// How much an error of each column matters by itself, see [`Hessian::importance`].
    pub fn importance(&self) -> &[f32] {
        &self.importance
    }

    /// Elements `M[i, j] / M[j, j]` for `i` in `rows` and `j` in `cols`, by rows `j`: `[cols, rows]`. What is below the
    /// diagonal is zero.
    pub(super) fn feedback(&self, rows: Range<usize>, cols: Range<usize>) -> Vec<f32> {
        let n = self.order.len();
        let element = |i: usize, j: usize| self.reversed[(n - 1 - i) * n + n - 1 - j];
        let mut out = vec![0.0; rows.len() * cols.len()];
        out.par_chunks_mut(rows.len()).zip(cols).for_each(|(out, j)| {
            let scale = 1.0 / element(j, j);
            let above = rows.clone().take_while(|&i| i <= j);
            out.iter_mut().zip(above).for_each(|(o, i)| *o = element(i, j) * scale);
        });
        out
    }
}

/// The columns in the order in which they are rounded.
fn ordered(diagonal: &[f32], order: Order) -> Vec<usize> {
    let mut places: Vec<usize> = (0..diagonal.len()).collect();
    match order {
        Order::Stored => {}
        Order::Descending => places.sort_by(|&a, &b| diagonal[b].total_cmp(&diagonal[a])),
    }
    places
}

/// `H / mean + damping`, with its last row and column first; `1 + damping` times the identity if the mean is 0. Only what is on or below the
/// diagonal counts.
fn reversed(hessian: &Hessian, places: &[usize], mean: f32, damping: f32) -> Vec<f32> {
    let n = places.len();
    let mut out = vec![0.0; n * n];
    out.par_chunks_mut(n.max(1)).enumerate().for_each(|(r, row)| {
        let i = places[n - 1 - r];
        if mean > 0.0 {
            for (element, &j) in row[..=r].iter_mut().zip(places.iter().rev()) {
                *element = hessian.at(i, j) / mean;
            }
        } else {
            row[r] = 1.0;
        }
        row[r] += damping;
    });
    out
}

/// The lower Cholesky factor of a symmetric matrix `[n, n]` in its place, by blocks of columns; what is above the diagonal is
/// neither read nor meant afterwards. False if a pivot is not above `least`: no pivot is below the smallest eigenvalue, so one
/// that is was made by rounding.
///
/// Blocks on the diagonal and below are computed in f64, what they take from later columns in f32.
fn cholesky(a: &mut [f32], n: usize, least: f32) -> bool {
    for start in (0..n).step_by(BLOCK) {
        let end = (start + BLOCK).min(n);
        let width = end - start;
        let Some(block) = block_factor(a, n, start..end, least) else { return false };
        let below = &mut a[end * n..];
        below.par_chunks_mut(n).for_each(|row| solve(&block, &mut row[start..end]));
        let mut panel = vec![0.0; (n - end) * width];
        panel
            .par_chunks_mut(width)
            .zip(below.par_chunks(n))
            .for_each(|(out, row)| out.copy_from_slice(&row[start..end]));
        add_products(below, &panel, Area { stride: n, first: end, depth: width }, -1.0);
    }
    true
}

/// Factors one block on the diagonal in its place, and gives the factor's transpose `[width, width]`.
fn block_factor(a: &mut [f32], n: usize, range: Range<usize>, least: f32) -> Option<Vec<f64>> {
    let (start, width) = (range.start, range.len());
    // Row j holds column j of the factor, from the diagonal on.
    let mut columns = vec![0.0f64; width * width];
    for j in 0..width {
        (j..width).for_each(|i| columns[j * width + i] = f64::from(a[(start + i) * n + start + j]));
    }
    for j in 0..width {
        let (done, rest) = columns.split_at_mut((j + 1) * width);
        let column = &mut done[j * width..];
        let is_usable = column[j].is_finite() && column[j] > f64::from(least);
        if !is_usable {
            return None;
        }
        let root = column[j].sqrt();
        column[j..].iter_mut().for_each(|x| *x /= root);
        for (k, later) in (j + 1..width).zip(rest.chunks_exact_mut(width)) {
            let factor = column[k];
            later[k..].iter_mut().zip(&column[k..]).for_each(|(x, c)| *x -= factor * c);
        }
    }
    for j in 0..width {
        (j..width).for_each(|i| a[(start + i) * n + start + j] = columns[j * width + i] as f32);
    }
    Some(columns)
}

/// `x ← x · L⁻ᵀ` for the factor whose transpose `columns` is.
fn solve(columns: &[f64], x: &mut [f32]) {
    let width = x.len();
    let mut wide = [0.0f64; BLOCK];
    let wide = &mut wide[..width];
    wide.iter_mut().zip(x.iter()).for_each(|(w, x)| *w = f64::from(*x));
    for (j, column) in columns.chunks_exact(width).enumerate() {
        let element = wide[j] / column[j];
        wide[j] = element;
        wide[j + 1..].iter_mut().zip(&column[j + 1..]).for_each(|(x, c)| *x -= element * c);
    }
    x.iter_mut().zip(wide.iter()).for_each(|(x, w)| *x = *w as f32);
}

#[cfg(test)]
pub(super) mod tests;
