//! Rounding a weight so that the outputs change least, not the numbers: GPTQ, held against rounding to the nearest.
//!
//! Columns are rounded one after the other, and what a column is off is made up for by those that come later, as far as the
//! inputs of both go together; then each number is chosen once more with all others as they are. The scales are those of the row as it was, so that blocks and the order of columns do
//! not depend on each other. Sources: Frantar et al., GPTQ, 2022; Behdin et al., QuantEase, 2023, for the second choice.

use std::ops::Range;

use npuc_kernels::dequant::dequantize_row;
use npuc_kernels::matmul::matmul;
use npuc_kernels::quantize::{Grid, Search, quantize_row, saturates, writable};
use rayon::prelude::*;

use super::hessian::{BLOCK, Factor, Hessian};
use crate::diag::{Code, Diagnostic, Result};
use crate::tensor::DType;

/// Rows that are rounded together: enough for their products with the factor to be worth it, few enough to be held
/// several times.
const CHUNK_ROWS: usize = 512;
/// How often each number may be chosen once more. Later sweeps change little.
const SWEEPS: usize = 3;

/// How a row was rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// To the nearest number, with the scale of the largest magnitude.
    Nearest,
    /// To the nearest number, with the scale of the least error where the inputs are large.
    LeastError,
    /// With that scale, each number chosen with regard to the errors of all others.
    Gptq,
}

/// A weight as it is stored, with what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounded {
    /// The stored rows.
    pub bytes: Vec<u8>,
    /// What was chosen for each row.
    pub methods: Vec<Method>,
    /// The squared error of each output, as the mean over the calibration tokens; see [`Hessian::losses`].
    pub losses: Vec<f64>,
    /// The same for each row as rounded to the nearest with the scale of the largest magnitude.
    pub nearest: Vec<f64>,
}

/// Rounds a weight `[rows, cols]` to a format. Each row is rounded by every [`Method`], and the one with the least error
/// over the calibration tokens is taken: none is worse than rounding to the nearest.
///
/// `hessian` and its `factor` are of the inputs, `cols` of them. Floats are rounded to the nearest.
///
/// Errors: [`Code::UnsupportedFormat`] for a format that npuc does not write or whose blocks do not divide the rows,
/// [`Code::WrongShape`] for inputs of another number, [`Code::NonFiniteWeights`], and [`Code::BadRange`] for numbers that are
/// too large for the format.
pub fn quantise_matrix(
    name: &str,
    weights: &[f32],
    dtype: DType,
    hessian: &Hessian,
    factor: &Factor,
) -> Result<Rounded> {
    let cols = hessian.width();
    let row_bytes = check(name, weights, dtype, cols)?;
    if factor.order().len() != cols {
        return Err(other_inputs(name, factor.order().len(), cols));
    }
    let rows = weights.len() / cols;
    let mut rounded =
        Rounded { bytes: vec![0; rows * row_bytes], methods: Vec::new(), losses: Vec::new(), nearest: Vec::new() };
    let chunks = weights.chunks(CHUNK_ROWS * cols).zip(rounded.bytes.chunks_mut(CHUNK_ROWS * row_bytes));
    for (weights, out) in chunks {
        nearest(weights, dtype, None, cols, out);
        let first = losses(weights, out, dtype, hessian);
        let mut best = Best { methods: vec![Method::Nearest; first.len()], losses: first.clone() };
        let mut other = vec![0; out.len()];
        for method in others(dtype) {
            match method {
                Method::Nearest => nearest(weights, dtype, None, cols, &mut other),
                Method::LeastError => nearest(weights, dtype, Some(factor.importance()), cols, &mut other),
                Method::Gptq => gptq(weights, hessian, factor, dtype, Search::Error, &mut other),
            }
            best.improve(*method, &losses(weights, &other, dtype, hessian), &other, out);
        }
        rounded.nearest.extend(first);
        rounded.methods.extend(best.methods);
        rounded.losses.extend(best.losses);
    }
    Ok(rounded)
}

/// The methods that are tried beside the first one.
const fn others(dtype: DType) -> &'static [Method] {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => &[],
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => &[Method::LeastError, Method::Gptq],
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => &[Method::LeastError, Method::Gptq],
        DType::Int8 | DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_) => &[Method::LeastError, Method::Gptq],
    }
}

/// The best of what was tried for each row of a chunk.
struct Best {
    methods: Vec<Method>,
    losses: Vec<f64>,
}

impl Best {
    /// Takes over the rows that `method` rounds better.
    fn improve(&mut self, method: Method, losses: &[f64], rows: &[u8], out: &mut [u8]) {
        let row_bytes = out.len() / losses.len().max(1);
        for (row, &loss) in losses.iter().enumerate() {
            if loss < self.losses[row] {
                (self.methods[row], self.losses[row]) = (method, loss);
                out[row * row_bytes..][..row_bytes].copy_from_slice(&rows[row * row_bytes..][..row_bytes]);
            }
        }
    }
}

/// The bytes of a row, if the weight can be rounded.
pub(super) fn check(name: &str, weights: &[f32], dtype: DType, cols: usize) -> Result<usize> {
    if !writable(dtype) {
        let fault = Diagnostic::error(Code::UnsupportedFormat, "npuc does not write this format");
        let formats: Vec<&str> = DType::ALL.into_iter().filter(|&d| writable(d)).map(DType::name).collect();
        return Err(fault.subject(name).need(formats.join(", ")).have(dtype).into());
    }
    if cols == 0 || !weights.len().is_multiple_of(cols) {
        return Err(other_inputs(name, weights.len(), cols));
    }
    let row_bytes = dtype.row_bytes(cols).ok_or_else(|| {
        Diagnostic::error(Code::UnsupportedFormat, "the blocks of a format do not divide the rows of a weight")
            .subject(name)
            .need(format!("rows of a multiple of {} numbers for {dtype}", dtype.block_len()))
            .have(cols)
    })?;
    if !weights.par_iter().all(|x| x.is_finite()) {
        let fault = Diagnostic::error(Code::NonFiniteWeights, "a weight holds values that are not finite");
        return Err(fault.subject(name).need("finite values").into());
    }
    if weights.par_chunks_exact(cols).any(|row| saturates(dtype, row)) {
        let largest = weights.iter().fold(0.0f32, |a, b| a.max(b.abs()));
        let fault = Diagnostic::error(Code::BadRange, "a weight holds numbers that are too large for the format");
        return Err(fault.subject(name).need(format!("numbers within the range of {dtype}")).have(largest).into());
    }
    Ok(row_bytes)
}

fn other_inputs(name: &str, have: usize, cols: usize) -> crate::Error {
    Diagnostic::error(Code::WrongShape, "a weight has other inputs than those that were calibrated")
        .subject(name)
        .need(format!("rows of {cols} numbers, above zero"))
        .have(have)
        .into()
}

/// Every row to the nearest numbers, with the scale of the largest magnitude or that of the least error.
fn nearest(weights: &[f32], dtype: DType, importance: Option<&[f32]>, cols: usize, out: &mut [u8]) {
    let search = if importance.is_some() { Search::Error } else { Search::Plain };
    let row_bytes = out.len() / (weights.len() / cols).max(1);
    weights
        .par_chunks_exact(cols)
        .zip(out.par_chunks_exact_mut(row_bytes))
        .for_each(|(row, out)| quantize_row(dtype, row, importance, search, out));
}

/// The squared error of each output of a stored weight, see [`Hessian::losses`]. `weights` is `[rows, width]`.
fn losses(weights: &[f32], stored: &[u8], dtype: DType, hessian: &Hessian) -> Vec<f64> {
    let cols = hessian.width();
    let row_bytes = stored.len() / (weights.len() / cols).max(1);
    let mut differences = vec![0.0; weights.len()];
    let rows = differences.par_chunks_exact_mut(cols).zip(weights.par_chunks_exact(cols));
    rows.zip(stored.par_chunks_exact(row_bytes)).for_each(|((out, row), stored)| {
        dequantize_row(dtype, stored, out);
        out.iter_mut().zip(row).for_each(|(o, w)| *o = w - *o);
    });
    hessian.losses(&differences)
}

/// The squared error of all outputs when `decoded` stands for `original`, both `[rows, width]`, as the mean over the
/// calibration tokens.
///
/// # Panics
/// When the two are no whole rows of the inputs' width.
pub fn loss(original: &[f32], decoded: &[f32], hessian: &Hessian) -> f64 {
    assert_eq!(original.len(), decoded.len(), "numbers of a weight and of what stands for it");
    let differences: Vec<f32> = original.iter().zip(decoded).map(|(a, b)| a - b).collect();
    hessian.losses(&differences).into_iter().sum()
}

/// A row that is being rounded.
struct Row {
    grid: Grid,
    /// By column.
    numbers: Vec<i8>,
}

/// Rounds the rows `[rows, cols]` with scales found for them by `search`, the errors weighted with the inputs' squares.
///
/// Where columns up to `j` are off by `e`, the error of the outputs is `|e M|²`, and its part `j` is
/// `M[j, j] · (e[j] + Σ e[i] M[i, j] / M[j, j])`. So column `j` is rounded from `w[j] + Σ e[i] M[i, j] / M[j, j]`, which makes
/// this part as small as it can be. `hessian` is what the factor is of.
///
/// # Panics
/// When there are no columns, `dtype` has no [`Grid`], its blocks do not divide the rows, or a slice is not of its length.
pub fn gptq(weights: &[f32], hessian: &Hessian, factor: &Factor, dtype: DType, search: Search, out: &mut [u8]) {
    let cols = factor.order().len();
    let row_bytes = dtype.row_bytes(cols).expect("blocks divide the rows");
    assert_eq!(hessian.width(), cols, "inputs of the sum and of its factor");
    assert!(weights.len().is_multiple_of(cols) && out.len() == weights.len() / cols * row_bytes, "lengths of the rows");
    for (weights, out) in weights.chunks(CHUNK_ROWS * cols).zip(out.chunks_mut(CHUNK_ROWS * row_bytes)) {
        let mut rows = round_rows(weights, factor, dtype, search);
        choose_again(&mut rows, weights, hessian, factor);
        rows.par_iter()
            .zip(out.par_chunks_exact_mut(row_bytes))
            .for_each(|(row, out)| row.grid.pack(&row.numbers, out));
    }
}

/// Rounds rows column by column.
fn round_rows(weights: &[f32], factor: &Factor, dtype: DType, search: Search) -> Vec<Row> {
    let cols = factor.order().len();
    let start = |row: &[f32]| Row {
        grid: Grid::fit(dtype, row, Some(factor.importance()), search).expect("a format with a grid"),
        numbers: vec![0; cols],
    };
    let mut rows: Vec<Row> = weights.par_chunks_exact(cols).map(start).collect();
    // By place, like the factor.
    let targets = weights.chunks_exact(cols).flat_map(|row| factor.order().iter().map(|&column| row[column]));
    let mut targets: Vec<f32> = targets.collect();
    for start in (0..cols).step_by(BLOCK) {
        round_block(&mut rows, &mut targets, weights, factor, start..(start + BLOCK).min(cols));
    }
    rows
}

/// Rounds the columns of a block of places, and lets those of later blocks make up for them.
fn round_block(rows: &mut [Row], targets: &mut [f32], weights: &[f32], factor: &Factor, block: Range<usize>) {
    let cols = factor.order().len();
    let width = block.len();
    let by_column = factor.feedback(block.clone(), block.clone());
    let within: Vec<f32> = (0..width * width).map(|i| by_column[i % width * width + i / width]).collect();
    let columns = &factor.order()[block.clone()];
    let mut errors = vec![0.0; rows.len() * width];
    rows.par_iter_mut()
        .zip(errors.par_chunks_exact_mut(width))
        .zip(targets.par_chunks_exact_mut(cols).zip(weights.par_chunks_exact(cols)))
        .for_each(|((row, errors), (targets, weights))| {
            let targets = &mut targets[block.clone()];
            for (place, (&column, later)) in columns.iter().zip(within.chunks_exact(width)).enumerate() {
                let number = row.grid.nearest(column, targets[place]);
                row.numbers[column] = number;
                let error = weights[column] - row.grid.value(column, number);
                errors[place] = error;
                let after = targets[place + 1..].iter_mut().zip(&later[place + 1..]);
                after.for_each(|(target, share)| *target += error * share);
            }
        });
    let rest = cols - block.end;
    if rest > 0 {
        let panel = factor.feedback(block.clone(), block.end..cols);
        let mut shares = vec![0.0; rows.len() * rest];
        matmul(&errors, &panel, 1, rows.len(), width, rest, true, &mut shares);
        targets.par_chunks_exact_mut(cols).zip(shares.par_chunks_exact(rest)).for_each(|(targets, shares)| {
            targets[block.end..].iter_mut().zip(shares).for_each(|(target, share)| *target += share);
        });
    }
}

/// Chooses each number once more, with all others as they are, until none changes or [`SWEEPS`] are over. With `g = e H`
/// the best error of column `j` is `e[j] - g[j] / H[j, j]`. H is damped like the factor.
fn choose_again(rows: &mut [Row], weights: &[f32], hessian: &Hessian, factor: &Factor) {
    let cols = hessian.width();
    let damping = factor.damping() * hessian.mean_of_diagonal();
    let mut errors = vec![0.0; weights.len()];
    errors.par_chunks_exact_mut(cols).zip(weights.par_chunks_exact(cols)).zip(rows.par_iter()).for_each(
        |((errors, weights), row)| {
            let error = |column: usize| weights[column] - row.grid.value(column, row.numbers[column]);
            errors.iter_mut().enumerate().for_each(|(column, e)| *e = error(column));
        },
    );
    let mut gradients = hessian.product(&errors);
    rows.par_iter_mut()
        .zip(weights.par_chunks_exact(cols))
        .zip(errors.par_chunks_exact_mut(cols).zip(gradients.par_chunks_exact_mut(cols)))
        .for_each(|((row, weights), (errors, gradient))| {
            for _ in 0..SWEEPS {
                let mut changed = false;
                for &column in factor.order() {
                    let sums = hessian.row(column);
                    let own = sums[column] + damping;
                    if own <= 0.0 {
                        continue;
                    }
                    let slope = (gradient[column] + damping * errors[column]) / own;
                    let number = row.grid.nearest(column, weights[column] - errors[column] + slope);
                    if number != row.numbers[column] {
                        let error = weights[column] - row.grid.value(column, number);
                        let change = error - errors[column];
                        gradient.iter_mut().zip(sums).for_each(|(g, h)| *g += change * h);
                        (row.numbers[column], errors[column], changed) = (number, error, true);
                    }
                }
                if !changed {
                    break;
                }
            }
        });
}

#[cfg(test)]
mod tests;
