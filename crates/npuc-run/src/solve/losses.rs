//! The error of a projection's outputs in each format, on the inputs that a text makes: nearest rounding, searched scales.

use std::collections::BTreeMap;

use npuc::quant::hessian::Hessian;
use npuc::quant::solve::Matrix;
use npuc::quant::stream::{self, Fault, Scales};
use npuc::{Code, DType, Diagnostic, Result, Tensor};
use npuc_kernels::dequant::dequantize_row;
use npuc_kernels::quantize::{Search, quantize_row, saturates};
use rayon::prelude::*;

/// Rows of a matrix that are tried, evenly over all: the sum over all rows is taken to be in proportion.
const TRIED_ROWS: usize = 1024;

/// The squared errors of a matrix, as the mean over tokens of the sum over its outputs.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    /// For each of [`Matrix::formats`]; infinite where a format cannot hold the numbers.
    pub(super) of_format: Vec<f64>,
    /// The same of the outputs themselves.
    pub(super) energy: f64,
}

impl Losses {
    /// Of a projection whose inputs are `hessian`.
    ///
    /// Errors: weights that are not finite.
    pub(super) fn of_outputs(matrix: &Matrix, tensor: &Tensor, hessian: &Hessian) -> Result<Losses> {
        let rows = matrix.shape.first().copied().unwrap_or(0);
        let tried = rows.min(TRIED_ROWS);
        let places: Vec<usize> = (0..tried).map(|i| i * rows / tried).collect();
        let share = rows as f64 / tried.max(1) as f64;
        Losses::of(matrix, tensor, &places, |differences| share * hessian.losses(differences).iter().sum::<f64>())
    }

    /// Of an embedding table, over the rows of `counts`: an id and how often it comes.
    ///
    /// Errors: weights that are not finite.
    pub(super) fn of_rows(matrix: &Matrix, tensor: &Tensor, counts: &BTreeMap<u32, usize>) -> Result<Losses> {
        let places: Vec<usize> = counts.keys().map(|id| *id as usize).collect();
        let tokens: usize = counts.values().sum();
        let cols = matrix.shape.last().copied().unwrap_or(1);
        Losses::of(matrix, tensor, &places, |differences| {
            let square = |row: &[f32]| row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
            let rows = differences.chunks_exact(cols).zip(counts.values());
            rows.map(|(row, count)| square(row) * *count as f64).sum::<f64>() / tokens.max(1) as f64
        })
    }

    fn of(matrix: &Matrix, tensor: &Tensor, places: &[usize], loss: impl Fn(&[f32]) -> f64) -> Result<Losses> {
        let rows = rows(tensor, places);
        let odd = rows.iter().filter(|x| !x.is_finite()).count();
        if odd > 0 {
            let fault = Diagnostic::error(Code::NonFiniteWeights, "a weight holds values that are not finite");
            return Err(fault.subject(&matrix.name).need("finite values").have(odd).into());
        }
        let cols = matrix.shape.last().copied().unwrap_or(1);
        let of_format = |format: &DType| {
            if *format == tensor.dtype {
                return 0.0;
            }
            if rows.chunks_exact(cols).any(|row| saturates(*format, row)) {
                return f64::INFINITY;
            }
            loss(&differences(&rows, cols, *format))
        };
        Ok(Losses { of_format: matrix.formats.iter().map(of_format).collect(), energy: loss(&rows) })
    }
}

/// Rows of a matrix in f32.
fn rows(tensor: &Tensor, places: &[usize]) -> Vec<f32> {
    let cols = tensor.shape.last().copied().unwrap_or(1);
    let bytes = tensor.bytes();
    let row_bytes = tensor.dtype.row_bytes(cols).unwrap_or(0);
    let mut rows = vec![0.0; places.len() * cols];
    rows.par_chunks_exact_mut(cols).zip(places).for_each(|(row, place)| {
        dequantize_row(tensor.dtype, &bytes[place * row_bytes..][..row_bytes], row);
    });
    rows
}

/// What rounding makes of rows, less the rows.
fn differences(rows: &[f32], cols: usize, format: DType) -> Vec<f32> {
    let mut differences = vec![0.0; rows.len()];
    let pairs = differences.par_chunks_exact_mut(cols).zip(rows.par_chunks_exact(cols));
    pairs.for_each_init(
        || vec![0; format.row_bytes(cols).unwrap_or(0)],
        |stored, (difference, row)| {
            quantize_row(format, row, None, Search::Error, stored);
            dequantize_row(format, stored, difference);
            difference.iter_mut().zip(row).for_each(|(d, x)| *d -= x);
        },
    );
    differences
}

/// A whole matrix in another format.
///
/// Errors: numbers that the format cannot hold.
pub(super) fn rounded(name: &str, tensor: &Tensor, format: DType) -> Result<Tensor> {
    let mut bytes = Vec::new();
    stream::write(name, tensor, format, Search::Error, Scales::F16, &mut bytes).map_err(|fault| match fault {
        Fault::Weight(error) => error,
        Fault::Output(e) => Diagnostic::error(Code::Unwritable, format!("cannot keep a weight: {e}")).into(),
    })?;
    Tensor::in_memory(format, tensor.shape.clone(), bytes.into()).ok_or_else(|| {
        Diagnostic::error(Code::GroupSize, "the groups of a format do not divide the rows of a weight")
            .subject(name)
            .have(format)
            .into()
    })
}
