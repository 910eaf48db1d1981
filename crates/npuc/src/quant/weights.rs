//! Weights as whole numbers: a scale for every output channel, found in a first pass, and rows that are rounded while
//! they are written.
//!
//! Rounding is to the nearest, and nothing is clipped: the scale of a row is the smallest that holds its numbers.

use std::io::{self, Write};

use npuc_kernels::dequant::dequantize_row;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::diag::{Code, Diagnostic, Result};
use crate::tensor::{DType, Tensor};

/// How the numbers of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightFormat {
    /// -32767 to 32767, two bytes each.
    Int16,
    /// -127 to 127.
    Int8,
    /// -8 to 7, two numbers a byte, the first one in the low half.
    Int4,
}

impl WeightFormat {
    /// Every format.
    pub const ALL: [WeightFormat; 3] = [WeightFormat::Int16, WeightFormat::Int8, WeightFormat::Int4];

    /// The name in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::Int16 => "int16",
            WeightFormat::Int8 => "int8",
            WeightFormat::Int4 => "int4",
        }
    }

    /// The format whose numbers and scales a matrix stored as `dtype` has already.
    pub const fn of_stored(dtype: DType) -> Option<WeightFormat> {
        match dtype {
            DType::Int8 => Some(WeightFormat::Int8),
            DType::Int4 => Some(WeightFormat::Int4),
            DType::F32 | DType::F16 | DType::BF16 | DType::Lpbq4(_) | DType::Bw4(_) => None,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => None,
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => None,
        }
    }

    /// Bits of a number.
    pub const fn bits(self) -> u32 {
        match self {
            WeightFormat::Int16 => 16,
            WeightFormat::Int8 => 8,
            WeightFormat::Int4 => 4,
        }
    }

    /// The smallest and the largest number.
    const fn limits(self) -> (f32, f32) {
        match self {
            WeightFormat::Int16 => (-32767.0, 32767.0),
            WeightFormat::Int8 => (-127.0, 127.0),
            WeightFormat::Int4 => (-8.0, 7.0),
        }
    }

    /// The smallest scale with which a row fits whose numbers reach from `low` to `high`. For int4 this uses -8: it is
    /// an eighth finer than `absmax / 7` where the largest magnitude is a negative number's.
    ///
    /// A row without a magnitude of [`SMALLEST_ROW`] is one of zeros and has the scale 1.
    fn scale(self, low: f32, high: f32) -> f32 {
        let (least, most) = self.limits();
        let scale = (low.min(0.0) / least).max(high.max(0.0) / most);
        if low.abs().max(high.abs()) < SMALLEST_ROW { 1.0 } else { scale }
    }

    fn quantise(self, x: f32, scale: f32) -> i16 {
        let (least, most) = self.limits();
        // The quotient may be above the limit by a rounding error.
        (x / scale).round().clamp(least, most) as i16
    }
}

/// Magnitudes below this are zero beside any weight that has an effect, and their scales would leave the range of f32
/// in products.
pub const SMALLEST_ROW: f32 = 1e-20;

/// Elements that are rounded at a time.
const BATCH_ELEMENTS: usize = 1 << 20;

/// The scale of every row `[rows]` of a matrix `[rows, cols]`; of the whole for a vector. A matrix that is stored in the
/// format keeps its scales, with which its numbers come out as they are.
///
/// Errors: [`Code::NonFiniteWeights`].
pub fn row_scales(name: &str, tensor: &Tensor, format: WeightFormat) -> Result<Vec<f32>> {
    if WeightFormat::of_stored(tensor.dtype) == Some(format) {
        let (_, row_bytes) = row_size(tensor);
        let scale = |row: &[u8]| f32::from_le_bytes([row[0], row[1], row[2], row[3]]);
        return Ok(tensor.bytes().chunks_exact(row_bytes).map(scale).collect());
    }
    let (cols, row_bytes) = row_size(tensor);
    let bytes = tensor.bytes();
    let rows = bytes.par_chunks_exact(row_bytes).map_init(
        || vec![0.0f32; cols],
        |row, stored| {
            dequantize_row(tensor.dtype, stored, row);
            let finite = row.iter().all(|x| x.is_finite());
            let extremes = row.iter().fold((0.0f32, 0.0f32), |(low, high), &x| (low.min(x), high.max(x)));
            finite.then(|| format.scale(extremes.0, extremes.1))
        },
    );
    rows.collect::<Option<Vec<f32>>>().ok_or_else(|| {
        let fault = Diagnostic::error(Code::NonFiniteWeights, "a weight holds values that are not finite");
        fault.subject(name).need("finite values").into()
    })
}

/// The largest magnitude of a tensor; infinity if it holds NaN.
pub fn largest(tensor: &Tensor) -> f32 {
    let (cols, row_bytes) = row_size(tensor);
    let bytes = tensor.bytes();
    let rows = bytes.par_chunks_exact(row_bytes).map_init(
        || vec![0.0f32; cols],
        |row, stored| {
            dequantize_row(tensor.dtype, stored, row);
            super::largest_magnitude(row)
        },
    );
    let largest = rows.reduce(|| 0.0, f32::max);
    tensor.release(0..tensor.byte_len());
    largest
}

/// Bytes of a whole tensor in that format.
pub fn quantised_bytes(tensor: &Tensor, format: WeightFormat) -> Option<u64> {
    let elements = u64::try_from(tensor.shape.elements()?).ok()?;
    elements.checked_mul(u64::from(format.bits())).map(|bits| bits.div_ceil(8))
}

/// Writes a tensor row by row with its [`row_scales`], or with one scale for all rows. Rows are rounded in parallel, a
/// few at a time.
pub fn write_rows(tensor: &Tensor, format: WeightFormat, scales: &[f32], out: &mut dyn Write) -> io::Result<()> {
    let (cols, row_bytes) = row_size(tensor);
    let bytes = tensor.bytes();
    // An even number of rows, so that each batch begins with a whole byte.
    let batch_rows = (BATCH_ELEMENTS / cols).next_multiple_of(2).max(2);
    for (number, batch) in bytes.chunks(batch_rows * row_bytes).enumerate() {
        let mut numbers = vec![0i16; batch.len() / row_bytes * cols];
        batch.par_chunks_exact(row_bytes).zip(numbers.par_chunks_exact_mut(cols)).enumerate().for_each_init(
            || vec![0.0f32; cols],
            |row, (place, (stored, numbers))| {
                dequantize_row(tensor.dtype, stored, row);
                let scale = if scales.len() == 1 { scales[0] } else { scales[number * batch_rows + place] };
                numbers.iter_mut().zip(row.iter()).for_each(|(q, &x)| *q = format.quantise(x, scale));
            },
        );
        out.write_all(&packed(&numbers, format))?;
    }
    Ok(())
}

/// The bytes of numbers in a format.
fn packed(numbers: &[i16], format: WeightFormat) -> Vec<u8> {
    match format {
        WeightFormat::Int16 => numbers.iter().flat_map(|q| q.to_le_bytes()).collect(),
        WeightFormat::Int8 => numbers.iter().map(|&q| q as u8).collect(),
        WeightFormat::Int4 => {
            let pair = |pair: &[i16]| pair[0] as u8 & 15 | (pair.get(1).map_or(0, |&q| q as u8) & 15) << 4;
            numbers.chunks(2).map(pair).collect()
        }
    }
}

/// How many numbers of a table an int16 of that scale holds only by saturating, which is by rounding: a table of
/// embeddings has the scale of the port that it fills.
///
/// Errors: [`Code::BadRange`] if a number is beyond the range by more than half a step.
pub fn saturated(name: &str, tensor: &Tensor, scale: f32) -> Result<usize> {
    let (limit, rounded) = (super::INT16_MAX * scale, (super::INT16_MAX + 0.5) * scale);
    let (cols, row_bytes) = row_size(tensor);
    let bytes = tensor.bytes();
    let rows = bytes.par_chunks_exact(row_bytes).map_init(
        || vec![0.0f32; cols],
        |row, stored| {
            dequantize_row(tensor.dtype, stored, row);
            let count = |bound: f32| row.iter().filter(|x| x.is_nan() || x.abs() > bound).count();
            (count(limit), count(rounded), super::largest_magnitude(row))
        },
    );
    let (saturated, beyond, largest) = rows.reduce(|| (0, 0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1, f32::max(a.2, b.2)));
    if beyond == 0 {
        return Ok(saturated);
    }
    Err(Diagnostic::error(Code::BadRange, "numbers of a table are beyond the range of the port that they fill")
        .subject(name)
        .need(format!("magnitudes of at most {limit}"))
        .have(format!("{beyond} numbers that are larger or NaN, up to {largest}"))
        .help("widen the range of the port by the table's largest magnitude")
        .into())
}

/// Elements and bytes of a row.
fn row_size(tensor: &Tensor) -> (usize, usize) {
    let cols = tensor.shape.last().copied().unwrap_or(1);
    (cols, row_bytes(tensor.dtype, cols))
}

fn row_bytes(dtype: DType, cols: usize) -> usize {
    dtype.row_bytes(cols).expect("a tensor's rows hold whole blocks")
}
