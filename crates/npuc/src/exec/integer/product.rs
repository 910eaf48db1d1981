//! Exact products of whole numbers, rounded once to the result's: projections, and matrices of activations.

use std::borrow::Cow;

use npuc_kernels::DType;
use npuc_kernels::integer::{self, Extents, Numbers, Shifted};
use rayon::prelude::*;

use super::super::{Operand, Step};
use crate::diag::Result;
use crate::ir::Op;
use crate::quant::{self, Encoding, WeightFormat};
use crate::tensor::Tensor;

/// A matrix of whole numbers with a scale a row.
#[derive(Debug)]
pub(super) struct Matrix {
    held: Held,
    rows: usize,
    cols: usize,
    scales: Vec<f32>,
    /// The sum of each row's numbers.
    sums: Vec<i64>,
}

#[derive(Debug)]
enum Held {
    /// As the graph's weight is stored.
    Stored(Tensor),
    /// Rounded to at most 8 bits, in rows of [`DType::Int8`].
    Int8(Vec<u8>),
    Int16(Vec<i16>),
}

impl Matrix {
    /// A weight that is stored in whole numbers.
    pub(super) fn stored(tensor: Tensor) -> Matrix {
        let scales = integer::row_scales(tensor.dtype, &tensor.bytes(), tensor.shape[1]);
        Matrix::new((tensor.shape[0], tensor.shape[1]), scales, Held::Stored(tensor))
    }

    /// A weight rounded by rows, as a TFLite file has it.
    ///
    /// Errors: [`crate::Code::NonFiniteWeights`].
    pub(super) fn rounded(name: &str, tensor: &Tensor, format: WeightFormat) -> Result<Matrix> {
        let scales = quant::row_scales(name, tensor, format)?;
        let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
        let mut bytes = Vec::new();
        // Writing to memory cannot fail.
        _ = quant::write_rows(tensor, format, &scales, &mut bytes);
        let int8 = |number: &dyn Fn(usize) -> u8| {
            let row = |row: usize| {
                let numbers = (row * cols..(row + 1) * cols).map(number);
                scales[row].to_le_bytes().into_iter().chain(numbers)
            };
            (0..rows).flat_map(row).collect()
        };
        let held = match format {
            WeightFormat::Int16 => {
                Held::Int16(bytes.as_chunks::<2>().0.iter().map(|pair| i16::from_le_bytes(*pair)).collect())
            }
            WeightFormat::Int8 => Held::Int8(int8(&|place| bytes[place])),
            WeightFormat::Int4 => {
                Held::Int8(int8(&|place| ((bytes[place / 2] >> (4 * (place % 2)) << 4) as i8 >> 4) as u8))
            }
        };
        Ok(Matrix::new((rows, cols), scales, held))
    }

    fn new((rows, cols): (usize, usize), scales: Vec<f32>, held: Held) -> Matrix {
        let mut matrix = Matrix { held, rows, cols, scales, sums: Vec::new() };
        matrix.sums = matrix.with_numbers(integer::row_sums);
        matrix
    }

    fn with_numbers<T>(&self, use_it: impl FnOnce(integer::Matrix<'_>) -> T) -> T {
        let bytes: Cow<'_, [u8]>;
        let numbers = match &self.held {
            Held::Stored(tensor) => {
                bytes = tensor.bytes();
                Numbers::Stored(tensor.dtype, &bytes)
            }
            Held::Int8(bytes) => Numbers::Stored(DType::Int8, bytes),
            Held::Int16(numbers) => Numbers::Int16(numbers),
        };
        use_it(integer::Matrix { numbers, rows: self.rows, cols: self.cols })
    }
}

/// A step whose operands and result are whole numbers of these encodings.
#[derive(Clone, Copy, Debug)]
pub(super) enum Product {
    /// The first operand by a matrix, of that place among the matrices.
    Projection { x: Encoding, matrix: usize, result: Encoding },
    /// Two operands that are computed or enter.
    MatMul { a: Encoding, b: Encoding, result: Encoding },
}

impl Product {
    /// Computes the step's result, the real numbers of whole ones, into `out`; gives how many were cut off.
    pub(super) fn compute<'a>(
        &self,
        step: &'a Step,
        read: impl Fn(&'a Operand) -> &'a [f32],
        matrices: &[Matrix],
        out: &mut [f32],
    ) -> u64 {
        match *self {
            Product::Projection { x, matrix, result } => {
                let bias = step.args.get(2).map(&read);
                projection(read(&step.args[0]), x, &matrices[matrix], bias, result, out)
            }
            Product::MatMul { a, b, result } => {
                let transpose_b = matches!(step.op, Op::MatMul { transpose_b: true });
                let dims = &step.args[0].shape;
                let (rank, n) = (dims.len(), step.shape[step.shape.len() - 1]);
                let extents =
                    Extents { batch: dims[..rank - 2].iter().product(), m: dims[rank - 2], k: dims[rank - 1], n };
                let (left, right) = (numbers(read(&step.args[0]), a), numbers(read(&step.args[1]), b));
                let left = Shifted { numbers: &left, shift: a.centre() };
                let right = Shifted { numbers: &right, shift: b.centre() };
                let mut totals = vec![0; out.len()];
                integer::matmul(left, right, extents, transpose_b, &mut totals);
                let factor = f64::from(a.scale) * f64::from(b.scale) / f64::from(result.scale);
                let rounding = Rounding::to(result);
                let each = |(out, &total): (&mut f32, &i64)| rounding.round(total as f64 * factor, out);
                out.iter_mut().zip(&totals).map(each).sum()
            }
        }
    }
}

/// Real numbers as int16, less the encoding's centre.
fn numbers(x: &[f32], encoding: Encoding) -> Vec<i16> {
    let mut numbers = vec![0; x.len()];
    integer::steps(x, encoding.scale, encoding.centre(), &mut numbers);
    numbers
}

/// `x [tokens, cols]` by a matrix. The bias is added in whole steps of the products, as targets do.
fn projection(
    x: &[f32],
    encoding: Encoding,
    matrix: &Matrix,
    bias: Option<&[f32]>,
    result: Encoding,
    out: &mut [f32],
) -> u64 {
    let tokens = x.len() / matrix.cols;
    let mut totals = vec![0; out.len()];
    matrix.with_numbers(|weight| integer::linear(&numbers(x, encoding), tokens, weight, &mut totals));
    // What a row adds to every token, and what its totals are multiplied by.
    let row = |row: usize| {
        let product = f64::from(encoding.scale) * f64::from(matrix.scales[row]);
        let bias = bias.map_or(0.0, |bias| (f64::from(bias[row]) / product).round());
        (matrix.sums[row] as f64 * f64::from(encoding.centre()) + bias, product / f64::from(result.scale))
    };
    let rows: Vec<(f64, f64)> = (0..matrix.rows).map(row).collect();
    let rounding = Rounding::to(result);
    let of_token = |(token, out): (usize, &mut [f32])| -> u64 {
        let each = |(row, out): (usize, &mut f32)| {
            let (added, factor) = rows[row];
            rounding.round((totals[row * tokens + token] as f64 + added) * factor, out)
        };
        out.iter_mut().enumerate().map(each).sum()
    };
    out.par_chunks_mut(matrix.rows).enumerate().map(of_token).sum()
}

/// Rounding of a number of steps to an encoding: halves away from zero, cut off at the ends.
struct Rounding {
    low: f64,
    high: f64,
    scale: f32,
}

impl Rounding {
    fn to(encoding: Encoding) -> Rounding {
        let grid = encoding.grid();
        Rounding { low: f64::from(grid.low), high: f64::from(grid.high), scale: grid.scale }
    }

    /// Gives 1 if the number was cut by more than a step.
    #[inline]
    fn round(&self, steps: f64, out: &mut f32) -> u64 {
        let steps = steps.round();
        let within = steps.clamp(self.low, self.high);
        *out = within as f32 * self.scale;
        u64::from((steps - within).abs() > 1.0)
    }
}
